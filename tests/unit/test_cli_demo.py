"""The demo's own judgement: it may only exit 0 when what was planted was found."""

from __future__ import annotations

import pytest

from imagebisect.cli.demo import demo_plan, wrong

PLANTED = {"first_bad": {"memory": "b2"}, "untestable": {"b1": "unknown_flag"}}


def report(*, status="confirmed", first="b2", cause="unknown_flag", other=None):
    """A report of three builds."""
    starts = [[], [{"cause": cause, "outcome": "failed"}], [{"cause": other, "outcome": "measured"}]]
    return {
        "targets": [{"name": "memory", "status": status, "first_bad": {"name": first} if first else None}],
        "builds": [{"name": f"b{n}", "starts": started} for n, started in enumerate(starts)],
    }


def test_found():
    """All as planted."""
    assert wrong(report(), PLANTED) == []
    assert wrong(report(other="oom_at_request"), PLANTED) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"first": "b1"},
        {"status": "inconclusive", "first": None},
        {"cause": "crash"},
        {"cause": None},
        {"other": "ready_timeout"},
    ],
)
def test_not_found(changes):
    """A wrong build, no answer, a build that failed for another reason or not at all, a failure nobody planted."""
    assert len(wrong(report(**changes), PLANTED)) == 1


def test_a_target_that_vanished():
    """A planted target that the report lacks is not found."""
    assert wrong({**report(), "targets": []}, PLANTED)


def test_the_embedded_files_are_what_the_readme_says():
    """16 builds; the planted names exist."""
    plan, planted = demo_plan()

    assert len(plan.builds) == 16
    names = {build.name for build in plan.builds}
    assert set(planted["first_bad"].values()) | set(planted["untestable"]) <= names
    assert set(planted["first_bad"]) <= {target.name for target in plan.suite.targets}
