"""OOM probe: a ladder of loads; does the server live through it?

There is no warm-up: the first request may be the one that kills it.
"""

from __future__ import annotations

from imagebisect.domain import Measurement
from imagebisect.measure.context import Context
from imagebisect.measure.prefill import prompt_tok_s
from imagebisect.measure.rounds import RoundFailedError, Rounds
from imagebisect.measure.validity import Shape
from imagebisect.outcome import Cause
from imagebisect.scenario import OomProbe


def measure(scenario: OomProbe, context: Context) -> Measurement:
    """Climb the ladder. `survived` is 0.0 only if GPU memory ran out; any other death leaves it unsaid."""
    rounds = Rounds(
        context=context,
        scenario=scenario.name,
        shapes=scenario.ladder,
        reps_wanted=scenario.repeats * len(scenario.ladder),
        unit="tok/s",
        value=prompt_tok_s,
    )
    found: dict[str, float] = {}
    climbed: list[dict[str, object]] = []
    rounds.samples["rungs"] = climbed
    failure = None
    number = 0
    try:
        for repeat in range(scenario.repeats):
            for tokens, concurrency in scenario.ladder:
                rung: dict[str, object] = {"repeat": repeat, "prompt_tokens": tokens, "concurrency": concurrency}
                climbed.append(rung)
                rung["survived"] = False
                shape = Shape(concurrency=concurrency, prompt_tokens=tokens, output_tokens=1)
                rounds.take_valid(shape, purpose="rung", rep=number)
                rung["survived"] = True
                number += 1
        found["survived"] = 1.0
    except RoundFailedError as failed:
        failure = failed.failure
        rounds.samples["died_at"] = {**climbed[-1], "rung": number + 1, "requests": list(failed.answers)}
        if failure.cause in {Cause.OOM_AT_REQUEST, Cause.OOM_AT_START}:
            found["survived"] = 0.0
    if rounds.lowest_free_mib is not None:
        found["min_free_mib"] = rounds.lowest_free_mib
    return rounds.measurement(found, failure)
