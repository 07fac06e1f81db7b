"""Ladder: prefill at several lengths in one start, for effects that grow with length (vllm #48396, #53787)."""

from __future__ import annotations

import statistics
from dataclasses import replace

from imagebisect.domain import Measurement
from imagebisect.measure.context import Context
from imagebisect.measure.prefill import prompt_tok_s, warmup_tokens
from imagebisect.measure.rounds import RoundFailedError, Rounds, chunk_tokens
from imagebisect.measure.validity import Shape
from imagebisect.scenario import Ladder


def measure(scenario: Ladder, context: Context) -> Measurement:
    """Climb from short to long, each length warmed up as prefill does; a failure keeps what was measured before it."""
    rounds = Rounds(
        context=context,
        scenario=scenario.name,
        shapes=tuple((tokens, scenario.concurrency) for tokens in scenario.prompt_tokens),
        reps_wanted=scenario.reps,
        unit="tok/s",
        value=prompt_tok_s,
    )
    found: dict[str, float] = {}
    chunk = chunk_tokens(context)
    warmed: set[int] = set()
    failure = None
    try:
        for tokens in scenario.prompt_tokens:
            short = warmup_tokens(tokens, chunk)
            shape = Shape(concurrency=scenario.concurrency, prompt_tokens=tokens, output_tokens=1)
            if short not in warmed:
                warmed.add(short)
                rounds.take(shape, purpose="warmup", rep=0, sent=replace(shape, prompt_tokens=short))
            name, values = f"t{tokens}.prefill_tok_s", list[float]()
            while not context.enough_reps({name: values}, scenario.reps):
                values.append(rounds.take_valid(shape, rep=len(values)).rep.value or 0.0)
                found[name] = statistics.median(values)
        first, last = (found[f"t{tokens}.prefill_tok_s"] for tokens in (scenario.prompt_tokens[0], tokens))
        found["long_over_short"] = last / first
    except RoundFailedError as failed:
        failure = failed.failure
    if rounds.lowest_free_mib is not None:
        found["min_free_mib"] = rounds.lowest_free_mib
    return rounds.measurement(found, failure)
