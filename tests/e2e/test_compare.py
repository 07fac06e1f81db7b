"""`bisect compare` over real processes: what is planted is reproduced, what is not is not, and kills change nothing."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

import pytest

import worlds
from imagebisect.ledger import RunFolder
from imagebisect.state import Measured

SUITE = """
schema: 1
base:
  gpus: [0, 1]
  args: [--tensor-parallel-size=2, --max-model-len=32768, --max-num-seqs=4, --enable-prefix-caching]
deadlines: {boot: 40s, request: 40s, stop: 20s}
servers:
  bt4096: {args+: [--max-num-batched-tokens=4096, --kv-cache-memory-bytes=4294967296]}
  bt8192: {args+: [--max-num-batched-tokens=8192, --kv-cache-memory-bytes=4294967296]}
scenarios:
  idle:  {on: bt4096, kind: idle-memory, samples: 2, interval: 50ms}
  short: {on: bt4096, kind: prefill, prompt_tokens: 8000, reps: 1}
  long:  {on: bt4096, kind: prefill, prompt_tokens: 16000, reps: 1}
  oom:   {on: bt8192, kind: oom-probe, ladder: [[8000, 1], [8000, 2]]}
targets:
  long-prefill:  {metric: long.c1.prefill_tok_s, worse: lower, floor: 20%, role: bisect}
  short-prefill: {metric: short.c1.prefill_tok_s, worse: lower, floor: 20%, role: watch}
  free-memory:   {metric: idle.free_idle_mib, worse: lower, floor: 256, role: bisect}
  survives-8192: {metric: oom.survived, worse: lower, role: bisect}
"""
"""Floors above what a busy test machine does to a rep of a third of a second."""


@pytest.fixture
def files(tmp_path):
    """The options for builds `b00` (good), `b01` (slow on long prompts), `b02` (dies at 8192) and `again` (b00)."""
    good = worlds.profile(seed=1)
    slow = worlds.profile(seed=2, long_from_tokens=12000, long_slowdown=1.87)
    dying = worlds.profile(seed=3, oom_at_request_from_tokens=8000)
    images, suite = worlds.write(tmp_path, [good, slow, dying], SUITE)
    with images.open("a") as stream:
        stream.write("  - {name: again, same_as: b00}\n")
    return ("--images", str(images), "--suite", str(suite))


def words(done):
    """Each target's word."""
    return {m["target"]: m["word"] for m in json.loads(done.stdout)["comparison"]["metrics"] if m["target"]}


def test_a_slowdown_of_long_prompts_is_reproduced_and_nothing_else_is(tmp_path, files):
    """The thread's case: long prefill 1.87x slower, short prompts and memory alike; interleaved, equal but for the build."""
    done = worlds.bisect("compare", "b00", "b01", *files, "--server", "bt4096", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert words(done) == {
        "long-prefill": "reproduced",
        "short-prefill": "not reproduced",
        "free-memory": "not reproduced",
    }
    report = json.loads(done.stdout)
    comparison = report["comparison"]
    assert -52 < comparison["metrics"][0]["change_percent"] < -41
    assert comparison["servers"]["bt4096"]["order"] == "A B B A A B"
    assert len({s["canonical_sha256"] for build in report["builds"] for s in build["starts"]}) == 1
    assert comparison["servers"]["bt4096"]["canonical_sha256"] is not None
    (folder,) = (path for path in (tmp_path / "results").iterdir() if path.is_dir())
    assert "long-prefill: reproduced" in (folder / "report.md").read_text()
    assert worlds.group_members(str(tmp_path)) == []


@pytest.mark.parametrize("other", ["again", "b00"])
def test_a_build_against_itself_is_not_reproduced(tmp_path, files, other):
    """An A/A checks the host: the words are given all the same, and the report says what it is."""
    done = worlds.bisect("compare", "b00", other, *files, "--server", "bt4096", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert set(words(done).values()) == {"not reproduced"}
    assert json.loads(done.stdout)["comparison"]["same_build"] is True


def test_a_build_that_only_dies_is_told_by_its_deaths(tmp_path, files):
    """OOM in every start of B and in none of A."""
    done = worlds.bisect("compare", "b00", "b02", *files, "--server", "bt8192", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "survives-8192: reproduced, survived in 3 of 3 starts of A and 0 of 3 of B" in done.stdout
    assert "oom_at_request" in done.stdout


def test_nothing_comparable_has_its_own_exit_code(tmp_path):
    """A build that knows none of the flags is started once a server and the exit code is 3."""
    broken = worlds.profile(unknown_flags=["--max-num-seqs"])
    images, suite = worlds.write(tmp_path, [worlds.profile(), broken], SUITE)

    done = worlds.bisect("compare", "b00", "b01", "-i", str(images), "-s", str(suite), "--json", cwd=tmp_path)

    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert report["reason"] == "not_measurable"
    assert [start["cause"] for start in report["builds"][1]["starts"]] == ["unknown_flag", "unknown_flag"]
    assert {m["word"] for m in report["comparison"]["metrics"]} == {"cannot tell"}


def test_kills_change_neither_the_order_nor_the_answer(tmp_path, files):
    """Kill -9 at four moments, each followed by resume: A B B A on both servers, finished starts kept, the same words."""
    command = ["compare", "b00", "b01", *files, "--starts", "2", "--name", "torn"]
    folder = RunFolder(tmp_path / "results" / "torn")
    dice = random.Random(20261201)
    kept: list[Measured] = []
    for _ in range(4):
        with (tmp_path / "torn.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "imagebisect", *command], cwd=tmp_path, stdout=log, stderr=log
            )
            time.sleep(dice.uniform(1.5, 5.0))
            process.send_signal(signal.SIGKILL)
            process.wait()
        if not folder.exists():
            continue
        command = ["resume", "torn"]
        events = [event for event in folder.events() if isinstance(event, Measured)]
        assert events[: len(kept)] == kept
        kept = events
    cut = sum(start.outcome != "measured" for start in folder.load().starts)

    done = worlds.bisect("resume", "torn", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert cut, "no start was cut short: nothing was tested"
    comparison = json.loads(done.stdout)["comparison"]
    assert [server["order"] for server in comparison["servers"].values()] == ["A B B A", "A B B A"]
    assert all(len(m["a_values"]) == len(m["b_values"]) == 2 for m in comparison["metrics"] if m["target"])
    assert words(done)["long-prefill"] == "reproduced"
    assert worlds.group_members(str(tmp_path)) == []
