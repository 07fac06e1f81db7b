"""`bisect probe` and `bisect run` beside their numbers: variants, facts, cards that do not come back, a host that changes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import worlds
from imagebisect.simulator import events

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


def test_variants_show_what_each_of_them_moved(tmp_path):
    """The pin relaxed by 64 MiB moves the pool and the free memory by 64 MiB, and no speed; it is one table."""
    worlds.write(tmp_path, worlds.planted(2, slow_from=9, hungry_from=9), worlds.SUITE + VARIANTS)
    common = ("--images", "images.yaml", "--suite", "suite.yaml", "--server", "bt4096", "--variants")

    done = worlds.bisect("probe", "b00", *common, "--json", cwd=tmp_path)

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

    shown = worlds.bisect("probe", "b00", *common, cwd=tmp_path)
    assert "relaxed is bt4096 with --kv-cache-memory-bytes -64MiB" in shown.stdout
    assert "idle.kv_pool_mib" in shown.stdout


def test_asking_for_variants_that_are_not_there_is_said(tmp_path):
    """A suite without variants: usage error with what to add."""
    worlds.write(tmp_path, worlds.planted(2, slow_from=9, hungry_from=9))

    done = worlds.bisect("probe", "b00", "--images", "images.yaml", "--suite", "suite.yaml", "--variants", cwd=tmp_path)

    assert done.returncode == 2
    assert "names no variants" in done.stderr


def test_a_card_that_does_not_come_back_is_named_with_its_process(tmp_path):
    """Memory stays held after the stop: the start says on which card, how much, by whom, in the record too."""
    worlds.write(tmp_path, worlds.planted(2, slow_from=9, hungry_from=9))
    common = ("--images", "images.yaml", "--suite", "suite.yaml", "--server", "bt4096")
    running = begin(tmp_path, "probe", "b00", *common, "--json")
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
