"""The JSON report: complete, true to the status, without anything personal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import report_runs
import run_events
from imagebisect.domain import Overrides, TargetRole, Verdict
from imagebisect.report import build_report
from imagebisect.state import Budget, Marked, SearchOptions, apply, fold
from search_world import target


def test_a_confirmed_regression_carries_what_a_maintainer_asks_for():
    """Both builds with version and revision, both values, the change as bad / good - 1, the spread."""
    report = build_report(report_runs.finished(report_runs.step(5)))

    entry = report["targets"][0]
    assert (report["schema"], report["exit_code"], report["reason"]) == (1, 10, "confirmed")
    assert entry["status"] == "confirmed"
    assert (entry["last_good"]["name"], entry["first_bad"]["name"]) == ("b4", "b5")
    assert entry["first_bad"]["version"] == "0.26.5"
    assert entry["first_bad"]["revision"] == "f" * 40
    assert entry["change_percent"] == pytest.approx((755 / 1415 - 1) * 100)
    assert entry["spread_percent"] == 0
    assert entry["anchors"]["good"] == {"name": "b0", "value": 1415.0}
    assert json.loads(json.dumps(report)) == report


def test_how_sure_the_answer_is_stands_beside_it():
    """The interval of the step, the chance of the pair, the fresh starts of each side."""
    entry = build_report(report_runs.finished(report_runs.step(5)))["targets"][0]

    assert entry["change_low_percent"] < entry["change_percent"] < entry["change_high_percent"]
    assert 0.98 <= entry["confidence"] <= 1
    assert entry["fresh_starts"] == {"good": 1, "bad": 1}
    assert f"chance of this pair {entry['confidence']:.4f}" in entry["sentence"]


def test_a_search_for_a_fix_turns_the_words_round():
    """First good and last bad build; no last good one and no first bad one to be taken for it."""
    plan = replace(run_events.plan(), good=7, bad=0)
    events = report_runs.searched(lambda b: 755.0 if b < 5 else 1415.0, plan, SearchOptions(find="fix"))
    report = build_report(fold(events))

    entry = report["targets"][0]
    assert (entry["find"], entry["status"], report["exit_code"]) == ("fix", "confirmed", 10)
    assert (entry["last_bad"]["name"], entry["first_good"]["name"]) == ("b4", "b5")
    assert entry["last_good"] is None
    assert entry["first_bad"] is None
    assert (entry["good_value"], entry["bad_value"]) == (1415.0, 755.0)
    assert (entry["probed"], entry["in_range"]) == (len(entry["values"]), 8)
    assert [(step["last"], step["after"]) for step in entry["steps"]] == [("b4", "good")]


def test_what_the_search_was_told_and_what_it_cost():
    """Sentinels with whether they were started, the budget given and used."""
    options = SearchOptions(scan=3, budget=Budget(starts=4))
    run = build_report(fold(report_runs.searched(report_runs.step(20), run_events.plan(24), options)))["run"]

    assert [one["name"] for one in run["search"]["scan"]] == ["b6", "b12", "b17"]
    assert [one["started"] for one in run["search"]["scan"]].count(True) == 2
    assert run["search"]["budget"]["given"] == {"starts": 4, "hours": None, "gpu_hours": None}
    assert run["search"]["budget"]["used"]["starts"] == 4
    assert run["search"]["budget"]["spent"]


def test_an_untestable_build_is_a_suspect_with_its_cause():
    """A build that refuses a flag is skipped, stays a suspect, and says why."""
    report = build_report(report_runs.finished(report_runs.step(5, b4="unknown_flag")))

    entry = report["targets"][0]
    assert (entry["status"], entry["reason"], report["exit_code"]) == ("narrowed", "untestable", 11)
    assert [build["name"] for build in entry["suspects"]] == ["b4", "b5"]
    assert entry["untestable"] == [{"name": "b4", "causes": ["unknown_flag"]}]
    assert report["builds"][4]["verdicts"] == {"long-prefill": "skip"}
    assert report["builds"][4]["starts"][0]["cause"] == "unknown_flag"


def test_builds_that_nobody_started_have_no_verdict():
    """A verdict is never inferred from the neighbours."""
    report = build_report(report_runs.finished(report_runs.step(5)))

    for build in report["builds"]:
        assert (build["verdicts"]["long-prefill"] is None) == (build["starts"] == [])


def test_ends_that_do_not_differ_are_not_called_good_and_bad():
    """Without a difference between the ends no build has a good or a bad verdict, and no step is claimed."""
    report = build_report(report_runs.finished(lambda _: 1415.0))

    entry = report["targets"][0]
    assert (entry["status"], entry["reason"]) == ("not_reproduced", None)
    assert entry["first_bad"] is None
    assert entry["suspects"] == entry["steps"] == []
    assert {build["verdicts"]["long-prefill"] for build in report["builds"]} <= {None, "unclear"}


def test_how_much_of_the_range_was_looked_at():
    """The report says how many builds were probed and the longest stretch nobody looked into."""
    entry = build_report(report_runs.finished(report_runs.step(1), run_events.plan(32)))["targets"][0]

    assert entry["in_range"] == 32
    assert entry["probed"] == len(entry["values"])
    assert entry["longest_unprobed"] == 15


def test_reps_are_counted_without_warm_ups():
    """Timed reps, invalid ones and warm-ups are three numbers."""
    run = build_report(report_runs.finished(report_runs.step(5)))["run"]

    assert (run["reps"], run["invalid_reps"]) == (2 * run["starts"], run["starts"])
    assert run["warmup_reps"] == run["starts"]


def test_a_run_that_has_only_begun_has_a_report():
    """`status` right after the start: every target open, nothing claimed."""
    report = build_report(fold([run_events.created()]))

    assert report["targets"][0]["status"] is None
    assert report["targets"][0]["first_bad"] is None
    assert (report["exit_code"], report["reason"]) == (12, "unfinished")


def test_a_watched_target_claims_no_more_than_it_saw():
    """A watch target is never confirmed and decides no exit code."""
    plan = run_events.plan(targets=(target("long-prefill"), target("watched", role=TargetRole.WATCH)))
    report = build_report(report_runs.finished(report_runs.step(5), plan))

    assert report["targets"][1]["role"] == "watch"
    assert report["targets"][1]["status"] in ("narrowed", "inconclusive")
    assert report["exit_code"] == 10


def test_a_verdict_set_by_hand_shows():
    """`mark` shows in the build's verdicts."""
    state = apply(
        report_runs.finished(report_runs.step(5, b4="unknown_flag")),
        Marked(build=4, target="long-prefill", verdict=Verdict.GOOD),
    )

    assert build_report(state)["builds"][4]["verdicts"]["long-prefill"] == "good"


