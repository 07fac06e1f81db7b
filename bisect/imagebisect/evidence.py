"""What the starts of a run say about each target, before any judgement. Pure.

A start is one observation of a target: a value, or the cause for which there is none. Starts that
were cut short, that failed for a transient or a host cause, or that the host is blamed for, say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from imagebisect import budget
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

    `pulls` are the seconds that it takes until a build is here and `runs` those of a start, by server (empty: all
    alike). `spent`: the budget is used up, so that every open target ends with what it has. `scan` are builds to start whatever the posterior says.
    Where a fix is looked for the builds stand newest first, so that the good end comes first here too.
    """

    names: tuple[str, ...]
    lines: tuple[str, ...]
    good: int
    bad: int
    evidence: tuple[Evidence, ...]
    pulls: tuple[float, ...] = ()
    runs: Mapping[str, float] = field(default_factory=dict)
    spent: bool = False
    scan: tuple[int, ...] = ()
    find: Literal["regression", "fix"] = "regression"

    @property
    def fix(self) -> bool:
        """Whether the first good build after a bad one is looked for."""
        return self.find == "fix"

    def plan_index(self, build: int) -> int:
        """A build's place in the plan, oldest first (and the other way round: it is its own inverse)."""
        return len(self.names) - 1 - build if self.fix else build

    def cost(self, build: int, server: str) -> float:
        """What a start of a build costs, in seconds or in any unit that all share."""
        run = self.runs.get(server) or (sum(self.runs.values()) / len(self.runs) if self.runs else 1.0)
        return max(run + (self.pulls[build] if self.pulls else 0.0), 1e-3)


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


def _runs(state: RunState) -> dict[str, float]:
    """Mean seconds of a start that was measured, by server, to two digits: a clock's last one is no reason to choose."""
    seen: dict[str, list[float]] = {}
    for start in state.starts:
        if start.outcome == "measured":
            seen.setdefault(start.intended.server, []).append(start.seconds)
    return {server: float(f"{max(sum(own) / len(own), 1e-3):.2g}") for server, own in seen.items()}


def _pulls(state: RunState, runs: Mapping[str, float]) -> dict[int, float]:
    """Expected seconds until each build is here: 0 for those that are, to a tenth of a start for the others."""
    known = list(state.pull_seconds.values())
    if not runs or not known:
        return {}
    unit = max(sum(runs.values()) / len(runs) / 10, 1e-3)
    pull = round(sum(known) / len(known) / unit) * unit
    return {build.index: 0.0 if build.index in state.identities else pull for build in state.plan.builds}


def sentinels(good: int, bad: int, count: int) -> tuple[int, ...]:
    """`count` builds between the ends, evenly spaced; fewer where there are fewer."""
    places = {round(good + (k + 1) * (bad - good) / (count + 1)) for k in range(count)}
    return tuple(sorted(places - {good, bad}))


def question(state: RunState) -> Question:
    """The search's question as the events so far leave it."""
    plan, find = state.plan, state.created.options.find
    order = plan.builds if find == "regression" else plan.builds[::-1]
    place = {build.index: number for number, build in enumerate(order)}
    evidence = []
    for target in plan.suite.targets:
        server = plan.suite.server_of(target)
        observations: dict[int, tuple[Observation, ...]] = {}
        for build, failure in state.pull_failures.items():
            seen = _from_failure(failure, target.metric.kind)
            if seen is not None:
                observations[place[build]] = (seen,)
        for number, start in enumerate(state.starts, start=1):
            if start.intended.server != server:
                continue
            seen = observe(start, target, number)
            if seen is not None:
                if seen.confirming is not None:
                    seen = replace(seen, confirming=(place[seen.confirming[0]], place[seen.confirming[1]]))
                at = place[start.intended.build]
                observations[at] = (*observations.get(at, ()), seen)
        marks = {place[build]: verdict for (build, name), verdict in state.marks.items() if name == target.name}
        noise = state.created.noise.get(target.name)
        evidence.append(Evidence(target=target, server=server, observations=observations, marks=marks, noise=noise))
    runs = _runs(state)
    pulls = _pulls(state, runs)
    good, bad = place[plan.good], place[plan.bad]
    return Question(
        names=tuple(build.name for build in order),
        lines=tuple(build.line for build in order),
        good=good,
        bad=bad,
        evidence=tuple(evidence),
        pulls=tuple(pulls[build.index] for build in order) if pulls else (),
        runs=runs,
        spent=budget.spent(state),
        scan=sentinels(good, bad, state.created.options.scan),
        find=find,
    )
