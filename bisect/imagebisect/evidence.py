"""What the starts of a run say about each target, before any judgement. Pure.

A start is one observation of a target: a value, or the cause for which there is none. Starts that
were cut short, that failed for a transient or a host cause, or that the host is blamed for, say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from imagebisect.domain import Failure, Measurement, Target, Verdict
from imagebisect.noise import Noise
from imagebisect.outcome import Cause, Effect, effect, is_own
from imagebisect.scenario import MetricKind
from imagebisect.state import RunState, StartRecord
from imagebisect.verdict import DIED


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One start's word on one target. `value` in the metric's unit, or None with the `cause`.

    `reps` are the values that it was made of where they are known, `at` the start's number in the run, and
    `confirming` the (last good, first bad) pair that the start was to confirm for this target.
    """

    value: float | None
    cause: str | None = None
    reps: tuple[float, ...] = ()
    at: int = 0
    confirming: tuple[int, int] | None = None

    @property
    def own(self) -> bool:
        """Whether a missing value is plainly the build's own doing."""
        return self.cause is not None and is_own(self.cause)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All observations of one target, by build index in the order of the starts, and verdicts set by hand.

    `noise` is this host's, where it was profiled.
    """

    target: Target
    server: str
    observations: Mapping[int, tuple[Observation, ...]] = field(default_factory=dict)
    marks: Mapping[int, Verdict] = field(default_factory=dict)
    noise: Noise | None = None

    def values(self, build: int) -> tuple[float, ...]:
        """The values of a build's starts."""
        return tuple(o.value for o in self.observations.get(build, ()) if o.value is not None)

    def failures(self, build: int) -> tuple[Observation, ...]:
        """The starts of a build that gave no value."""
        return tuple(o for o in self.observations.get(build, ()) if o.value is None)


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything the search decides on. `names` and `lines` are per build, `good < bad` the anchors.

    `costs` are the seconds that a start of each build is expected to take (empty: all alike). `spent`: the budget is
    used up, so that every open target ends with what it has.
    """

    names: tuple[str, ...]
    lines: tuple[str, ...]
    good: int
    bad: int
    evidence: tuple[Evidence, ...]
    costs: tuple[float, ...] = ()
    spent: bool = False

    def cost(self, build: int) -> float:
        """What a start of a build costs, in seconds or in any unit that all share."""
        return max(self.costs[build], 1e-3) if self.costs else 1.0


def _from_failure(failure: Failure, kind: MetricKind) -> Observation | None:
    match effect(failure.cause, kind):
        case Effect.BAD:
            return Observation(value=DIED, cause=failure.cause)
        case Effect.SKIP:
            return Observation(value=None, cause=failure.cause)
        case Effect.RETRY | Effect.STOP:
            return None


def _placed(seen: Observation | None, start: StartRecord, target: Target, at: int) -> Observation | None:
    return replace(seen, at=at, confirming=start.intended.confirms.get(target.name)) if seen else None


def _reps(measurement: Measurement, target: Target, value: float) -> tuple[float, ...]:
    """The reps whose median a target's value is; none where that cannot be told."""
    counted = [rep for rep in measurement.reps if not rep.warmup and rep.invalid is None and rep.value is not None]
    group, _, _ = target.metric.name.partition(".")
    if group[:1] == "c" and group[1:].isdigit():
        counted = [rep for rep in counted if rep.concurrency == int(group[1:])]
    elif group[:1] == "t" and group[1:].isdigit():
        counted = [rep for rep in counted if rep.prompt_tokens == int(group[1:])]
    else:
        return ()
    values = tuple(rep.value for rep in counted if rep.value is not None)
    return values if values and math.isclose(median(values), value, rel_tol=1e-6) else ()


def observe(start: StartRecord, target: Target, at: int = 0) -> Observation | None:
    """What one start says about a target; None when it says nothing. `at` is the start's number in the run."""
    if start.void or target.scenario not in start.intended.scenarios:
        return None
    kind = target.metric.kind
    measurement = next((m for m in start.measurements if m.scenario == target.scenario), None)
    if measurement is not None:
        value = measurement.metrics.get(target.metric.name)
        if value is not None:
            cause = measurement.failure.cause if measurement.failure and kind is MetricKind.EVENT else None
            return Observation(
                value=value,
                cause=cause,
                reps=_reps(measurement, target, value),
                at=at,
                confirming=start.intended.confirms.get(target.name),
            )
        if measurement.failure is not None:
            return _placed(_from_failure(measurement.failure, kind), start, target, at)
        return Observation(value=None, cause=Cause.INVALID_MEASUREMENT)
    if start.outcome == "failed" and start.failure is not None:
        return _placed(_from_failure(start.failure, kind), start, target, at)
    return None


def _costs(state: RunState) -> tuple[float, ...]:
    """Expected seconds of a start of each build: pulling it, unless it is here, and a start as they went so far."""
    over = [start.seconds for start in state.starts if start.outcome == "measured"]
    pulls = list(state.pull_seconds.values())
    if not over or not pulls:
        return ()
    pull, run = sum(pulls) / len(pulls), sum(over) / len(over)
    # to a tenth of a start: the last second of a clock is no reason to prefer a build
    unit = max(run / 10, 1e-3)
    away, here = round((pull + run) / unit), round(run / unit)
    return tuple(float(here if build.index in state.identities else away) for build in state.plan.builds)


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
        for number, start in enumerate(state.starts, start=1):
            if start.intended.server != server:
                continue
            seen = observe(start, target, number)
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
        costs=_costs(state),
    )
