"""`bisect probe` and `bisect run` beside their numbers: variants, facts, cards that do not come back, a host that changes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import worlds
from imagebisect.simulator import events

COMMON = ("--images", "images.yaml", "--suite", "suite.yaml", "--server", "bt4096")

VARIANTS = """
variants:
  relaxed: {of: bt4096, set_args: {--kv-cache-memory-bytes: {add: -64MiB}}}
  chunks:  {of: bt4096, set_args: {--max-num-batched-tokens: 2048}}
"""


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command as a process, in the folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "imagebisect", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def when(folder: Path, event: str, *, number: int = 1, within_s: float = 60.0) -> None:
    """Wait until the run's ledger has so many events of a kind."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        ledgers = list(folder.glob("results/*/events.jsonl"))
        if ledgers and ledgers[0].read_text().count(f'"event":"{event}"') >= number:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {event} within {within_s} s")


@pytest.mark.alone
def test_variants_show_what_each_of_them_moved(tmp_path):
    """The pin relaxed by 64 MiB moves the pool and the free memory by 64 MiB, and no speed; it is one table."""
    worlds.write(tmp_path, worlds.planted(2, slow_from=9, hungry_from=9), worlds.SUITE + VARIANTS)

    done = worlds.bisect("probe", "b00", *COMMON, "--variants", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    relaxed, chunks = report["variants"]
    assert (relaxed["name"], relaxed["of"]) == ("relaxed", "bt4096")
    assert relaxed["changes"] == ["--kv-cache-memory-bytes -64MiB (to 4227858432)"]
    moved = {row["metric"]: row for row in relaxed["metrics"]}
    assert moved["idle.kv_pool_mib"]["change"] == -64
    assert abs(moved["idle.free_idle_mib"]["change"] - 64) <= 1
    assert abs(moved["long.c1.prefill_tok_s"]["change_percent"]) < 5
    assert chunks["failures"] == []

    shown = worlds.bisect("probe", "b00", *COMMON, "--variants", cwd=tmp_path)
    assert "relaxed is bt4096 with --kv-cache-memory-bytes -64MiB" in shown.stdout
    assert "idle.kv_pool_mib" in shown.stdout
    assert "one start each: see `bisect compare`" in shown.stdout


def test_asking_for_variants_that_are_not_there_is_said(tmp_path):
    """A suite without variants: usage error with what to add."""
    worlds.write(tmp_path, worlds.planted(2, slow_from=9, hungry_from=9))

    done = worlds.bisect("probe", "b00", "--images", "images.yaml", "--suite", "suite.yaml", "--variants", cwd=tmp_path)

    assert done.returncode == 2
    assert "names no variants" in done.stderr


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--server", "relaxed"), "bisect probe b00 --variant relaxed"),
        (("--variant", "zzz"), "variants: relaxed, chunks"),
        (("--server", "bt8192", "--variants"), "relaxed of bt4096"),
    ],
)
def test_a_name_that_does_not_fit_is_told_what_does(tmp_path, asked, said):
    """A variant given as a server, an unknown variant, a server without variants: what to type instead."""
    worlds.write(tmp_path, worlds.planted(2, slow_from=9, hungry_from=9), worlds.SUITE + VARIANTS)

    done = worlds.bisect("probe", "b00", *COMMON[:4], *asked, cwd=tmp_path)

    assert done.returncode == 2
    assert said in done.stderr


PARTS = """
schema: 1
base: {gpus: none, args: [--max-model-len=32768, --max-num-seqs=4]}
deadlines: {boot: 5s, request: 10s, stop: 10s}
servers:
  plain: {args+: [--max-num-batched-tokens=4096]}
  other: {args+: [--max-num-batched-tokens=8192]}
scenarios:
  idle:  {on: plain, kind: idle-memory, samples: 2, interval: 50ms}
  boot:  {on: plain, kind: startup}
  lens:  {on: plain, kind: ladder, prompt_tokens: [1000, 4000], concurrency: 2, reps: 1}
  check: {on: plain, kind: command, run: "echo one; echo not good; exit 3"}
  score: {on: plain, kind: command, run: "echo 61.5%", prints: {name: gsm8k, unit: "%", compare: level}}
  short: {on: other, kind: prefill, prompt_tokens: 2000, reps: 1}
targets:
  check: {metric: check.passed, worse: lower}
variants:
  chunks:  {of: plain, set_args: {--max-num-batched-tokens: 2048}}
  refused: {of: plain, args+: [--no-such-flag=1]}
"""


