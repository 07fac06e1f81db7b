"""Reps that must not count: each instrument trips on the real thing, is named, and the rep is taken again."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

import started
import worlds
from imagebisect import measure
from imagebisect.measure import gpu, prompts
from imagebisect.outcome import Cause
from imagebisect.scenario import Command, Growth, IdleMemory, Metric, MetricKind, OomProbe, Prefill
from imagebisect.simulator import events

PREFILL = Prefill(name="p", on="s", prompt_tokens=8000, reps=1)
SLOW = {"prefill_tok_s": 8000, "noise": 0}
"""A second a rep: long enough for something to happen in it."""


def timed_reps(found):
    """The reps after the warm-up."""
    return [rep for rep in found.reps if not rep.warmup]


def ask(context, ids, *, max_tokens=1):
    """Send a request of somebody else's."""
    body = json.dumps({"model": context.model_id, "prompt": ids, "max_tokens": max_tokens}).encode()
    request = urllib.request.Request(f"{context.url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def at_the_first_rep(context, deed):
    """Do something a moment after the warm-up is over, while the first timed rep runs."""

    def wait() -> None:
        deadline = time.monotonic() + 20
        while not context.progress.events and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.3)
        deed()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_late_answer_makes_the_clocks_disagree(tmp_path):
    """A proxy that holds answers back for half a second: both clocks are shown, no number is made of it."""
    with started.context(tmp_path, {"answer_delay_s": 0.5, "prefill_tok_s": 40000}) as context:
        found = measure.run(PREFILL, context)

    assert found.failure.cause == Cause.INVALID_MEASUREMENT
    assert len(timed_reps(found)) == 3
    assert all("the clocks disagree" in rep.invalid for rep in timed_reps(found))
    assert found.metrics.keys() <= {"min_free_mib"}


@pytest.mark.alone
def test_a_prompt_that_was_asked_before_hits_the_cache_and_does_not_count(tmp_path):
    """Somebody sends the very prompt of the first rep beforehand: the hit is counted in tokens, the repeat is clean."""
    with started.context(tmp_path, SLOW) as context:
        made = prompts.Prompts(seed=context.seed, scenario="p", vocab_size=context.vocab_size)
        place = prompts.Place(purpose="rep", concurrency=1, rep=0, attempt=0, slot=0, ordinal=1)
        ask(context, made.ids(place, 8000))
        found = measure.run(PREFILL, context)

    first, second = timed_reps(found)
    assert "prompt tokens came from the prefix cache" in first.invalid
    assert first.cache_hit_tokens > 7000
    assert first.seconds < second.seconds / 2
    assert second.invalid is None
    assert found.metrics["c1.prefill_tok_s"] == pytest.approx(8000, rel=0.1)


@pytest.mark.alone
def test_another_request_in_a_rep_is_noticed(tmp_path):
    """Somebody else uses the server while a rep is timed: the rep says so and is taken again."""
    with started.context(tmp_path, SLOW) as context:
        thread = at_the_first_rep(context, lambda: ask(context, [5] * 900))
        found = measure.run(PREFILL, context)
        thread.join(20)

    first, second = timed_reps(found)
    assert "request" in first.invalid
    assert second.invalid is None


@pytest.mark.alone
def test_a_newcomer_on_the_cards_spoils_the_rep_and_then_the_host(tmp_path):
    """A foreign process comes while a rep runs and stays: every attempt names it, and the host is at fault."""
    with started.context(tmp_path, SLOW) as context:
        thread = at_the_first_rep(context, lambda: events.plant(tmp_path / "standin", foreign={1: 300.0}))
        found = measure.run(PREFILL, context)
        thread.join(20)

    assert found.failure.cause == Cause.GPU_BUSY
    assert "another process on GPU 1: pid 4100000, 300 MiB" in found.failure.message


@pytest.mark.alone
def test_a_newcomer_that_leaves_spoils_only_its_rep(tmp_path):
    """It was there for one rep: that one is repeated, and the repeat counts."""
    with started.context(tmp_path, {**SLOW, "prefill_tok_s": 4000}) as context:
        plant = lambda: events.plant(tmp_path / "standin", foreign={0: 300.0}, for_s=1.8)  # noqa: E731
        thread = at_the_first_rep(context, plant)
        found = measure.run(PREFILL, context)
        thread.join(20)

    reps = timed_reps(found)
    assert "another process on GPU 0" in reps[0].invalid
    assert reps[-1].invalid is None
    assert found.failure is None


@pytest.mark.alone
def test_heat_spoils_a_rep_and_the_power_cap_does_not(tmp_path):
    """Thermal slowdown (0x40) makes a rep invalid; the ordinary software power cap (0x4) is how cards run."""
    with started.context(tmp_path / "hot", SLOW) as context:
        events.plant(tmp_path / "hot" / "standin", slowdown_bits={1: 0x40}, for_s=2.2)
        hot = measure.run(PREFILL, context)
    with started.context(tmp_path / "capped", SLOW) as context:
        events.plant(tmp_path / "capped" / "standin", slowdown_bits=0x4)
        capped = measure.run(PREFILL, context)

    assert "the clocks were slowed: GPU 1: hardware thermal slowdown" in timed_reps(hot)[0].invalid
    assert timed_reps(hot)[-1].invalid is None
    assert [rep.invalid for rep in timed_reps(capped)] == [None]
    assert timed_reps(capped)[0].max_power_w > 0
    assert timed_reps(capped)[0].min_sm_clock_mhz > 0


