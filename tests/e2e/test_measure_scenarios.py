"""Scenarios against the stand-in server: numbers come out right, and every way to die is named."""

from __future__ import annotations

import threading

import pytest

import started
from imagebisect import measure
from imagebisect.errors import Interrupted
from imagebisect.interrupt import StopFlag
from imagebisect.outcome import Cause
from imagebisect.scenario import Decode, IdleMemory, OomProbe, Prefill


def counted(measurement):
    """The reps that count."""
    return [rep for rep in measurement.reps if not rep.warmup and rep.invalid is None]


@pytest.mark.alone
def test_prefill_counts_exactly_and_warms_up_first(tmp_path):
    """Known speed in, known speed out, at C=1 and C=2; no cache hit, exact counts, warm-ups kept but not counted."""
    with started.context(tmp_path, {"prefill_tok_s": 20000, "noise": 0}) as context:
        found = measure.run(Prefill(name="p", on="s", prompt_tokens=10000, concurrency=(1, 2), reps=2), context)

    assert found.failure is None
    assert found.metrics["c1.prefill_tok_s"] == pytest.approx(20000, rel=0.15)
    assert found.metrics["c2.prefill_tok_s"] == pytest.approx(20000, rel=0.15)
    assert [(rep.concurrency, rep.warmup, rep.prompt_tokens) for rep in found.reps] == [
        (1, True, 4096 + 10000 % 4096),
        (1, False, 10000),
        (1, False, 10000),
        (2, True, 4096 + 10000 % 4096),
        (2, False, 10000),
        (2, False, 10000),
    ]
    for rep in counted(found):
        assert rep.usage_prompt_tokens == (10000,) * rep.concurrency
        assert rep.cache_hit_tokens == 0
        assert rep.server_prefill_s == pytest.approx(rep.seconds, rel=0.2)
    assert [event.note for event in context.progress.events[:2]] == ["warm-up", ""]


def test_idle_memory_is_what_the_build_takes_besides_the_pool(tmp_path):
    """1,178 MiB more in a build are 1,178 MiB more in the metric, whatever the pool is."""
    idle = IdleMemory(name="i", on="s", samples=2, interval_s=0.05)
    with started.context(tmp_path / "a") as context:
        lean = measure.run(idle, context)
    with started.context(tmp_path / "b", {"overhead_mib": 1000 + 1178}) as context:
        fat = measure.run(idle, context)

    assert lean.metrics["kv_pool_mib"] == 4096
    assert fat.metrics["non_kv_memory_mib"] - lean.metrics["non_kv_memory_mib"] == pytest.approx(1178, abs=1)
    assert lean.samples["baseline_source"] == "nvidia-smi"
    assert len(lean.samples["cards"]) == 2


def test_without_a_first_look_the_logs_own_is_taken_and_said(tmp_path):
    """Where cards can only be read inside the container, the baseline is the server's; the record says so."""
    with started.context(tmp_path) as context:
        blind = measure.Context(**{**vars(context), "baseline": ()})
        found = measure.run(IdleMemory(name="i", on="s", samples=1), blind)

    assert found.samples["baseline_source"] == "log"
    assert found.metrics["non_kv_memory_mib"] > 0


@pytest.mark.alone
def test_without_cards_memory_is_absent_and_speed_is_not(tmp_path):
    """`gpus: none`: no memory metric is made up."""
    with started.context(tmp_path, gpus="none") as context:
        idle = measure.run(IdleMemory(name="i", on="s"), context)
        prefill = measure.run(Prefill(name="p", on="s", prompt_tokens=4000, reps=1), context)

    assert "non_kv_memory_mib" not in idle.metrics
    assert "no card" in idle.samples["missing"]
    assert set(prefill.metrics) == {"c1.prefill_tok_s"}


@pytest.mark.alone
def test_decode_gives_combined_speed_and_time_per_token(tmp_path):
    """200 tok/s for each request: 5 ms a token, and twice the speed for two."""
    with started.context(tmp_path, {"decode_tok_s": 200, "noise": 0}) as context:
        found = measure.run(Decode(name="d", on="s", output_tokens=60, concurrency=(1, 2), reps=1), context)

    assert found.failure is None
    assert found.metrics["c1.output_token_s"] == pytest.approx(0.005, rel=0.1)
    assert found.metrics["c1.decode_tok_s"] == pytest.approx(200, rel=0.2)
    assert found.metrics["c2.decode_tok_s"] == pytest.approx(400, rel=0.25)


@pytest.mark.alone
def test_a_server_that_lives_through_the_ladder_survived(tmp_path):
    """Every rung is in the record, with the least free memory seen."""
    with started.context(tmp_path) as context:
        found = measure.run(OomProbe(name="o", on="s", ladder=((4000, 1), (4000, 2)), repeats=2), context)

    assert (found.metrics["survived"], found.failure) == (1.0, None)
    assert len(found.samples["rungs"]) == 4
    assert found.metrics["min_free_mib"] > 0


@pytest.mark.alone
@pytest.mark.parametrize("mask", ["none", "keyerror", "runtimeerror", "enginedead"])
def test_an_oom_under_concurrency_is_found_whatever_masks_it(tmp_path, mask):
    """C=1 passes, C=2 kills the server: not survived, with the numbers, and which request it was."""
    profile = {"oom_at_request_from_tokens": 4000, "oom_from_concurrency": 2, "oom_mask": mask}
    with started.context(tmp_path, profile, batched=8192) as context:
        found = measure.run(OomProbe(name="o", on="s", ladder=((4000, 1), (4000, 2))), context)

    assert found.metrics["survived"] == 0.0
    assert found.failure.cause == Cause.OOM_AT_REQUEST
    assert found.failure.details["asked_mib"] > 0
    assert found.samples["died_at"]["concurrency"] == 2
    assert found.seconds < 15


