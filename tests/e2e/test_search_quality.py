"""One world of `benchmarks/end_to_end.py` of each kind: the right build is named, equal ends are found to be equal."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import worlds


@pytest.fixture
def end_to_end(monkeypatch, pytestconfig):
    """The module `end_to_end`."""
    monkeypatch.syspath_prepend(str(pytestconfig.rootpath / "benchmarks"))
    return importlib.import_module("end_to_end")


def search(end_to_end, case, folder):
    """A case's outcome by its own run, with the report's only target."""
    end_to_end.write(case, folder)
    done = worlds.bisect(
        "run", "--images", "images.yaml", "--suite", "suite.yaml", "--name", "run", "--json", cwd=folder
    )
    assert done.returncode in {0, 10, 11, 12}, done.stderr
    outcome = end_to_end.judge(case, folder / "results" / "run", exit_code=done.returncode, seconds=0.0)
    (target,) = json.loads(done.stdout)["targets"]
    return outcome, target


@pytest.mark.alone
def test_a_ten_percent_step_is_found_among_builds_that_cannot_start(end_to_end, tmp_path):
    """Twelve builds, four of them untestable, slow starts and slow reps: the tightest pair is named, and nothing else."""
    case = end_to_end.one_step(3, count=12)
    assert case.world.skips

    found, target = search(end_to_end, case, tmp_path)

    assert (found.kind, found.false_steps) == ("exact", 0), found
    assert found.exit_code == (10 if target["status"] == "confirmed" else 11)
    assert (target["last_good"]["name"], target["first_bad"]["name"]) == found.truth[0]
    assert -12 < target["change_percent"] < -6


def test_one_build_at_both_ends_has_no_regression(end_to_end, tmp_path):
    """A/A: what is said is that it does not reproduce, with exit code 0, within eight starts and no start between."""
    found, target = search(end_to_end, end_to_end.same_ends(1), tmp_path)

    assert (found.end, found.exit_code) == ("not_reproduced", 0), found.sentence
    assert found.starts <= end_to_end.AA_STARTS
    assert target["first_bad"] is None


def test_the_worlds_follow_from_their_seeds(end_to_end):
    """A seed that went wrong can be looked at again: the same builds, the same noise, another seed another world."""
    for make in end_to_end.ROWS.values():
        assert end_to_end.profiles(make(5)) == end_to_end.profiles(make(5))
        assert end_to_end.profiles(make(5)) != end_to_end.profiles(make(6))


def test_the_ends_can_always_be_tested(end_to_end):
    """Untestable builds lie between the ends, and about a fifth of all builds are."""
    cases = [end_to_end.one_step(seed) for seed in range(200)]

    assert all(not {0, 23} & case.world.skips for case in cases)
    assert 0.13 < sum(len(case.world.skips) for case in cases) / (200 * 24) < 0.25


def test_a_missed_goal_is_an_exit_code(end_to_end):
    """One wrong claim is one too many, and so is a second world without its answer."""
    base = {"row": "step", "seed": 1, "end": "confirmed", "exit_code": 10, "said": ("b01", "b02"), "confidence": 1.0}
    base |= {"truth": (), "holds": True, "false_steps": 0, "missed_steps": 0, "starts": 9, "bound": 6.5, "reps": 9}
    exact = end_to_end.Outcome(kind="exact", seconds=1.0, sentence="", **base)
    none = end_to_end.Outcome(kind="none", seconds=1.0, sentence="", **base)
    extra = end_to_end.Outcome(kind="exact", seconds=1.0, sentence="", **{**base, "false_steps": 1})

    assert end_to_end.summary("step", [exact] * 19 + [none])["met"]
    assert not end_to_end.summary("step", [exact] * 18 + [none] * 2)["met"]
    assert not end_to_end.summary("step", [exact] * 19 + [extra])["met"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--seeds", "0"), "at least 1"), (("--row", "none"), "invalid choice"), (("--keep", "."), "is not empty")],
)
def test_a_bad_call_says_what_is_wrong(arguments, words, pytestconfig):
    """Nothing is started for a call that cannot mean anything."""
    done = subprocess.run(
        [sys.executable, "benchmarks/end_to_end.py", *arguments],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert words in done.stderr
