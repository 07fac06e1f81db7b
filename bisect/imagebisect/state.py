"""The state of a run as a fold over its events.

`events.jsonl` is the truth; everything else (what to start next, the report) is a function of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from imagebisect.domain import (
    CardMemory,
    Failure,
    Identity,
    JsonValue,
    Measurement,
    Plan,
    Rendered,
    Verdict,
)
from imagebisect.noise import Noise

Purpose = Literal["search", "probe", "compare", "profile"]
"""What a run is for: an answer, one build's numbers, two builds' difference, or one host's noise."""

# ---------------------------------------------------------------------------- events


@dataclass(frozen=True, kw_only=True)
class CompareSpec:
    """A controlled comparison: the builds' indices and how many starts each of them gets on every server."""

    a: int
    b: int
    starts: int


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a search may cost before it ends with what it has; None: no limit.

    `hours` is time in pulls and starts, pauses between processes not counted; `gpu_hours` is that of starts times cards.
    """

    starts: int | None = None
    hours: float | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search is done. `find` "fix": the first good build after a bad one, the bad end being the older one.

    `scan` builds, evenly spaced, are started whatever the posterior says: for ranges that break more than once.
    """

    find: Literal["regression", "fix"] = "regression"
    scan: int = 0
    budget: Budget = Budget()


@dataclass(frozen=True, kw_only=True)
class RunCreated:
    """First event: everything that the run was told. `host` holds hardware and versions, no names.

    `noise` is this host's, by target, as it was profiled before the run began.
    """

    event: Literal["run_created"] = "run_created"
    schema: int = 1
    run_id: str
    tool_version: str
    started: str
    plan: Plan
    host: Mapping[str, JsonValue]
    model_fingerprint: str
    purpose: Purpose = "search"
    compare: CompareSpec | None = None
    options: SearchOptions = SearchOptions()
    noise: Mapping[str, Noise] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BuildPresent:
    """A build is on this host and known by its identity."""

    event: Literal["build_present"] = "build_present"
    build: int
    identity: Identity
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StartIntended:
    """Written before anything is created, so that an orphan can always be found by name.

    `confirms` holds, by target, the (last good, first bad) pair that this start is to confirm.
    """

    event: Literal["start_intended"] = "start_intended"
    start_id: str
    build: int
    server: str
    purpose: str
    why: str
    scenarios: tuple[str, ...]
    container_name: str
    rendered: Rendered
    baseline: tuple[CardMemory, ...] = ()
    host_fingerprint: str | None = None
    confirms: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StartReady:
    """The server answered its first token."""

    event: Literal["start_ready"] = "start_ready"
    start_id: str
    boot_s: float
    facts: Mapping[str, JsonValue]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One scenario of a start is finished (measured, or failed in a typed way)."""

    event: Literal["measured"] = "measured"
    start_id: str
    measurement: Measurement


@dataclass(frozen=True, kw_only=True)
class StartEnded:
    """A start is over and nothing of it is left. `failure` None: all its scenarios were run."""

    event: Literal["start_ended"] = "start_ended"
    start_id: str
    failure: Failure | None
    seconds: float
    after: tuple[CardMemory, ...] = ()
    facts: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PullEnded:
    """A build could not be made present. Counts as a failed start of every server."""

    event: Literal["pull_ended"] = "pull_ended"
    build: int
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A verdict set by hand; `verdict` None takes it back."""

    event: Literal["marked"] = "marked"
    build: int
    target: str
    verdict: Verdict | None


@dataclass(frozen=True, kw_only=True)
class HostBlamed:
    """The last good build failed too: failures since `since_start_id` say nothing about builds."""

    event: Literal["host_blamed"] = "host_blamed"
    void_start_ids: tuple[str, ...]
    message: str


