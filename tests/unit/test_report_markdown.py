"""The Markdown that is pasted to a GitHub issue."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import report_runs
import run_events
from imagebisect.domain import Failure, Phase, Verdict
from imagebisect.report import build_report, markdown, terminal
from imagebisect.state import Marked, StartEnded, apply, fold


def test_the_first_lines_say_what_where_how_much_on_what():
    """Within the first screen: status, both builds, both numbers with spread, hardware, flags."""
    head = "\n".join(markdown.render(build_report(report_runs.finished(report_runs.step(5)))).splitlines()[:12])

    for needed in (
        "CONFIRMED",
        "`b4`",
        "`b5`",
        "1,415 -> 755 tok/s",
        "-46.6 %",
        "spread",
        "1 x Test Card",
        "--max-model-len=8192",
    ):
        assert needed in head


def test_the_claim_carries_how_sure_it_is():
    """Beside the change: its 95 % interval, the confidence, how many starts were made to prove it."""
    text = markdown.render(build_report(report_runs.finished(report_runs.step(5))))

    claim = next(line for line in text.splitlines() if "CONFIRMED" in line)
    assert re.search(r"95 % interval -4\d\.\d to -4\d\.\d %, confidence 0\.99\d\d, 1\+1 fresh starts", claim), claim
    assert text.count("in a range probed at") == 1


def test_simulated_builds_are_called_so_first():
    """Nobody can take a demo for a measurement."""
    assert markdown.render(build_report(report_runs.finished(report_runs.step(5)))).startswith("**Simulated builds")


def test_tables_are_whole_and_details_are_closed():
    """Every table row has as many cells as its head; every fold is closed."""
    text = markdown.render(build_report(report_runs.finished(report_runs.step(5, b4="unknown_flag", b6="crash"))))

    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(counts) == 1, block
    assert text.count("<details>") == text.count("</details>") >= 2
    assert text.count("```") % 2 == 0


def test_a_log_message_cannot_become_markup():
    """What a server printed neither breaks a table nor turns into HTML or a mention of a code block."""
    state = report_runs.finished(report_runs.step(5, b4="unknown_flag"))
    hostile = Failure(cause="unknown_flag", phase=Phase.BOOT, message="a | b\n</details><script>```\n# title")
    failed = next(start for start in state.starts if start.intended.build == 4)
    state = apply(state, StartEnded(start_id=failed.intended.start_id, failure=hostile, seconds=1.0))

    text = markdown.render(build_report(state))

    assert "<script>" not in text
    assert "\n# title" not in text
    assert text.count("</details>") == text.count("<details>")


def test_it_fits_into_a_github_comment():
    """300 builds with failures stay within the limit, and what was left out is said."""
    plan = run_events.plan(300)
    long = {f"b{n}": "import_error" for n in range(2, 298)}
    report = build_report(report_runs.finished(report_runs.step(299, **long), plan))
    for build in report["builds"]:
        for start in build["starts"]:
            if start["message"]:
                start["message"] = "x" * 1000

    text = markdown.render(report)

    assert len(text) <= markdown.LIMIT
    assert "left out" in text


def test_nothing_found_claims_nothing():
    """Ends that do not differ: no first bad build, no suspects, the numbers are there."""
    text = markdown.render(build_report(report_runs.finished(lambda _: 1415.0)))

    assert "NOT_REPRODUCED" in text
    assert "first bad" not in text.lower()
    assert "1,415" in text


def test_a_deviating_build_is_listed():
    """Rewrites and overrides of builds are in the report, as deltas of the run are."""
    plan = run_events.plan()
    report = build_report(
        report_runs.finished(report_runs.step(5), replace(plan, suite=replace(plan.suite, deltas=("added --x",))))
    )
    report["builds"][2]["rewrites"] = [{"from": "--old", "to": "--new", "why": "renamed"}]

    text = markdown.render(json.loads(json.dumps(report)))

    assert "added --x" in text
    assert "--old" in text
    assert "renamed" in text


def test_an_unfinished_run_says_so_and_claims_nothing():
    """Before the first start there is no equality to speak of and no build is called good or bad."""
    text = markdown.render(build_report(fold([run_events.created()])))

    assert "**Unfinished**" in text
    assert "identical" not in text
    assert "canonical form" not in text
    assert "first bad `" not in text


def test_a_verdict_by_hand_is_told_from_a_measured_one():
    """A marked build that was never started is neither probed nor quietly good."""
    events = [
        run_events.created(),
        *run_events.start(1, 0, 1415.0),
        *run_events.start(2, 7, 755.0),
        *run_events.start(3, 7, 756.0),
        *run_events.start(4, 0, 1416.0),
        Marked(build=4, target="long-prefill", verdict=Verdict.GOOD),
    ]
    report = build_report(fold(events))

    assert "good (by hand)" in markdown.render(report)
    assert "good*" in terminal.render(report)
    assert report["targets"][0]["probed"] == 2


def test_a_probe_has_its_numbers_and_only_the_builds_that_were_started():
    """Facts, a table of metrics, every rep in a fold, how it was started; tables whole, folds closed."""
    event = replace(run_events.created(), purpose="probe")
    report = build_report(fold([event, *run_events.start(1, 3, 1415.0), *run_events.start(2, 3, "unknown_flag")]))

    text = markdown.render(report)

    assert (report["exit_code"], report["reason"]) == (3, "unfinished")
    assert "| long.c1.prefill_tok_s | 1,415 tok/s |" in text
    assert "### b3 on s: failed (unknown_flag)" in text
    assert "b0" not in text
    assert "no target was judged" not in text
    assert text.count("<details>") == text.count("</details>") >= 2
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block
