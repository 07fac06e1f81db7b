"""Prefill: prompts of an exact length, one output token, at each concurrency."""

from __future__ import annotations

import statistics
from dataclasses import replace

from imagebisect.domain import Measurement
from imagebisect.measure.context import Context
from imagebisect.measure.load import Round
from imagebisect.measure.rounds import RoundFailedError, Rounds, chunk_tokens
from imagebisect.measure.validity import Shape
from imagebisect.scenario import Prefill


def prompt_tok_s(done: Round, shape: Shape) -> float:
    """Prompt tokens over the makespan, tok/s. Where the server says how many there were, that counts."""
    tokens = sum(answer.prompt_tokens or shape.prompt_tokens for answer in done.answers)
    return tokens / done.seconds


def warmup_tokens(prompt_tokens: int, chunk: int) -> int:
    """A length with the same shapes as the prompt's: one full chunk and the remainder, not the whole length."""
    return min(prompt_tokens, chunk + prompt_tokens % chunk)


def measure(scenario: Prefill, context: Context) -> Measurement:
    """Warm up, then take the reps at each concurrency; a failure keeps what was measured before it."""
    rounds = Rounds(
        context=context,
        scenario=scenario.name,
        shapes=tuple((scenario.prompt_tokens, concurrency) for concurrency in scenario.concurrency),
        reps_wanted=scenario.reps,
        unit="tok/s",
        value=prompt_tok_s,
    )
    found: dict[str, float] = {}
    short = warmup_tokens(scenario.prompt_tokens, chunk_tokens(context))
    failure = None
    try:
        for concurrency in scenario.concurrency:
            shape = Shape(concurrency=concurrency, prompt_tokens=scenario.prompt_tokens, output_tokens=1)
            rounds.take(shape, purpose="warmup", rep=0, sent=replace(shape, prompt_tokens=short))
            name, values = f"c{concurrency}.prefill_tok_s", list[float]()
            while not context.enough_reps({name: values}, scenario.reps):
                values.append(rounds.take_valid(shape, rep=len(values)).rep.value or 0.0)
                found[name] = statistics.median(values)
    except RoundFailedError as failed:
        failure = failed.failure
    if rounds.lowest_free_mib is not None:
        found["min_free_mib"] = rounds.lowest_free_mib
    return rounds.measurement(found, failure)
