"""The answer on the terminal."""

from __future__ import annotations

from dataclasses import replace

import report_runs
import run_events
from imagebisect.report import build_report, markdown, terminal
from imagebisect.report.probing import outcome, unmeasured
from imagebisect.state import Budget, SearchOptions, fold


def test_it_names_last_good_first_bad_and_the_report():
    """A person finds the two builds, the numbers, what could not be tested, and where the report is."""
    report = build_report(report_runs.finished(report_runs.step(5, b4="unknown_flag")))

    text = terminal.render(report, where="results/r1")

    assert "long-prefill: NARROWED" in text
    assert "last good  b3" in text
    assert "first bad  b5" in text
    assert "1,415 -> 755 tok/s (-46.6 %, 1.87x slower, spread between starts 0.0 %, 2+2 starts)" in text
    assert "could not be tested: b4 (unknown_flag)" in text
    assert "in a range probed at" in text
    assert "results/r1" in text


def test_the_coverage_is_said_once():
    """In the sentence where it says it, in a line of its own where the budget ended the search."""
    plan = run_events.plan(24)
    short = SearchOptions(budget=Budget(starts=4))

    for options in (SearchOptions(), short):
        events = report_runs.searched(report_runs.step(13), plan, options)
        assert terminal.render(build_report(fold(events))).count("in a range probed at") == 1


def test_a_spent_budget_and_sentinels_are_named():
    """What the search was told to do otherwise is in the answer."""
    options = SearchOptions(scan=2, budget=Budget(starts=5))
    events = report_runs.searched(report_runs.step(13), run_events.plan(24), options)

    text = terminal.render(build_report(fold(events)))

    assert "NARROWED - regressed, narrowed to suspects (the budget is spent)" in text
    assert "looked at whatever else was known: b8, b15" in text
    assert "budget 5 starts: used 5 starts (spent)" in text


def test_a_fix_is_called_a_fix():
    """Last bad and first good, the older one first; nothing is called a first bad build."""
    plan = replace(run_events.plan(), good=7, bad=0)
    events = report_runs.searched(lambda b: 755.0 if b < 5 else 1415.0, plan, SearchOptions(find="fix"))
    report = build_report(fold(events))

    text, page = terminal.render(report), markdown.render(report)

    assert "long-prefill: CONFIRMED - first good build located" in text
    assert text.index("last bad    b4") < text.index("first good  b5")
    assert "good 1,415, bad 755 tok/s (-46.6 %" in text
    assert "Last bad `b4`, first good `b5`." in page
    assert "| first good | b5 |" in page
    assert "first bad" not in (text + page).lower()


def test_every_step_is_listed_with_its_size():
    """Two steps, or an order that contradicts itself: each with both builds and the change."""
    plan = run_events.plan(24)
    two = report_runs.searched(lambda b: 1415.0 if b < 7 else 1100.0 if b < 16 else 755.0, plan)
    again = report_runs.searched(lambda b: 755.0 if 5 <= b < 13 or b >= 18 else 1415.0, plan, SearchOptions(scan=5))

    text = terminal.render(build_report(fold(two)))
    assert "step  b6 good -> b7 other (-22.3 %)" in text
    assert "step  b15 other -> b16 bad (-31.4 %)" in text
    text = terminal.render(build_report(fold(again)))
    assert "INCONSISTENT" in text
    assert text.count("  step  ") == 3
    assert "bad -> b15 good (+87.4 %)" in text


def test_a_probe_shows_both_clocks_and_the_counts():
    """Client and server time, counted tokens, cache hits and why a rep is invalid, for every rep."""
    text = terminal.render_probe(build_report(report_runs.finished(report_runs.step(5))))

    assert "4096 tokens in, 1 out, client 2.895 s, server prefill 2.890 s, counted [4096], cache hits 0" in text
    assert "invalid: prefix cache hit of 4096 tokens" in text


def test_a_probe_that_dies_of_what_it_asks_about_has_measured():
    """Death in an OOM probe is its result; a prefill that failed or never came is not."""
    oom = {"scenario": "oom", "metrics": {"survived": 0.0}, "failure": {"cause": "oom_at_request"}}
    prefill = {"scenario": "long", "metrics": {"c1.prefill_tok_s": 1.0}, "failure": {"cause": "crash"}}
    kinds = {"oom": {"kind": "oom-probe"}, "long": {"kind": "prefill"}, "idle": {"kind": "idle-memory"}}

    def probed(*measurements):
        start = {"server": "s", "scenarios": ["idle", "long", "oom"], "measurements": list(measurements)}
        return {"run": {"suite": {"scenarios": kinds}}, "builds": [{"starts": [start]}]}

    assert unmeasured(probed(oom, prefill)) == ["s: idle", "s: long"]
    assert unmeasured(probed(oom, {**prefill, "failure": None}, {**prefill, "scenario": "idle", "failure": None})) == []


def test_a_start_with_a_failed_scenario_is_measured_but_for_it():
    """The line over a start never says both measured and failed; what was not reached is named."""
    fine = {"scenario": "long", "metrics": {"x": 1.0}, "failure": None}
    lost = {"scenario": "cmd", "metrics": {}, "failure": {"cause": "command_failed", "message": "m"}}
    died = {"scenario": "oom", "metrics": {"survived": 0.0}, "failure": {"cause": "oom_at_request", "message": "o"}}

    def said(state, *measurements, scenarios=("long", "cmd", "oom"), cause=None, message=None):
        start = {"outcome": state, "scenarios": scenarios, "measurements": measurements}
        return outcome({**start, "cause": cause, "message": message})

    assert said("measured", fine, lost, scenarios=("long", "cmd")) == "measured, but for cmd (command_failed)"
    assert said("failed", fine, died, scenarios=("long", "oom"), cause="oom_at_request", message="o") == (
        "measured; oom did not survive (oom_at_request)"
    )
    assert said("failed", fine, lost, cause="command_failed", message="m") == (
        "measured, but for cmd (command_failed), oom (not reached)"
    )
    assert said("failed", cause="unknown_flag", message="--x") == "failed (unknown_flag)"
    assert said("failed", fine, cause="driver", message="gone") == "failed (driver) after long"
