"""`decode`: short prompts, many output tokens, at each concurrency."""

from __future__ import annotations

from statistics import median

from imagebisect.domain import Decode, Measurement, Rep
from imagebisect.measure.context import Context
from imagebisect.measure.load import Client, Round, run
from imagebisect.measure.rounds import DeadServer, Rounds, middle


def output_token_s(rep: Rep) -> float:
    """Seconds per output token after the first: the requests' mean time less the server's mean time to the first token.

    Where the build has no such metric the whole time counts, which the prompt's few tokens make hardly longer.
    """
    first = (rep.server_ttft_s or 0.0) / rep.concurrency
    mean = sum(rep.request_s) / len(rep.request_s)
    return max(mean - first, 0.0) / max(rep.output_tokens - 1, 1)


def measure(scenario: Decode, context: Context) -> Measurement:
    """Output tokens of all requests over the makespan (tok/s), and seconds per output token, for each concurrency."""
    metrics: dict[str, float] = {}
    widest = max(scenario.concurrency)

    def tok_s(done: Round) -> float:
        return sum(answer.completion_tokens or 0 for answer in done.answers) / done.seconds

    async def work() -> Measurement:
        async with Client(context.url, endpoint=context.endpoint, widest=widest) as client:
            rounds = Rounds(context, client, scenario=scenario.name, widest=widest)
            failure = None
            try:
                for concurrency in scenario.concurrency:
                    await rounds.warm_up(
                        concurrency=concurrency,
                        prompt_tokens=scenario.prompt_tokens,
                        output_tokens=min(scenario.output_tokens, 16),
                    )
                    valid = await rounds.timed(
                        concurrency=concurrency,
                        prompt_tokens=scenario.prompt_tokens,
                        output_tokens=scenario.output_tokens,
                        reps=scenario.reps,
                        value=tok_s,
                        unit="tok/s",
                    )
                    metrics[f"c{concurrency}.decode_tok_s"] = middle(valid)
                    metrics[f"c{concurrency}.output_token_s"] = median(output_token_s(rep) for rep in valid)
            except DeadServer as dead:
                failure = dead.failure
            return Measurement(scenario=scenario.name, metrics=metrics, reps=tuple(rounds.reps), failure=failure)

    return run(work)
