"""The answer on the terminal."""

from __future__ import annotations

import report_runs
from imagebisect.report import build_report, terminal
from imagebisect.report.probing import outcome, unmeasured


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
