"""`bisect run` with a budget, for a fix, and with a scan, over real processes and real HTTP."""

from __future__ import annotations

import json

import worlds

SUITE = """
schema: 1
base: {gpus: none, args: [--max-model-len=32768, --max-num-seqs=4]}
deadlines: {boot: 5s, request: 10s, stop: 10s}
servers:
  s: {}
scenarios:
  long: {on: s, kind: prefill, prompt_tokens: 12000, reps: 3}
targets:
  long-prefill: {metric: long.c1.prefill_tok_s, worse: lower, floor: 10%}
"""


def bad_builds(count, bad):
    """Profiles of `count` builds; those of `bad` take 1.87 times as long."""
    return [
        worlds.profile(seed=index, **({"short_slowdown": 1.87} if index in bad else {}), cards=1)
        for index in range(count)
    ]


def run(folder, *arguments):
    """One command with its JSON."""
    done = worlds.bisect(*arguments, "--json", cwd=folder)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def started(report):
    """How many starts a report holds."""
    return sum(len(build["starts"]) for build in report["builds"])


def test_a_budget_ends_a_run_with_its_bracket_and_more_goes_on(tmp_path):
    """After so many starts the answer is a bracket with the reason; a larger budget goes on where it was."""
    images, suite = worlds.write(tmp_path, bad_builds(12, range(7, 12)), SUITE)

    code, short = run(
        tmp_path, "run", "--images", str(images), "--suite", str(suite), "--name", "r", "--budget", "3 starts"
    )
    (target,) = short["targets"]
    assert (code, target["status"], target["reason"]) == (11, "narrowed", "budget")
    assert started(short) == 3
    assert "b07" in [suspect["name"] for suspect in target["suspects"]]

    code, whole = run(tmp_path, "resume", "r", "--budget", "20 starts")
    (target,) = whole["targets"]
    assert (code, target["status"], target["first_bad"]["name"]) == (10, "confirmed", "b07")
    first = [start["id"] for build in whole["builds"] for start in build["starts"]]
    assert len(first) == len(set(first)) > 3


def test_a_budget_that_cannot_be_read_starts_nothing(tmp_path):
    """A number without a unit is refused before anything is written."""
    images, suite = worlds.write(tmp_path, bad_builds(3, [2]), SUITE)

    code, refused = run(tmp_path, "run", "--images", str(images), "--suite", str(suite), "--budget", "12")

    assert code == 2
    assert "expected a number of starts" in refused["message"]
    assert not (tmp_path / "results").exists()


def test_the_build_that_mended_it_is_found(tmp_path):
    """With --find-fix the older end is bad: the last bad and the first good build are named."""
    images, suite = worlds.write(tmp_path, bad_builds(9, range(5)), SUITE)

    code, report = run(tmp_path, "run", "--images", str(images), "--suite", str(suite), "--find-fix")

    (target,) = report["targets"]
    assert (code, target["status"]) == (10, "confirmed")
    assert "b04 is the last bad build and b05 the first good one" in target["sentence"]
    assert report["builds"][5]["verdicts"]["long-prefill"] == "good"


def test_the_wrong_way_round_is_a_usage_error(tmp_path):
    """Ends that do not fit the direction are refused with the option that turns it round."""
    images, suite = worlds.write(tmp_path, bad_builds(4, [0]), SUITE)
    arguments = ("run", "--images", str(images), "--suite", str(suite))

    code, refused = run(tmp_path, *arguments, "--good", "b03", "--bad", "b00")
    assert (code, "--find-fix" in refused["next_step"]) == (2, True)

    code, refused = run(tmp_path, *arguments, "--find-fix", "--good", "b00", "--bad", "b03")
    assert (code, "leave --find-fix out" in refused["next_step"]) == (2, True)


def test_a_scan_finds_a_stretch_that_was_mended(tmp_path):
    """Both ends are well and a stretch between is not: the scan says so, exit code 12."""
    images, suite = worlds.write(tmp_path, bad_builds(9, (3, 4, 5)), SUITE)

    code, report = run(tmp_path, "run", "--images", str(images), "--suite", str(suite), "--scan", "3")

    (target,) = report["targets"]
    assert (code, target["status"]) == (12, "inconsistent")
    assert "it broke and was mended; search with --bad b04" in target["sentence"]