def test_a_finished_probe_is_shown_again_as_it_was(tmp_path):
    """`report` and `status` repeat what `probe` printed and its exit code, in every format; nothing is asked to go on."""
    worlds.write(tmp_path, worlds.planted(2, slow_from=9, hungry_from=9), PARTS)

    done = worlds.bisect("probe", "b01", *COMMON[:4], "--variant", "refused", "--name", "pa", cwd=tmp_path)

    # a variant that this build refuses is no failure of the build; `other` was not asked for
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report: results/pa/report.md" in done.stdout
    assert "b01 on other" not in done.stdout
    for needed in (
        "b01 on plain: measured\n",
        "missing: no card of this server can be read on this host",
        "missing: the log does not state load_s",
        "    exit code 3; last line: 'not good'; its output: starts/0001/check.output.log",
        "    gsm8k = 61.5 %",
        "t1000.prefill_tok_s = ",
        " s over 2 requests, counted [4000, 4000]",
        "kv_pool_block_tokens: 16",
        "b01 on refused: failed (unknown_flag)",
        "  could not be measured: unknown_flag: unrecognized arguments: --no-such-flag=1",
        "2 starts, 2 timed reps (0 invalid), 1 build, ",
    ):
        assert needed in done.stdout
    assert "one start each" not in done.stdout  # nothing was moved: there is no table
    assert "C=2 warm-up\n" in done.stderr
    assert "lens 1,000 tokens C=2 rep 1/1: " in done.stderr

    shown = worlds.bisect("report", "pa", cwd=tmp_path)
    assert done.stdout.partition("\nreport: ")[0] in shown.stdout
    pasted = worlds.bisect("report", "pa", "-f", "markdown", cwd=tmp_path).stdout
    assert pasted == (tmp_path / "results/pa/report.md").read_text()
    assert "| check.passed | 0 |" in pasted
    assert "b00" not in pasted
    for asked in (("report", "pa", "-f", "json"), ("status", "pa", "--json")):
        document = json.loads(worlds.bisect(*asked, cwd=tmp_path).stdout)
        assert (document["exit_code"], document["reason"]) == (0, "measured")
        assert not {"next", "starts_left"} & document.keys()
        assert [build["name"] for build in document["builds"]] == ["b01"]
    again = worlds.bisect("probe", "b01", *COMMON[:4], "--name", "pa", cwd=tmp_path)
    assert again.returncode == 2
    assert "bisect resume" not in again.stderr
    assert "bisect report pa" in again.stderr


def test_a_probe_that_cannot_go_on_shows_what_it_measured(tmp_path):
    """A command that cannot be run ends it with exit 20; what was measured before is printed, saved, and in the JSON."""
    broken = PARTS.replace('"echo 61.5%"', '"exit 127"')
    worlds.write(tmp_path, worlds.planted(2, slow_from=9, hungry_from=9), broken)
    call = ("probe", "b00", *COMMON[:4], "--server", "plain")

    done = worlds.bisect(*call, "--name", "pa", cwd=tmp_path)

    assert done.returncode == 20, done.stdout + done.stderr
    assert "t1000.prefill_tok_s = " in done.stdout
    assert "cannot be run" in done.stderr
    assert "t1000.prefill_tok_s" in (tmp_path / "results/pa/report.md").read_text()
    shown = worlds.bisect("status", "pa", "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["exit_code"] == 20

    in_json = json.loads(worlds.bisect(*call, "--json", cwd=tmp_path).stdout)

    assert (in_json["exit_code"], in_json["reason"]) == (20, "environment")
    found = {m["scenario"]: m["metrics"] for m in in_json["builds"][0]["starts"][0]["measurements"]}
    assert "t1000.prefill_tok_s" in found["lens"]


def test_a_card_that_does_not_come_back_is_named_with_its_process(tmp_path):
    """Memory stays held after the stop: the start says on which card, how much, by whom, in the record too."""
    worlds.write(tmp_path, worlds.planted(2, slow_from=9, hungry_from=9))
    running = begin(tmp_path, "probe", "b00", *COMMON, "--json")
    when(tmp_path, "start_ready")
    (folder,) = tmp_path.glob("results/*/standin")
    events.plant(folder, leftover=True)

    out, err = running.communicate(timeout=100)

    assert running.returncode == 0, err
    assert "after the stop GPU 0 has" in err
    (start,) = json.loads(out)["builds"][0]["starts"]
    first, second = start["facts"]["memory_not_back"]
    assert "MiB less than when the run began; on it: pid " in first
    assert second.startswith("GPU 1 has")
    assert "memory_back_s" not in start["facts"]


def test_a_host_that_changes_in_a_run_ends_it(tmp_path):
    """Somebody lowers the power limit between two starts: exit 20, both values named; put back, the run goes on."""
    suite = worlds.SUITE.replace("oom:   {on: bt8192", "oom:   {on: bt4096").replace(
        "[[8000, 1], [8000, 2]]", "[[8000, 1]]"
    )
    worlds.write(tmp_path, worlds.planted(3, slow_from=1, hungry_from=9), suite)
    running = begin(tmp_path, "run", "--images", "images.yaml", "--suite", "suite.yaml")
    when(tmp_path, "start_ready")
    (folder,) = tmp_path.glob("results/*/standin")
    planted = events.plant(folder, power_limit_w=250.0)

    _, err = running.communicate(timeout=120)

    assert running.returncode == 20, err
    assert "GPU 0 power limit 300 W then, 250 W now" in err
    refused = worlds.bisect("resume", cwd=tmp_path)
    assert refused.returncode == 2
    assert "250 W now" in refused.stderr
    events.clear(folder, planted)
    resumed = worlds.bisect("resume", cwd=tmp_path)
    assert "long-prefill: CONFIRMED" in resumed.stdout, resumed.stderr
    kept = [json.loads(line) for line in next(tmp_path.glob("results/*/events.jsonl")).read_text().splitlines()]
    prints = {event["host_fingerprint"] for event in kept if event["event"] == "start_intended"}
    assert len(prints) == 1
    assert all(prints)
