"""Reps: a round of requests with both clocks, the cards' memory, and the evidence for or against counting it.

A rep is invalid for instrument evidence only (wrong counts, cache hits, foreign requests, slowed clocks, compilation),
never for its value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from imagebisect.domain import Failure, JsonValue, Measurement, Phase, Rep
from imagebisect.measure import load, prompts, validity
from imagebisect.measure.context import Context
from imagebisect.measure.gpu import Lowest, sampling
from imagebisect.measure.validity import MOST_REPEATS, Shape
from imagebisect.measure.watch import ProgressWatch
from imagebisect.outcome import Cause
from imagebisect.progress import RepEnded
from imagebisect.scenario import VARIANT_MARK
from imagebisect.vllm import failures, logmarks, metrics
from imagebisect.vllm.aftermath import wait_for_end
from imagebisect.vllm.logtail import LogTail
from imagebisect.vllm.metrics import Snapshot
from imagebisect.vllm.transport import OK, get_text

DEFAULT_CHUNK_TOKENS = 8192
"""Taken for a prefill chunk where neither the log nor the arguments say."""

_SCRAPE_S = 10.0
_HEALTH_S = 2.0
_IDLE_S = 30.0
_LATE_COUNTERS_S = 1.0


class RoundFailedError(Exception):
    """A round ended without all its answers; the scenario ends with what it has.

    `answers` says of each request, in the order they were sent, how it ended and after how many seconds.
    """

    def __init__(self, failure: Failure, answers: tuple[str, ...] = ()) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.answers = answers


@dataclass(frozen=True, kw_only=True)
class Taken:
    """One round as it went: the answers, what the server counted, and the rep made of them."""

    rep: Rep
    counted: Snapshot
    only_marks: bool = False
    """Whether nothing but the log's marks speaks against the rep."""


Value = Callable[[load.Round, Shape], float]
"""The metric of a round, from the client's clock."""