def test_slow_is_told_from_stuck(tmp_path):
    """No answer in time: a server whose KV cache still fills is slow, one where nothing moves is stuck."""
    with started.context(tmp_path / "slow", {"prefill_tok_s": 400}, request_s=5.0) as context:
        slow = measure.run(PREFILL, context)
    with started.context(tmp_path / "stuck", {"stuck_from_tokens": 8000}, request_s=5.0) as context:
        stuck = measure.run(PREFILL, context)

    assert slow.failure.cause == Cause.REQUEST_TIMEOUT
    assert "still making progress" in slow.failure.message
    assert stuck.failure.cause == Cause.STUCK
    assert "/health says 200; no progress in its metrics for" in stuck.failure.message


@pytest.mark.alone
def test_an_oom_beside_a_newcomer_says_nothing_of_the_build(tmp_path):
    """Somebody takes memory while the probe runs and the server runs out: the host is at fault, survival is left open."""
    probe = OomProbe(name="o", on="s", ladder=((8000, 1), (8000, 2)))
    dying = {**SLOW, "oom_at_request_from_tokens": 8000, "oom_from_concurrency": 2}
    with started.context(tmp_path, dying, batched=8192) as context:
        timer = threading.Timer(0.3, lambda: events.plant(tmp_path / "standin", foreign={0: 300.0}))
        timer.start()
        found = measure.run(probe, context)
        timer.join()

    assert found.failure.cause == Cause.GPU_BUSY
    assert "another process on GPU 0" in found.failure.message
    assert "survived" not in found.metrics


def test_a_newcomer_while_memory_is_read_is_the_hosts_fault(tmp_path):
    """Idle memory and growth must not be charged with what somebody else took."""
    idle = IdleMemory(name="i", on="s", samples=3, interval_s=0.2)
    growth = Growth(name="g", on="s", prompt_tokens=1000, output_tokens=2, rounds=2, samples=2, interval_s=0.1)
    with started.context(tmp_path, SLOW) as context:
        events.plant(tmp_path / "standin", foreign={0: 1500.0})
        read = measure.run(idle, context)
        grown = measure.run(growth, context)

    assert read.failure.cause == grown.failure.cause == Cause.GPU_BUSY
    assert "non_kv_memory_mib" not in read.metrics
    assert "growth_mib" not in grown.metrics


def test_a_number_that_a_command_prints_is_spoiled_by_heat(tmp_path):
    """A throughput that a program of the user's measured counts no more than a rep of ours would."""
    timed = Command(
        name="c", on="s", run=("sh", "-c", "sleep 0.8; echo 5"), prints=Metric(name="v", unit="", kind=MetricKind.RATIO)
    )
    with started.context(tmp_path) as context:
        events.plant(tmp_path / "standin", slowdown_bits=0x40)
        found = measure.run(timed, context)

    assert found.failure.cause == Cause.INVALID_MEASUREMENT
    assert len(found.samples["invalid"]) == 3
    assert found.metrics == {}


def test_a_driver_that_hangs_vouches_for_nothing(tmp_path):
    """nvidia-smi stopped answering: what the cards went through is not known, and that is said."""
    with started.context(tmp_path, SLOW) as context:
        probe = gpu.SmiProbe((0, 1), argv=gpu.standin_argv(tmp_path), interval_s=0.1)
        probe.command = lambda argv: gpu.run_here(argv, timeout_s=60.0)
        slow = dataclasses.replace(context, probe=probe, known_processes=None)
        thread = at_the_first_rep(context, lambda: events.plant(tmp_path / "standin", wedged_s=30))
        found = measure.run(PREFILL, slow)
        thread.join(20)

    assert any("the GPU driver did not answer meanwhile" in (rep.invalid or "") for rep in timed_reps(found))
    assert found.metrics.keys() <= {"min_free_mib"}


def test_who_comes_while_a_server_starts_is_the_hosts_fault(tmp_path):
    """Memory that somebody took during the boot is not the build's: the probe ends with exit 20 and names the process."""
    suite = worlds.SUITE.replace(
        "oom:   {on: bt8192, kind: oom-probe, ladder: [[8000, 1], [8000, 2]]}",
        "oom: {on: bt4096, kind: oom-probe, ladder: [[8000, 1]]}",
    )
    worlds.write(tmp_path, [worlds.profile(boot_s=3.0)] * 2, suite)
    running = subprocess.Popen(
        [sys.executable, "-m", "imagebisect", "probe", "b00", "--images", "images.yaml", "--suite", "suite.yaml", "--server", "bt4096"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("results/*/standin/server-*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    events.plant(next(tmp_path.glob("results/*/standin")), foreign={0: 1500.0})

    _, err = running.communicate(timeout=100)

    assert running.returncode == 20, err
    assert "while the server started, pid 4100000 (python3) came onto GPU 0 with 1500 MiB" in err