@pytest.mark.parametrize(
    ("profile", "cause"),
    [
        ({"crash_at_request_from_tokens": 3000}, Cause.CRASH),
        ({"killed_at_request_from_tokens": 3000}, Cause.KILLED),
        ({"refuse_from_tokens": 3000}, Cause.REQUEST_FAILED),
        ({"dies_after_requests": 1}, Cause.UNKNOWN),
    ],
)
def test_another_death_says_nothing_about_memory(tmp_path, profile, cause):
    """A crash, a kill, a refusal: the failure is named and `survived` is left open."""
    with started.context(tmp_path, profile) as context:
        found = measure.run(OomProbe(name="o", on="s", ladder=((4000, 1),)), context)

    assert found.failure.cause == cause
    assert "survived" not in found.metrics


@pytest.mark.alone
def test_a_death_midway_keeps_what_was_measured(tmp_path):
    """C=1 was measured before C=2 killed the server; both are in the result."""
    profile = {"oom_at_request_from_tokens": 8000, "oom_from_concurrency": 2}
    with started.context(tmp_path, profile, batched=8192) as context:
        found = measure.run(Prefill(name="p", on="s", prompt_tokens=8000, concurrency=(1, 2), reps=1), context)

    assert found.metrics["c1.prefill_tok_s"] > 0
    assert "c2.prefill_tok_s" not in found.metrics
    assert found.failure.cause == Cause.OOM_AT_REQUEST
    assert found.reps[-1].invalid


@pytest.mark.alone
def test_no_answer_within_the_deadline_is_stuck(tmp_path):
    """`/health` says 200 and nothing comes: given up at the deadline, not before and not much after."""
    with started.context(tmp_path, {"stuck_from_tokens": 3000}, request_s=1.0) as context:
        found = measure.run(Prefill(name="p", on="s", prompt_tokens=4000, reps=1), context)

    assert found.failure.cause == Cause.STUCK
    assert "no answer within 1 s" in found.failure.message
    assert 1.0 <= found.seconds < 5


def test_wrong_counts_are_no_measurement(tmp_path):
    """The server counts other tokens than were sent: invalid, tried three times, no number."""
    with started.context(tmp_path, {"wrong_usage": -7, "prefill_tok_s": 200000}) as context:
        found = measure.run(Prefill(name="p", on="s", prompt_tokens=4000, reps=3), context)

    assert found.failure.cause == Cause.INVALID_MEASUREMENT
    assert "c1.prefill_tok_s" not in found.metrics
    invalid = [rep.invalid for rep in found.reps if not rep.warmup]
    assert len(invalid) == 3
    assert all("asked 4000 prompt tokens, the server counted 3993" in reason for reason in invalid)


@pytest.mark.alone
def test_a_rep_that_compiled_is_repeated(tmp_path):
    """The full length compiles on its first use: that rep is marked, taken again, and slows no number."""
    with started.context(tmp_path, {"jit_penalty_s": 0.5, "noise": 0}) as context:
        found = measure.run(Prefill(name="p", on="s", prompt_tokens=10000, reps=1), context)

    first, second = [rep for rep in found.reps if not rep.warmup]
    assert "JIT compilation" in first.invalid
    assert first.marks
    assert second.invalid is None
    assert second.seconds < first.seconds - 0.3
    assert found.metrics["c1.prefill_tok_s"] == second.value


def test_a_stop_ends_a_round_at_once(tmp_path):
    """Ctrl-C does not wait for a request of minutes."""
    stop = StopFlag()
    with started.context(tmp_path, {"stuck_from_tokens": 3000}, request_s=60.0, stop=stop) as context:
        timer = threading.Timer(0.5, stop.set)
        timer.start()
        with pytest.raises(Interrupted):
            measure.run(Prefill(name="p", on="s", prompt_tokens=4000, reps=1), context)
        timer.join()


@pytest.mark.alone
def test_two_scenarios_of_one_start_share_no_prefix(tmp_path):
    """The same lengths again, under other names: no prompt is ever sent twice."""
    with started.context(tmp_path) as context:
        for name in ("first", "second"):
            found = measure.run(Prefill(name=name, on="s", prompt_tokens=4000, concurrency=(1, 2), reps=1), context)
            assert found.failure is None
            assert all(rep.cache_hit_tokens == 0 for rep in found.reps)


@pytest.mark.alone
def test_a_chat_endpoint_is_measured_by_the_servers_own_count(tmp_path):
    """Chat takes words, not ids: what the server counted is what the speed is made of."""
    with started.context(tmp_path, {"prefill_tok_s": 20000, "noise": 0}) as context:
        chat = measure.Context(**{**vars(context), "endpoint": "chat"})
        found = measure.run(Prefill(name="p", on="s", prompt_tokens=4000, concurrency=(2,), reps=1), chat)

    assert found.failure is None, found
    rep = counted(found)[0]
    assert len(rep.usage_prompt_tokens) == 2
    assert rep.value == pytest.approx(sum(rep.usage_prompt_tokens) / rep.seconds)
    assert rep.cache_hit_tokens == 0
