"""What the starts of a run say about each target, before any judgement. Pure.

A start is one observation of a target: a value, or the cause for which there is none. Starts that
were cut short, that failed for a transient or a host cause, or that the host is blamed for, say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from imagebisect.domain import Failure, Target, Verdict
from imagebisect.outcome import Cause, Effect, effect, is_own
from imagebisect.scenario import MetricKind
from imagebisect.state import RunState, StartRecord
from imagebisect.verdict import DIED


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One start's word on one target. `value` in the metric's unit, or None with the `cause`."""

    value: float | None
    cause: str | None = None

    @property
    def own(self) -> bool:
        """Whether a missing value is plainly the build's own doing."""
        return self.cause is not None and is_own(self.cause)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All observations of one target, by build index in the order of the starts, and verdicts set by hand."""

    target: Target
    server: str
    observations: Mapping[int, tuple[Observation, ...]] = field(default_factory=dict)
    marks: Mapping[int, Verdict] = field(default_factory=dict)

    def values(self, build: int) -> tuple[float, ...]:
        """The values of a build's starts."""
        return tuple(o.value for o in self.observations.get(build, ()) if o.value is not None)

    def failures(self, build: int) -> tuple[Observation, ...]:
        """The starts of a build that gave no value."""
        return tuple(o for o in self.observations.get(build, ()) if o.value is None)


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything the search decides on. `names` and `lines` are per build, `good < bad` the anchors."""

    names: tuple[str, ...]
    lines: tuple[str, ...]
    good: int
    bad: int
    evidence: tuple[Evidence, ...]


def _from_failure(failure: Failure, kind: MetricKind) -> Observation | None:
    match effect(failure.cause, kind):
        case Effect.BAD:
            return Observation(value=DIED, cause=failure.cause)
        case Effect.SKIP:
            return Observation(value=None, cause=failure.cause)
        case Effect.RETRY | Effect.STOP:
            return None


def observe(start: StartRecord, target: Target) -> Observation | None:
    """What one start says about a target; None when it says nothing."""
    if start.void or target.scenario not in start.intended.scenarios:
        return None
    kind = target.metric.kind
    measurement = next((m for m in start.measurements if m.scenario == target.scenario), None)
    if measurement is not None:
        value = measurement.metrics.get(target.metric.name)
        if value is not None:
            cause = measurement.failure.cause if measurement.failure and kind is MetricKind.EVENT else None
            return Observation(value=value, cause=cause)
        if measurement.failure is not None:
            return _from_failure(measurement.failure, kind)
        return Observation(value=None, cause=Cause.INVALID_MEASUREMENT)
    if start.outcome == "failed" and start.failure is not None:
        return _from_failure(start.failure, kind)
    return None


def question(state: RunState) -> Question:
    """The search's question as the events so far leave it."""
    plan = state.plan
    evidence = []
    for target in plan.suite.targets:
        server = plan.suite.server_of(target)
        observations: dict[int, tuple[Observation, ...]] = {}
        for build, failure in state.pull_failures.items():
            seen = _from_failure(failure, target.metric.kind)
            if seen is not None:
                observations[build] = (seen,)
        for start in state.starts:
            if start.intended.server != server:
                continue
            seen = observe(start, target)
            if seen is not None:
                build = start.intended.build
                observations[build] = (*observations.get(build, ()), seen)
        marks = {build: verdict for (build, name), verdict in state.marks.items() if name == target.name}
        evidence.append(Evidence(target=target, server=server, observations=observations, marks=marks))
    return Question(
        names=tuple(build.name for build in plan.builds),
        lines=tuple(build.line for build in plan.builds),
        good=plan.good,
        bad=plan.bad,
        evidence=tuple(evidence),
    )
