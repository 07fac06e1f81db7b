"""Reps: rounds with both clocks, the evidence that one is valid, and what is to be done when it is not.

A rep is invalid on the instruments' evidence (wrong count, cache hit, somebody else's request, compilation,
throttling), never for its value; it is then repeated, at most twice.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from imagebisect.domain import Failure, Phase, Rep
from imagebisect.measure import gpu
from imagebisect.measure.context import Context
from imagebisect.measure.load import Client, Round
from imagebisect.measure.prompts import Place, Prompts, body
from imagebisect.outcome import Cause
from imagebisect.progress import RepEnded
from imagebisect.vllm import failures, logmarks, metrics
from imagebisect.vllm.aftermath import wait_for_end
from imagebisect.vllm.logtail import LogTail

REPEATS = 2
"""How often an invalid rep is repeated."""

CLOCKS_APART = 0.25
"""At C=1 the server's prefill may fall short of the client's time by this share before the rep is suspect..."""

CLOCKS_SLACK_S = 0.25
"""...and by this much in any case: HTTP, and encoding of a long answer."""

Value = Callable[[Round], float]
"""A round's value in the metric's unit."""


class DeadServer(Exception):
    """A round failed: no more of this scenario can be measured. Carries the typed failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Rounds:
    """All rounds of one scenario in one start."""

    def __init__(self, context: Context, client: Client, *, scenario: str, widest: int) -> None:
        self.context = context
        self.client = client
        self.scenario = scenario
        self.prompts = Prompts(seed=context.seed, scenario=scenario, vocab_size=context.vocab_size, widest=widest)
        self.reps: list[Rep] = []
        self.widest = widest
        self._number = 0
        self._seen: list[str] = []
        self._tail = LogTail(context.log, from_end=True)

    def _guard(self) -> str | None:
        self.context.stop.check()
        if self.context.running.exit_state() is not None:
            return "the server ended"
        self._seen += self._tail.new_lines()
        return next((line for line in self._seen if failures.is_fatal(line)), None)

    async def _round(
        self, *, purpose: str, concurrency: int, rep: int, attempt: int, prompt_tokens: int, output_tokens: int
    ) -> tuple[Round, Rep]:
        """One round, with metrics and log lines around it; not judged yet."""
        bodies = [
            body(
                self.context.model_id,
                self.prompts.ids(
                    Place(
                        purpose=purpose,
                        concurrency=concurrency,
                        rep=rep,
                        attempt=attempt,
                        slot=slot,
                        round_number=self._number,
                    ),
                    prompt_tokens,
                ),
                max_tokens=output_tokens,
                endpoint=self.context.endpoint,
            )
            for slot in range(concurrency)
        ]
        self._number += 1
        self._seen = []
        self._tail.new_lines()
        text = await self.client.metrics()
        before = metrics.parse(text) if text is not None else None
        gc.collect()
        gc.disable()
        try:
            with gpu.sampling(self.context.probe) as lowest:
                done = await self.client.round(bodies, deadline_s=self.context.request_s, guard=self._guard)
        finally:
            gc.enable()
        text = await self.client.metrics() if done.ok else None
        counted = metrics.delta(before, metrics.parse(text) if text is not None else None)
        self._seen += self._tail.new_lines()
        marks = logmarks.marks(self._seen)
        usage = tuple(answer.prompt_tokens for answer in done.answers)
        entry = Rep(
            index=rep,
            concurrency=concurrency,
            warmup=purpose == "warm-up",
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            seconds=done.seconds,
            request_s=tuple(answer.seconds for answer in done.answers),
            usage_prompt_tokens=usage,
            usage_completion_tokens=tuple(answer.completion_tokens for answer in done.answers),
            server_prefill_s=counted.prefill_s,
            server_queue_s=counted.queue_s,
            server_ttft_s=counted.ttft_s,
            cache_hit_tokens=None if counted.prefix_hits is None else int(counted.prefix_hits),
            marks=marks,
            min_free_mib=lowest.worst_mib,
            invalid=self._invalid(done, counted, concurrency, prompt_tokens, marks, tuple(lowest.slowdowns)),
        )
        return done, entry

    def _invalid(
        self,
        done: Round,
        counted: metrics.Snapshot,
        concurrency: int,
        prompt_tokens: int,
        marks: tuple[str, ...],
        slowdowns: tuple[str, ...],
    ) -> str | None:
        """What the instruments hold against a rep, None when nothing."""
        if not done.ok:
            return "a request failed"
        usage = [answer.prompt_tokens for answer in done.answers]
        if self.context.endpoint == "completions" and any(count != prompt_tokens for count in usage):
            return f"usage.prompt_tokens is {usage}, {prompt_tokens} were sent"
        if counted.prefix_hits:
            return f"{counted.prefix_hits:.0f} tokens came out of the prefix cache"
        if counted.succeeded is not None and counted.succeeded != concurrency:
            return f"{counted.succeeded:.0f} requests ended meanwhile, {concurrency} were ours"
        if counted.running or counted.waiting:
            return "another request was running"
        if marks:
            return marks[0]
        if slowdowns:
            return f"clocks were slowed down: {', '.join(sorted(slowdowns))}"
        if concurrency == 1 and counted.ttft_s is not None and counted.prefills:
            apart = done.seconds - (counted.e2e_s if counted.e2e_s is not None else counted.ttft_s)
            if apart > CLOCKS_SLACK_S + CLOCKS_APART * done.seconds:
                return f"the client waited {apart:.2f} s longer than the server took"
        return None

    def _dead(self, done: Round) -> DeadServer:
        """Why a round failed, from the whole log, once the server had time to end."""
        answered = next((a for a in done.answers if a.status not in (200, None)), None)
        observed = done.gave_up or (
            f"HTTP {answered.status}: {answered.text}"
            if answered
            else next((a.text for a in done.answers if a.text), "")
        )
        refused = answered is not None and answered.status is not None and 400 <= answered.status < 500
        if refused and self.context.running.exit_state() is None:
            return DeadServer(Failure(cause=Cause.REQUEST_FAILED, phase=Phase.REQUEST, message=observed[:500]))
        if done.gave_up == "deadline" and self.context.running.exit_state() is None:
            message = f"no answer within {self.context.request_s:.0f} s, and /health still says that it lives"
            return DeadServer(Failure(cause=Cause.STUCK, phase=Phase.REQUEST, message=message))
        state = wait_for_end(self.context.running, self.context.log, self.context.stop)
        failure = failures.classify(self.context.log, phase=Phase.REQUEST, exit_state=state, observed=observed)
        return DeadServer(failure)

    async def warm_up(self, *, concurrency: int, prompt_tokens: int, output_tokens: int = 1) -> None:
        """Run the shapes once, uncounted: a full chunk and the remainder, so that kernels are compiled.

        A warm-up covers shapes, not lengths: at full length it would cost minutes on a small card.
        """
        chunk = self.context.chunk_tokens
        tokens = prompt_tokens if prompt_tokens <= 2 * chunk else chunk + (prompt_tokens % chunk or chunk)
        done, rep = await self._round(
            purpose="warm-up",
            concurrency=concurrency,
            rep=0,
            attempt=0,
            prompt_tokens=tokens,
            output_tokens=output_tokens,
        )
        self.reps.append(rep)
        self._tell(rep, reps=0, unit="", note="warm-up")
        if not done.ok:
            raise self._dead(done)

    async def once(self, *, concurrency: int, prompt_tokens: int, rep: int, value: Value, unit: str) -> None:
        """One round that only has to be answered. Raises DeadServer when it is not."""
        done, entry = await self._round(
            purpose="rep",
            concurrency=concurrency,
            rep=rep,
            attempt=0,
            prompt_tokens=prompt_tokens,
            output_tokens=1,
        )
        entry = replace(entry, value=value(done)) if done.ok else entry
        self.reps.append(entry)
        self._tell(entry, reps=rep, unit=unit, note=entry.invalid or "")
        if not done.ok:
            raise self._dead(done)

    async def timed(
        self, *, concurrency: int, prompt_tokens: int, output_tokens: int, reps: int, value: Value, unit: str
    ) -> list[Rep]:
        """The valid reps of one concurrency. Raises DeadServer when a round fails or no rep is valid."""
        valid: list[Rep] = []
        for index in range(1, reps + 1):
            for attempt in range(REPEATS + 1):
                done, rep = await self._round(
                    purpose="rep",
                    concurrency=concurrency,
                    rep=index,
                    attempt=attempt,
                    prompt_tokens=prompt_tokens,
                    output_tokens=output_tokens,
                )
                rep = replace(rep, value=value(done)) if done.ok else rep
                self.reps.append(rep)
                self._tell(rep, reps=reps, unit=unit, note=f"invalid: {rep.invalid}" if rep.invalid else "")
                if not done.ok:
                    raise self._dead(done)
                if rep.invalid is None:
                    valid.append(rep)
                    break
                await asyncio.sleep(0)
        if not valid:
            why = next((rep.invalid for rep in reversed(self.reps) if rep.invalid), "unknown")
            message = f"none of {reps} reps at C={concurrency} was valid: {why}"
            raise DeadServer(Failure(cause=Cause.INVALID_MEASUREMENT, phase=Phase.REQUEST, message=message))
        return valid

    def _tell(self, rep: Rep, *, reps: int, unit: str, note: str) -> None:
        self.context.progress.emit(
            RepEnded(
                build=self.context.build,
                scenario=self.scenario,
                concurrency=rep.concurrency,
                rep=rep.index,
                reps=reps,
                value=None if rep.invalid else rep.value,
                unit=unit,
                note=note,
            )
        )


def middle(reps: list[Rep]) -> float:
    """The value of a start: the median of its valid reps."""
    return median(rep.value for rep in reps if rep.value is not None)
