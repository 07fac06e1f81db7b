"""`oom-probe`: a ladder of lengths and concurrencies; does the server live through it?

A healthy boot proves nothing: with a pinned KV cache vLLM skips memory profiling and dies on the first real request.
"""

from __future__ import annotations

from typing import Any

from imagebisect.domain import Measurement, OomProbe
from imagebisect.measure.context import Context
from imagebisect.measure.load import Client, Round, run
from imagebisect.measure.rounds import DeadServer, Rounds
from imagebisect.outcome import Cause
from imagebisect.verdict import DIED, SURVIVED


def measure(scenario: OomProbe, context: Context) -> Measurement:
    """`survived` is 1 or 0; a death that is no OOM gives the failure and no value."""
    metrics: dict[str, float] = {}
    widest = max(concurrency for _, concurrency in scenario.ladder)
    samples: dict[str, Any] = {}

    async def work() -> Measurement:
        async with Client(context.url, endpoint=context.endpoint, widest=widest) as client:
            rounds = Rounds(context, client, scenario=scenario.name, widest=widest)
            failure = None
            rung = 0
            try:
                for repeat in range(scenario.repeats):
                    for tokens, concurrency in scenario.ladder:
                        rung += 1
                        samples["rung"] = {
                            "number": rung,
                            "prompt_tokens": tokens,
                            "concurrency": concurrency,
                            "repeat": repeat + 1,
                        }
                        await _climb(rounds, tokens, concurrency, repeat)
                metrics["survived"] = SURVIVED
            except DeadServer as dead:
                failure = dead.failure
                samples["died_at"] = samples.pop("rung")
                if failure.cause == Cause.OOM_AT_REQUEST:
                    metrics["survived"] = DIED
            free = [rep.min_free_mib for rep in rounds.reps if rep.min_free_mib is not None]
            if free:
                metrics["min_free_mib"] = min(free)
            samples.pop("rung", None)
            return Measurement(
                scenario=scenario.name, metrics=metrics, reps=tuple(rounds.reps), samples=samples, failure=failure
            )

    return run(work)


async def _climb(rounds: Rounds, tokens: int, concurrency: int, repeat: int) -> None:
    """One rung: whether it is answered counts, not how fast, so a tainted rep is as good as a clean one."""

    def tok_s(done: Round) -> float:
        return tokens * concurrency / done.seconds

    await rounds.once(concurrency=concurrency, prompt_tokens=tokens, rep=repeat + 1, value=tok_s, unit="tok/s")
