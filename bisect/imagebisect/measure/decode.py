"""Decode: short prompts, many output tokens, at each concurrency."""

from __future__ import annotations

import statistics
from dataclasses import replace

from imagebisect.domain import Measurement
from imagebisect.measure.context import Context
from imagebisect.measure.load import Round
from imagebisect.measure.rounds import RoundFailedError, Rounds, Taken
from imagebisect.measure.validity import Shape
from imagebisect.scenario import Decode

WARMUP_OUTPUT_TOKENS = 8
"""Enough to compile what a decode step of this batch size needs."""


def output_tok_s(done: Round, shape: Shape) -> float:
    """Output tokens of all requests over the makespan, tok/s; the short prompts' prefill is in it."""
    tokens = sum(answer.completion_tokens or shape.output_tokens for answer in done.answers)
    return tokens / done.seconds


def output_token_s(taken: Taken, shape: Shape) -> tuple[float, str]:
    """Seconds per output token after the first, and whose clock says so.

    The server's own decode time if it has one, else its end-to-end time less the time to the first token; a build
    with neither gives the makespan over the tokens, which holds the prefill too.
    """
    after_first = shape.concurrency * max(1, shape.output_tokens - 1)
    counted = taken.counted
    if counted.decode_s:
        return counted.decode_s / after_first, "server decode time"
    if counted.e2e_s is not None and counted.ttft_s is not None and counted.e2e_s > counted.ttft_s:
        return (counted.e2e_s - counted.ttft_s) / after_first, "server end-to-end less first token"
    return taken.rep.seconds / max(1, shape.output_tokens), "client makespan"


def measure(scenario: Decode, context: Context) -> Measurement:
    """Warm up, then take the reps at each concurrency; a failure keeps what was measured before it."""
    rounds = Rounds(
        context=context,
        scenario=scenario.name,
        shapes=tuple((scenario.prompt_tokens, concurrency) for concurrency in scenario.concurrency),
        reps_wanted=scenario.reps,
        unit="tok/s",
        value=output_tok_s,
    )
    found: dict[str, float] = {}
    clocks: set[str] = set()
    failure = None
    try:
        for concurrency in scenario.concurrency:
            shape = Shape(
                concurrency=concurrency, prompt_tokens=scenario.prompt_tokens, output_tokens=scenario.output_tokens
            )
            few = min(scenario.output_tokens, WARMUP_OUTPUT_TOKENS)
            rounds.take(shape, purpose="warmup", rep=0, sent=replace(shape, output_tokens=few))
            rate, latency = f"c{concurrency}.decode_tok_s", f"c{concurrency}.output_token_s"
            values, per_token = list[float](), list[float]()
            while not context.enough_reps({rate: values, latency: per_token}, scenario.reps):
                taken = rounds.take_valid(shape, rep=len(values))
                seconds, clock = output_token_s(taken, shape)
                values.append(taken.rep.value or 0.0)
                per_token.append(seconds)
                clocks.add(clock)
                found[rate] = statistics.median(values)
                found[latency] = statistics.median(per_token)
    except RoundFailedError as failed:
        failure = failed.failure
    rounds.samples["output_token_clock"] = sorted(clocks)
    return rounds.measurement(found, failure)
