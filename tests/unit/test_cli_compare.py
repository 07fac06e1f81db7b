"""`bisect compare` and what `status`, `report`, `mark` and `resume` say of a comparison on disk."""

from __future__ import annotations

import json

import pytest

import run_events
import worlds
from imagebisect import abba, ledger
from imagebisect.domain import Overrides, Rewrite
from imagebisect.ledger import RunFolder
from imagebisect.state import CompareSpec, RunFinished

VALUES = (1415.0, 755.0, 757.0, 1411.0, 1418.0, 752.0)


def write(results, count=6, *, finish=False, change=lambda plan: plan):
    """A comparison of b0 and b1 on disk, `count` of its 6 starts done."""
    plan = change(run_events.plan(2))
    folder = ledger.create(
        results,
        plan,
        host={"cpus": 2},
        model_fingerprint="none",
        tool_version="0",
        name="c1",
        purpose="compare",
        compare=CompareSpec(a=0, b=1, starts=3),
    )
    for number, value in enumerate(VALUES[:count], start=1):
        probe = abba.next_start(folder.load())
        for event in run_events.start(number, probe.build, value):
            folder.append(event)
    if finish:
        folder.append(RunFinished(at=ledger.utc_now(), exit_code=0))
    return folder


def deviating(plan):
    """The same plan, the second build with a rewrite and an override."""
    from dataclasses import replace

    rewrite = Rewrite(from_arg="--max-model-len", to_arg="--max-len", why="renamed")
    other = Rewrite(from_arg="--not-used", to_arg=None, why="gone")
    second = replace(plan.builds[1], rewrites=(rewrite, other), overrides=Overrides(env={"X": "1"}, args=("--y",)))
    return replace(plan, builds=(plan.builds[0], second))


def test_status_says_where_the_order_is_and_how_to_go_on(tmp_path):
    """The words so far, the next start with its place in the order, the command."""
    write(tmp_path / "results", 3)

    done = worlds.bisect("status", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "UNFINISHED" in done.stdout
    assert "next: b0 on s (A, start 4 of 6); at most 3 starts left" in done.stdout
    assert "to go on: bisect resume c1\n" in done.stdout


def test_status_in_json_names_the_next_start(tmp_path):
    """A script can tell what would be started next."""
    write(tmp_path / "results", 1)

    document = json.loads(worlds.bisect("status", "--json", cwd=tmp_path).stdout)

    assert document["next"] == {"build": "b1", "server": "s", "why": "B, start 2 of 6"}
    assert document["starts_left"] == document["comparison"]["starts_left"] == 5
    assert (document["exit_code"], document["reason"]) == (3, "unfinished")


@pytest.mark.parametrize(
    ("form", "needed"),
    [
        ("terminal", "long-prefill: reproduced, -46.7 %, 95 % interval -47."),
        ("markdown", "- **long-prefill: reproduced**, -46.7 %, 95 % interval -47."),
        ("json", '"comparison": {'),
        ("csv", "b1,,0002,s,search,measured"),
    ],
)
def test_every_format_renders_a_comparison(tmp_path, form, needed):
    """`bisect report` of a comparison has its claims in each format."""
    write(tmp_path / "results", finish=True)

    done = worlds.bisect("report", "c1", "--format", form, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert needed in done.stdout


def test_the_json_of_a_comparison(tmp_path):
    """The ordinary report without targets, and a section with values, interval, word and the proof of equality."""
    write(tmp_path / "results", finish=True, change=deviating)

    report = json.loads(worlds.bisect("report", "c1", "--format", "json", cwd=tmp_path).stdout)

    assert (report["exit_code"], report["reason"], report["targets"]) == (0, "compared", [])
    comparison = report["comparison"]
    assert (comparison["a"], comparison["b"], comparison["order"], comparison["starts"]) == (
        "b0",
        "b1",
        "A B B A A B",
        3,
    )
    assert comparison["servers"]["s"]["canonical_sha256"] == "same"
    assert comparison["servers"]["s"]["deviations"] == [
        "b1: --max-model-len -> --max-len (renamed)",
        "b1: env X=1",
        "b1: args --y",
    ]
    long = comparison["metrics"][0]
    assert (long["scenario"], long["metric"], long["target"]) == ("long", "c1.prefill_tok_s", "long-prefill")
    assert (long["unit"], long["kind"], long["worse"], long["floor"]) == ("tok/s", "ratio", "lower", 0.1)
    assert (long["a_values"], long["b_values"]) == ([1415.0, 1411.0, 1418.0], [755.0, 757.0, 752.0])
    assert long["interval"][0] < long["change_percent"] < long["interval"][1] < -45
    assert (long["p"] < 0.001, long["moved"], long["by_chance"]) == (True, True, False)
    assert long["word"] == "reproduced"
    assert long["detectable"] < 5


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_the_order_is_said_once_and_the_columns_are_explained(tmp_path, form):
    """A stranger reads what `floor` and `could show` mean under the table, and the order of the starts one time."""
    write(tmp_path / "results", finish=True)

    text = worlds.bisect("report", "c1", "--format", form, cwd=tmp_path).stdout

    assert text.count("A B B A A B") == 1
    assert "could show: the smallest that these starts would have told from noise" in text
    assert "docs/compare.md" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("b00", "b09"), "there is no build 'b09'"),
        (("b00", "b01", "--server", "bt1"), "there is no server 'bt1'"),
        (("b00", "b01", "--starts", "0"), "--starts"),
        (("b00",), "Missing argument"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_made(tmp_path, arguments, words):
    """Exit 2 with what is wrong, one JSON document, and no run folder."""
    images, suite = worlds.write(tmp_path, [worlds.profile(), worlds.profile()])

    done = worlds.bisect("compare", *arguments, "-i", str(images), "-s", str(suite), "--json", cwd=tmp_path)

    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert json.loads(done.stdout)["reason"] == "usage"
    assert not (tmp_path / "results").exists()


def test_a_comparison_has_no_verdicts_to_overrule(tmp_path):
    """`bisect mark` is for searches."""
    write(tmp_path / "results", finish=True)

    done = worlds.bisect("mark", "b1", "good", "--target", "long-prefill", cwd=tmp_path)

    assert done.returncode == 2
    assert "is no search" in done.stderr


def test_a_finished_comparison_is_told_again_not_run_again(tmp_path):
    """`bisect resume` of one that has its answer prints it."""
    write(tmp_path / "results", finish=True)

    done = worlds.bisect("resume", "c1", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["comparison"]["metrics"][0]["word"] == "reproduced"
    assert len(RunFolder(tmp_path / "results" / "c1").load().starts) == 6


def test_help_names_the_words_and_the_exit_codes(tmp_path):
    """A script's author needs nothing but the help."""
    own = worlds.bisect("compare", "--help", cwd=tmp_path).stdout
    whole = worlds.bisect("--help", cwd=tmp_path).stdout

    assert "not reproduced" in own
    assert "Exit 0 compared" in own
    assert "`compare`: 0 compared" in whole