@dataclass(kw_only=True)
class Rounds:
    """Takes the reps of one scenario in one start and keeps their record.

    `shapes` are the (prompt tokens, concurrency) that the scenario measures, each once.
    """

    context: Context
    scenario: str
    shapes: tuple[tuple[int, int], ...]
    reps_wanted: int
    unit: str
    value: Value
    reps: list[Rep] = field(default_factory=list)
    samples: dict[str, JsonValue] = field(default_factory=dict)
    lowest_free_mib: float | None = None
    began: float = field(default_factory=time.monotonic)
    _marks: logmarks.Marks = field(default_factory=logmarks.Marks)

    def __post_init__(self) -> None:
        """Start reading the log from here on."""
        self._tail = LogTail(self.context.log, from_end=True)
        # a variant's copy of a scenario sends what the scenario itself does
        self._prompts = prompts.Prompts(
            seed=self.context.seed,
            scenario=self.scenario.partition(VARIANT_MARK)[0],
            vocab_size=self.context.vocab_size,
        )
        self._watch = ProgressWatch(self._scrape, self.context.request_s)

    # ------------------------------------------------------------------ looking on

    def _guard(self) -> str | None:
        """Why no answer will come, for load.send; also collects what the log's new lines say."""
        self.context.stop.check()
        lines = self._tail.new_lines()
        self._marks.add(lines)
        self._watch.look()
        fatal = next((line for line in lines if failures.is_fatal(line)), None)
        if fatal is not None:
            return f"the log says: {fatal.strip()[-200:]}"
        if self.context.running.exit_state() is not None:
            return "the server ended"
        return None

    def _scrape(self) -> Snapshot | None:
        """The counters; one that had them and does not answer is asked again, twice."""
        for attempt in range(3 if self.context.has_metrics else 1):
            if attempt:
                self.context.stop.wait(0.1)
            text = get_text(f"{self.context.url}/metrics", timeout_s=_SCRAPE_S)
            if text is not None:
                return metrics.parse(text)
            if self.context.running.exit_state() is not None:
                break
        return None

    def _scrape_idle(self) -> tuple[Snapshot | None, bool]:
        """The counters once no request runs, and whether that came true within 30 s."""
        deadline = time.monotonic() + _IDLE_S
        while True:
            seen = self._scrape()
            busy = seen is not None and (seen.running or 0) + (seen.waiting or 0) > 0
            if not busy or time.monotonic() > deadline or self._guard() is not None:
                return seen, not busy
            self.context.stop.wait(0.1)

    def _scrape_after(self, before: Snapshot | None, requests: int) -> Snapshot | None:
        """The counters once they know of all our requests; a server that counts late gets a second."""
        deadline = time.monotonic() + _LATE_COUNTERS_S
        while True:
            after = self._scrape()
            counted = metrics.delta(before, after)
            known = counted.succeeded is None or counted.succeeded >= requests
            if (known and not (counted.running or counted.waiting)) or time.monotonic() > deadline:
                return after
            self.context.stop.wait(0.05)

    # ---------------------------------------------------------------------- a round

    def _round_number(self, shape: Shape, *, purpose: str, rep: int, attempt: int) -> int:
        """A number of its own for every round this scenario may ever do, whatever was done before."""
        if purpose == "rung":
            return rep * (MOST_REPEATS + 1) + attempt
        rounds_each = 1 + self.reps_wanted * (MOST_REPEATS + 1)
        within = 0 if purpose == "warmup" else 1 + rep * (MOST_REPEATS + 1) + attempt
        return self.shapes.index((shape.prompt_tokens, shape.concurrency)) * rounds_each + within

    def _bodies(self, number: int, sent: Shape, *, purpose: str, rep: int, attempt: int) -> list[bytes]:
        bodies = []
        widest = max(concurrency for _, concurrency in self.shapes)
        for slot in range(sent.concurrency):
            place = prompts.Place(
                purpose=purpose,
                concurrency=sent.concurrency,
                rep=rep,
                attempt=attempt,
                slot=slot,
                ordinal=number * widest + slot,
            )
            ids = self._prompts.ids(place, sent.prompt_tokens)
            bodies.append(
                prompts.body(self.context.model_id, ids, max_tokens=sent.output_tokens, endpoint=self.context.endpoint)
            )
        return bodies

    def take(
        self,
        shape: Shape,
        *,
        purpose: str,
        rep: int,
        attempt: int = 0,
        sent: Shape | None = None,
        tolerate_marks: bool = False,
    ) -> Taken:
        """Do one round and record it.

        Args:
            shape: one of the scenario's shapes.
            purpose: `warmup`, `rep`, or `rung` (of a ladder that may kill the server).
            rep: which one, from 0; a rung's number counts over the whole ladder.
            attempt: which repeat of an invalid rep.
            sent: a smaller shape that stands for it in a warm-up.
            tolerate_marks: count the rep although the log has marks of compilation.

        Raises:
            RoundFailedError: not every request was answered; the rep is recorded as invalid.
            Interrupted: a stop was asked for.
        """
        warmup = purpose == "warmup"
        number = self._round_number(shape, purpose=purpose, rep=rep, attempt=attempt)
        shape = sent or shape
        bodies = self._bodies(number, shape, purpose=purpose, rep=rep, attempt=attempt)
        before, idle = self._scrape_idle()
        self._marks.take()
        log_offset = self._tail.offset
        self._watch.begin()
        with sampling(self.context.probe, own=self.context.own_pids, known=self.context.known_processes) as lowest:
            done = load.send(
                self.context.url,
                bodies,
                endpoint=self.context.endpoint,
                guard=self._guard,
                deadline_s=self.context.request_s,
            )
        self._watch.end()
        if not done.complete:
            self._note_memory(lowest)
            failure = self._failure(done, shape, log_offset)
            foreign = validity.foreign_processes(lowest)
            if foreign:
                said = f"{'; '.join(foreign)}: so this says nothing of the build: {failure.message}"
                failure = replace(failure, cause=Cause.GPU_BUSY, message=said[: failures.LONGEST_MESSAGE])
            made = self._rep(done, shape, rep=rep, warmup=warmup, invalid=failure.message, lowest=lowest)
            self._record(made, note=f"failed: {failure.cause}")
            raise RoundFailedError(failure, tuple(_in_words(answer) for answer in done.answers))
        after = self._scrape_after(before, shape.concurrency)
        counted = metrics.delta(before, after)
        lag_s = self.context.running.log_lag_s - (time.perf_counter() - done.ended)
        if lag_s > 0:
            self.context.stop.wait(lag_s)
        self._guard()
        marks = self._marks.take()
        exact = self.context.endpoint == "completions"
        evidence = [*validity.evidence(done, shape, counted, lowest, idle=idle, exact=exact)]
        if self.context.has_metrics and (before is None or after is None):
            evidence.append(validity.NO_METRICS)
        tainted = bool(marks) and purpose == "rep"
        only_marks = tainted and not evidence
        if tainted and not (only_marks and tolerate_marks):
            evidence.append("; ".join(marks))
        invalid = None if warmup or not evidence else "; ".join(evidence)
        if invalid is None:
            self._note_memory(lowest)
        made = self._rep(
            done, shape, rep=rep, warmup=warmup, invalid=invalid, lowest=lowest, counted=counted, marks=marks
        )
        self._record(made, note="warm-up" if warmup else f"invalid: {invalid}" if invalid else "")
        return Taken(rep=made, counted=counted, only_marks=only_marks)

    def take_valid(self, shape: Shape, *, rep: int, purpose: str = "rep") -> Taken:
        """Do a counted round, again at most twice while it is invalid.

        Where every attempt was marked by the log and nothing else spoke against any of them, that is how this build
        serves and no accident of the instrument: the last one counts, and the record says so.

        Raises:
            RoundFailedError: as `take`, or `invalid_measurement` when no attempt was valid (`gpu_busy` where somebody
                else was on the cards each time, `driver` where it did not answer).
        """
        reasons: list[str] = []
        only_marks = True
        for attempt in range(MOST_REPEATS + 1):
            last = attempt == MOST_REPEATS
            taken = self.take(shape, purpose=purpose, rep=rep, attempt=attempt, tolerate_marks=last and only_marks)
            if taken.rep.invalid is None:
                if taken.only_marks:
                    self.samples["marks_in_every_attempt"] = list(taken.rep.marks)
                return taken
            only_marks = only_marks and taken.only_marks
            reasons.append(taken.rep.invalid)
        raise RoundFailedError(
            Failure(
                cause=validity.cause_of(reasons),
                phase=Phase.REQUEST,
                message=f"rep {rep + 1} at C={shape.concurrency} was invalid {len(reasons)} times: {reasons[-1]}",
                details={"reasons": reasons},
            )
        )

    # ------------------------------------------------------------------ making sense

    def _failure(self, done: load.Round, shape: Shape, log_offset: int) -> Failure:
        """Why not every request was answered."""
        context = self.context
        size = f"{shape.concurrency} x {shape.prompt_tokens} tokens"
        refused = next((a for a in done.answers if a.status is not None and 400 <= a.status < 500), None)
        if done.late:
            ended = wait_for_end(context.running, context.log, context.stop, limit_s=0.0)
            healthy = get_text(f"{context.url}/health", timeout_s=_HEALTH_S) is not None
            health = "/health says 200" if healthy else "/health does not answer 200"
            seen = f"{size}: no answer within {context.request_s:.0f} s; {health}; {self._watch.words()}"
            fallback = Cause.REQUEST_TIMEOUT if self._watch.moved else Cause.STUCK
            return failures.classify(
                context.log, phase=Phase.REQUEST, exit_state=ended, observed=seen, fallback=fallback, since=log_offset
            )
        if refused is not None and done.cut is None:
            seen = f"{size}: HTTP {refused.status}: {refused.text[:400]}"
            return Failure(cause=Cause.REQUEST_FAILED, phase=Phase.REQUEST, message=seen, details={"observed": seen})
        ended = wait_for_end(context.running, context.log, context.stop)
        bad = next((a for a in done.answers if a.status not in {OK, None}), None)
        lost = next((a.error for a in done.answers if a.status is None), "")
        how = f"HTTP {bad.status}: {bad.text[:300]}" if bad else done.cut or lost
        return failures.classify(
            context.log,
            phase=Phase.REQUEST,
            exit_state=ended,
            observed=f"{size}: {how}",
            fallback=Cause.REQUEST_FAILED,
            since=log_offset,
        )

    def _rep(
        self,
        done: load.Round,
        shape: Shape,
        *,
        rep: int,
        warmup: bool,
        invalid: str | None,
        lowest: Lowest,
        counted: Snapshot | None = None,
        marks: tuple[str, ...] = (),
    ) -> Rep:
        counted = counted or Snapshot()
        return Rep(
            index=rep,
            concurrency=shape.concurrency,
            warmup=warmup,
            prompt_tokens=shape.prompt_tokens,
            output_tokens=shape.output_tokens,
            seconds=done.seconds,
            request_s=tuple(answer.seconds for answer in done.answers),
            usage_prompt_tokens=tuple(answer.prompt_tokens for answer in done.answers),
            usage_completion_tokens=tuple(answer.completion_tokens for answer in done.answers),
            server_prefill_s=counted.prefill_s,
            server_queue_s=counted.queue_s,
            server_ttft_s=counted.ttft_s,
            server_e2e_s=counted.e2e_s,
            cache_hit_tokens=validity.cache_hits(done, counted),
            marks=marks,
            invalid=invalid,
            value=self.value(done, shape) if done.complete else None,
            min_free_mib=lowest.worst_mib,
            min_sm_clock_mhz=min(lowest.min_sm_clock_mhz.values(), default=None),
            max_temperature_c=max(lowest.max_temperature_c.values(), default=None),
            max_power_w=max(lowest.max_power_w.values(), default=None),
        )

    def _note_memory(self, lowest: Lowest) -> None:
        worst = lowest.worst_mib
        if worst is not None:
            self.lowest_free_mib = worst if self.lowest_free_mib is None else min(worst, self.lowest_free_mib)

    def _record(self, rep: Rep, *, note: str) -> None:
        self.reps.append(rep)
        counts = not rep.warmup and rep.invalid is None
        self.context.progress.emit(
            RepEnded(
                build=self.context.build,
                scenario=self.scenario,
                concurrency=rep.concurrency,
                rep=rep.index + 1,
                reps=self.reps_wanted,
                value=rep.value if counts else None,
                unit=self.unit,
                note=note,
                prompt_tokens=rep.prompt_tokens,
            )
        )

    def measurement(self, found: dict[str, float], failure: Failure | None = None) -> Measurement:
        """Everything so far, as the scenario's result."""
        self.samples["gpu_source"] = self.context.probe.source
        return Measurement(
            scenario=self.scenario,
            metrics=found,
            reps=tuple(self.reps),
            samples=self.samples,
            failure=failure,
            seconds=time.monotonic() - self.began,
        )


def _in_words(answer: load.Answer) -> str:
    how = f"HTTP {answer.status}" if answer.status is not None else answer.error
    return f"{how} after {answer.seconds:.2f} s"


def chunk_tokens(context: Context) -> int:
    """Tokens of one prefill chunk: --max-num-batched-tokens as the log or the arguments say, else 8,192."""
    said = context.facts.get("max_num_batched_tokens")
    if isinstance(said, int) and said > 0:
        return said
    return context.server.whole_number("--max-num-batched-tokens") or DEFAULT_CHUNK_TOKENS