def test_nothing_personal_is_in_it(monkeypatch):
    """Planted secrets, the home folder and the host's name are nowhere in the report."""
    monkeypatch.setenv("HF_TOKEN", "planted-secret-1")
    monkeypatch.setenv("MY_PASSED", "planted-secret-2")
    monkeypatch.setenv("HOME", "/home/jane")
    monkeypatch.setattr("socket.gethostname", lambda: "janes-workstation")
    plan = run_events.plan()
    server = replace(
        plan.suite.servers[0],
        args=("--a=planted-secret-1", "--b=planted-secret-2", "--c=/home/jane/m", "--d=janes-workstation"),
        env={"SOME_API_KEY": "planted-secret-3"},
        pass_env=("MY_PASSED",),
    )
    swapped = replace(plan.builds[1], overrides=Overrides(env={"X_TOKEN": "planted-secret-4"}))
    plan = replace(
        plan, suite=replace(plan.suite, servers=(server,)), builds=(plan.builds[0], swapped, *plan.builds[2:])
    )

    text = json.dumps(build_report(report_runs.finished(report_runs.step(5), plan)))

    for secret in ("planted-secret", "jane"):
        assert secret not in text
    assert "--c=~/m" in text


def test_cards_are_named_without_their_serial_numbers():
    """The host has the card's name and memory, not its UUID."""
    state = report_runs.finished(report_runs.step(5))
    host = {"gpus": [{"index": 0, "uuid": "GPU-123", "name": "Test Card", "total_mib": 1.0}]}
    state = replace(state, created=replace(state.created, host=host))

    assert build_report(state)["run"]["host"]["gpus"] == [{"index": 0, "name": "Test Card", "total_mib": 1.0}]
