"""`prefill`: prompts of exactly so many tokens, one output token, at each concurrency."""

from __future__ import annotations

from imagebisect.domain import Measurement, Prefill
from imagebisect.measure.context import Context
from imagebisect.measure.load import Client, Round, run
from imagebisect.measure.rounds import DeadServer, Rounds, middle


def measure(scenario: Prefill, context: Context) -> Measurement:
    """Prompt tokens over the makespan (tok/s) for each concurrency, and the least free memory meanwhile (MiB)."""
    metrics: dict[str, float] = {}
    widest = max(scenario.concurrency)

    async def work() -> Measurement:
        async with Client(context.url, endpoint=context.endpoint, widest=widest) as client:
            rounds = Rounds(context, client, scenario=scenario.name, widest=widest)
            failure = None
            try:
                for concurrency in scenario.concurrency:

                    def tok_s(done: Round, together: int = concurrency) -> float:
                        return scenario.prompt_tokens * together / done.seconds

                    await rounds.warm_up(concurrency=concurrency, prompt_tokens=scenario.prompt_tokens)
                    valid = await rounds.timed(
                        concurrency=concurrency,
                        prompt_tokens=scenario.prompt_tokens,
                        output_tokens=1,
                        reps=scenario.reps,
                        value=tok_s,
                        unit="tok/s",
                    )
                    metrics[f"c{concurrency}.prefill_tok_s"] = middle(valid)
            except DeadServer as dead:
                failure = dead.failure
            free = [rep.min_free_mib for rep in rounds.reps if rep.min_free_mib is not None]
            if free:
                metrics["min_free_mib"] = min(free)
            return Measurement(scenario=scenario.name, metrics=metrics, reps=tuple(rounds.reps), failure=failure)

    return run(work)