@dataclass(frozen=True, kw_only=True)
class HostCleared:
    """The last good build measured again, so the failures before stand."""

    event: Literal["host_cleared"] = "host_cleared"


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The run goes on in a new process. Starts without an end are `interrupted` from here."""

    event: Literal["resumed"] = "resumed"
    at: str


@dataclass(frozen=True, kw_only=True)
class RunStopped:
    """The run ended before its answer, for a reason outside the builds. Can be resumed."""

    event: Literal["run_stopped"] = "run_stopped"
    at: str
    exit_code: int
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class BudgetSet:
    """The budget from here on, given when the run was resumed."""

    event: Literal["budget_set"] = "budget_set"
    budget: Budget


@dataclass(frozen=True, kw_only=True)
class RunFinished:
    """Every target has a status."""

    event: Literal["run_finished"] = "run_finished"
    at: str
    exit_code: int


Event = (
    RunCreated
    | BuildPresent
    | StartIntended
    | StartReady
    | Measured
    | StartEnded
    | PullEnded
    | Marked
    | HostBlamed
    | HostCleared
    | Resumed
    | RunStopped
    | BudgetSet
    | RunFinished
)

# ----------------------------------------------------------------------------- state


@dataclass(frozen=True, kw_only=True)
class StartRecord:
    """One start as far as the events tell. `outcome` None while it runs."""

    intended: StartIntended
    boot_s: float | None = None
    facts: Mapping[str, JsonValue] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()
    outcome: Literal["measured", "failed", "interrupted"] | None = None
    failure: Failure | None = None
    seconds: float = 0.0
    after: tuple[CardMemory, ...] = ()
    void: bool = False


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Everything known of a run."""

    created: RunCreated
    identities: Mapping[int, Identity] = field(default_factory=dict)
    pull_seconds: Mapping[int, float] = field(default_factory=dict)
    pull_failures: Mapping[int, Failure] = field(default_factory=dict)
    starts: tuple[StartRecord, ...] = ()
    marks: Mapping[tuple[int, str], Verdict] = field(default_factory=dict)
    cleared_at: int = 0
    resumed: tuple[str, ...] = ()
    budget: Budget = Budget()
    stopped: RunStopped | None = None
    finished: RunFinished | None = None

    @property
    def plan(self) -> Plan:
        """The run's builds and suite."""
        return self.created.plan

    def start(self, start_id: str) -> StartRecord:
        """The start of that id; StopIteration when there is none."""
        return next(start for start in self.starts if start.intended.start_id == start_id)


def fold(events: Iterable[Event]) -> RunState:
    """The state after `events`; ValueError when the first is not `run_created`."""
    stream = iter(events)
    first = next(stream, None)
    if not isinstance(first, RunCreated):
        raise ValueError("a run's first event is run_created")
    state = RunState(created=first, budget=first.options.budget)
    for event in stream:
        state = apply(state, event)
    return state


def _change(state: RunState, start_id: str, **changes: object) -> RunState:
    starts = tuple(
        replace(start, **changes) if start.intended.start_id == start_id else start  # type: ignore[arg-type]
        for start in state.starts
    )
    return replace(state, starts=starts)


def apply(state: RunState, event: Event) -> RunState:
    """The state after one more event."""
    match event:
        case RunCreated():
            raise ValueError("run_created stands once, at the head")
        case BuildPresent():
            failures = {build: failure for build, failure in state.pull_failures.items() if build != event.build}
            return replace(
                state,
                identities={**state.identities, event.build: event.identity},
                pull_seconds={**state.pull_seconds, event.build: event.seconds},
                pull_failures=failures,
            )
        case PullEnded():
            return replace(state, pull_failures={**state.pull_failures, event.build: event.failure})
        case StartIntended():
            return replace(state, starts=(*state.starts, StartRecord(intended=event)), stopped=None, finished=None)
        case StartReady():
            return _change(state, event.start_id, boot_s=event.boot_s, facts=event.facts)
        case Measured():
            start = state.start(event.start_id)
            return _change(state, event.start_id, measurements=(*start.measurements, event.measurement))
        case StartEnded():
            start = state.start(event.start_id)
            cut = event.failure is not None and event.failure.cause == "interrupted"
            outcome = "interrupted" if cut else "measured" if event.failure is None else "failed"
            return _change(
                state,
                event.start_id,
                outcome=outcome,
                failure=event.failure,
                seconds=event.seconds,
                after=event.after,
                facts={**start.facts, **event.facts},
            )
        case Marked():
            marks = {key: value for key, value in state.marks.items() if key != (event.build, event.target)}
            if event.verdict is not None:
                marks[event.build, event.target] = event.verdict
            return replace(state, marks=marks, finished=None)
        case HostBlamed():
            starts = tuple(
                replace(start, void=True) if start.intended.start_id in event.void_start_ids else start
                for start in state.starts
            )
            return replace(state, starts=starts, cleared_at=len(starts))
        case HostCleared():
            return replace(state, cleared_at=len(state.starts))
        case Resumed():
            starts = tuple(
                replace(start, outcome="interrupted") if start.outcome is None else start for start in state.starts
            )
            return replace(state, starts=starts, stopped=None, resumed=(*state.resumed, event.at))
        case RunStopped():
            return replace(state, stopped=event)
        case BudgetSet():
            return replace(state, budget=event.budget, finished=None)
        case RunFinished():
            return replace(state, finished=event)
        case _:
            assert_never(event)
