"""Why a rep does not count: instruments, each by itself, and never the value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebisect.measure.cards import GpuProcess
from imagebisect.measure.load import Answer, Round
from imagebisect.measure.sampling import Lowest
from imagebisect.measure.validity import (
    CLOCK_REQUEST_S,
    Shape,
    clocks_disagree,
    evidence,
    is_foreign_load,
)
from imagebisect.vllm.metrics import Snapshot


def answered(*seconds, prompt=4000, completion=1):
    """A round whose requests took so long."""
    return Round(
        answers=tuple(
            Answer(status=200, sent=0.0, ended=s, prompt_tokens=prompt, completion_tokens=completion) for s in seconds
        )
    )


SHAPE = Shape(concurrency=1, prompt_tokens=4000, output_tokens=1)


def why(done=None, shape=SHAPE, counted=None, lowest=None, *, idle=True, exact=True):
    """The evidence against a round."""
    return evidence(done or answered(1.0), shape, counted or Snapshot(), lowest or Lowest(), idle=idle, exact=exact)


def test_a_clean_rep_counts_whatever_its_value():
    """Counters that agree, or that the build does not have: no evidence, be it fast or slow."""
    full = Snapshot(succeeded=1, prefix_hits=0, e2e_s=0.99, e2es=1, prefill_s=0.98, prefills=1, queue_s=0.0, running=0)

    assert why() == why(counted=full) == ()
    assert why(answered(3600.0)) == ()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"done": answered(1.0, prompt=3993)}, "asked 4000 prompt tokens, the server counted 3993"),
        ({"done": answered(1.0, prompt=None)}, "asked 4000 prompt tokens, the server counted nothing"),
        ({"done": answered(1.0, completion=3)}, "asked 1 output tokens, got 3"),
        ({"counted": Snapshot(prefix_hits=3984)}, "3984 prompt tokens came from the prefix cache"),
        ({"counted": Snapshot(prefix_hits=0, external_hits=16)}, "16 prompt tokens came from the prefix cache"),
        ({"idle": False}, "another request was running before it began"),
        ({"counted": Snapshot(succeeded=2)}, "2 requests ended, 1 were ours"),
        ({"counted": Snapshot(succeeded=1, running=1)}, "another request was running when it ended"),
        ({"counted": Snapshot(e2e_s=0.5, e2es=1)}, "the clocks disagree: 1.000 s here, 0.500 s on the server"),
        (
            {"lowest": Lowest(new_processes={(1, 42): GpuProcess(index=1, pid=42, used_mib=512.0)})},
            "another process on GPU 1: pid 42, 512 MiB",
        ),
        ({"lowest": Lowest(grown={(0, 7): 300.0})}, "another process on GPU 0: pid 7 grew by 300 MiB"),
        ({"lowest": Lowest(slowdowns={"GPU 0: hardware power brake"})}, "the clocks were slowed: GPU 0: hardware power brake"),
    ],
)  # fmt: skip
def test_each_instrument_speaks_for_itself(how, says):
    """One thing wrong, one reason, in words that a report can quote."""
    assert why(**how) == (says,)


def test_chat_has_no_length_of_ours_to_compare():
    """Where text is sent, the server's count is the truth and no evidence."""
    assert why(answered(1.0, prompt=4321), exact=False) == ()


@pytest.mark.parametrize(("server", "agrees"), [(9.9, True), (4.5, True), (3.0, False), (12.0, False)])
def test_at_concurrency_a_round_lies_between_its_requests_side_by_side_and_in_turn(server, agrees):
    """Four requests in 4 s, 10 s of requests: the server may have taken 10 s side by side or 4 s in turn, no more or less."""
    four = answered(1.0, 2.0, 3.0, 4.0)
    shape = Shape(concurrency=4, prompt_tokens=4000, output_tokens=1)

    assert (clocks_disagree(four, shape, Snapshot(e2e_s=server, e2es=4)) is None) == agrees


def test_a_frontend_that_lets_requests_in_one_by_one_is_the_servers_doing():
    """Recorded with vLLM 0.27.1 on two busy cores: three requests of 0.215 s here, 0.068 s each on the server."""
    three = answered(0.2151, 0.2150, 0.2148)
    shape = Shape(concurrency=3, prompt_tokens=256, output_tokens=64)

    assert clocks_disagree(three, shape, Snapshot(e2e_s=0.2038, e2es=3)) is None


def test_a_wall_clock_that_jumped_is_overruled_by_the_monotonic_one():
    """End-to-end time is on the server's wall clock; queue and prefill are not."""
    jumped = Snapshot(e2e_s=3601.0, e2es=1, queue_s=0.01, prefill_s=0.98, prefills=1)

    assert clocks_disagree(answered(1.0), SHAPE, jumped) is None


def test_counters_of_other_requests_are_no_clock():
    """Sums over more requests than ours, or without their count, say nothing about ours."""
    assert clocks_disagree(answered(1.0), SHAPE, Snapshot(e2e_s=9.0, e2es=3)) is None
    assert clocks_disagree(answered(1.0), SHAPE, Snapshot(e2e_s=9.0)) is None


def test_the_recorded_reps_of_a_real_gpu_agree():
    """H200, 15 requests of 15,500 and 176,425 tokens: 31.56 s on the server, as much here (at C=4 the sum of shares)."""
    c1 = (0.887, 0.375, 0.372, 0.383, 7.391, 7.394, 7.384)
    rounds = tuple(0.366 * position for position in (1, 2, 3, 4)) * 2

    done = answered(*c1, *rounds)
    assert (
        clocks_disagree(
            done, Shape(concurrency=15, prompt_tokens=15500, output_tokens=1), Snapshot(e2e_s=31.56, e2es=15)
        )
        is None
    )


@given(st.floats(0.001, 1000), st.integers(1, 8), st.integers(1, 200_000))
def test_equal_clocks_never_disagree_and_doubled_ones_do(seconds, concurrency, tokens):
    """Whatever the size: the same time is agreement, twice the time plus what parsing may take is not."""
    shape = Shape(concurrency=concurrency, prompt_tokens=tokens, output_tokens=1)
    done = answered(*[seconds] * concurrency)
    total = seconds * concurrency

    assert clocks_disagree(done, shape, Snapshot(e2e_s=total, e2es=concurrency)) is None
    allowed = concurrency * (concurrency + 1) / 2 * (CLOCK_REQUEST_S + tokens * 1e-6)
    far = 2 * total + 2 * allowed
    assert clocks_disagree(done, shape, Snapshot(e2e_s=far, e2es=concurrency)) is not None


def test_foreign_load_is_told_from_an_odd_server():
    """Only where every attempt met a stranger on the cards is the host at fault."""
    stranger = "another process on GPU 0: pid 9, 100 MiB"

    assert is_foreign_load([stranger, f"x; {stranger}", stranger])
    assert not is_foreign_load([stranger, "3 prompt tokens came from the prefix cache", stranger])
    assert not is_foreign_load([])
