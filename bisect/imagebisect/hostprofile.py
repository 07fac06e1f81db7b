"""A host's own noise, from starts of one build: within a start, between starts, how many start slow. Pure.

What is learned is kept by measurement key (design: section 2) and becomes the prior of later searches on the same host.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

from imagebisect.calibration import Difference, detectable
from imagebisect.comparison import as_target, asked_by, asked_by_default
from imagebisect.domain import Plan, Server, Target
from imagebisect.evidence import observe
from imagebisect.noise import BETWEEN_DF, WITHIN_DF, Noise, start_value
from imagebisect.scale import Scale, scale_of
from imagebisect.scenario import MetricKind, Scenario
from imagebisect.state import RunState

FEWEST_STARTS = 3
"""Starts below which nothing is said of a host."""

SLOW_WEIGHT = 5.0
"""Starts that the assumed share of slow ones counts for."""

SLOW_SPREADS = 5.0
"""A start so many standard deviations below the middle is slow for reasons of its own."""

SLOW_LIMITS = (0.01, 0.6)
LEAST = Noise(within=0.0005, between=0.001)
"""No host is believed to be calmer than this (ratios)."""

SHAKY_T = 3.0
"""A drift is worth a word from this t on."""


@dataclass(frozen=True, kw_only=True)
class MetricNoise:
    """What the starts of one build say of one metric, in its unit and on the scale of its target.

    `noise` is what a search will assume: seen and assumed together. `drift` is the change a start, with its `drift_t`;
    `smallest` the smallest effects that 3+3 and 6+6 starts would show; the last three are shares for ratios.
    """

    metric: str
    unit: str
    kind: MetricKind
    values: tuple[float, ...]
    noise: Noise
    seen_within: float | None
    seen_between: float
    slow_starts: int
    drift: float
    drift_t: float
    smallest: tuple[float, float]


def measurement_key(server: Server, scenario: Scenario, model_fingerprint: str) -> str:
    """The key under which measurements compare: server, scenario and model, not the build and not the targets."""
    parts = {
        "server": {name: value for name, value in asdict(server).items() if name != "name"},
        "scenario": {name: value for name, value in asdict(scenario).items() if name not in ("name", "on")},
        "kind": scenario.kind,
        "model": model_fingerprint,
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _slow(places: Sequence[float], assumed: float) -> list[int]:
    """Which starts lie below the rest: by the median and the distances from it, which half of them may spoil."""
    middle = median(places)
    spread = max(1.4826 * median([abs(p - middle) for p in places]), assumed)
    if sum(p < middle - SLOW_SPREADS * spread for p in places) == 0 and len(places) >= 4:
        # two modes: the slower part lies together, below a gap wider than what is on either side of it
        ordered = sorted(places)
        gaps = [(b - a, i + 1) for i, (a, b) in enumerate(itertools.pairwise(ordered))]
        gap, count = max(gaps)
        sides = [ordered[:count], ordered[count:]]
        widest = max(side[-1] - side[0] for side in sides)
        if count <= len(places) // 2 and gap > SLOW_SPREADS * max(assumed, widest):
            return [i for i, p in enumerate(places) if p <= ordered[count - 1]]
    return [i for i, p in enumerate(places) if p < middle - SLOW_SPREADS * spread]


def learn(starts: Sequence[Sequence[float]], scale: Scale, metric: str, unit: str) -> MetricNoise:
    """The noise of one metric; `starts` hold the values of their reps, oldest first. ValueError for fewer than three."""
    if len(starts) < FEWEST_STARTS:
        raise ValueError(f"{len(starts)} starts say nothing of a host")
    assumed = scale.noise
    reps = [[scale.place(value) for value in start] for start in starts]
    places = [start_value(start) for start in reps]
    slow = set(_slow(places, assumed.between))
    several = [start for start in reps if len(start) > 1]
    inside = sum(sum((rep - fmean(start)) ** 2 for rep in start) for start in several)
    df = sum(len(start) - 1 for start in several)
    calm = [(number, place) for number, place in enumerate(places) if number not in slow]
    middle = fmean(place for _, place in calm)
    squares = sum((place - middle) ** 2 for _, place in calm)
    within = (WITHIN_DF * assumed.within**2 + inside) / (WITHIN_DF + df)
    share = within * fmean(1 / len(start) for start in reps)
    raw = (BETWEEN_DF * (assumed.between**2 + share) + squares) / (BETWEEN_DF + len(calm) - 1)
    between = max(raw - share, raw / 4)
    least = LEAST if scale.kind is MetricKind.RATIO else Noise(within=0.0, between=assumed.between / 16)
    rate = (SLOW_WEIGHT * assumed.slow + len(slow)) / (SLOW_WEIGHT + len(places))
    noise = Noise(
        within=max(math.sqrt(within), least.within),
        between=max(math.sqrt(between), least.between),
        slow=min(max(rate, SLOW_LIMITS[0]), SLOW_LIMITS[1]),
    )
    drift, drift_t = _slope(calm)
    whole = Difference(drop=0.0, error=1.0, df=1.0, spread=math.sqrt(noise.between**2 + noise.within**2 / 3))
    return MetricNoise(
        metric=metric,
        unit=unit,
        kind=scale.kind,
        values=tuple(scale.value(place) for place in places),
        noise=noise,
        seen_within=math.sqrt(inside / df) if df else None,
        seen_between=math.sqrt(squares / max(len(calm) - 1, 1)),
        slow_starts=len(slow),
        drift=scale.change(-drift),
        drift_t=drift_t,
        smallest=(abs(scale.change(detectable(whole, 3))), abs(scale.change(detectable(whole, 6)))),
    )


def _slope(calm: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(places a start, its t) of a straight line; zeros where three points are not to be had."""
    if len(calm) < FEWEST_STARTS:
        return 0.0, 0.0
    at, when = fmean(place for _, place in calm), fmean(number for number, _ in calm)
    curve = sum((number - when) ** 2 for number, _ in calm)
    slope = sum((number - when) * (place - at) for number, place in calm) / curve
    rest = sum((place - at - slope * (number - when)) ** 2 for number, place in calm)
    error = math.sqrt(rest / max(len(calm) - 2, 1) / curve)
    return slope, slope / error if error > 0 else 0.0


def _questions(plan: Plan) -> list[Target]:
    """Every metric of every scenario as a target: the suite's own where there is one."""
    own = {(target.scenario, target.metric.name): target for target in plan.suite.targets}
    found = []
    for scenario in plan.suite.scenarios:
        for metric in scenario.metrics():
            target = own.get((scenario.name, metric.name))
            found.append(as_target(asked_by(target) if target else asked_by_default(scenario, metric)))
    return found


def of_run(state: RunState) -> dict[str, MetricNoise]:
    """The noise of each ratio and level that a profile measured in three starts or more, by its path."""
    found: dict[str, MetricNoise] = {}
    for target in _questions(state.plan):
        if target.metric.kind is MetricKind.EVENT:
            continue
        seen = [observe(start, target) for start in state.starts]
        starts = [one.reps or (one.value,) for one in seen if one is not None and one.value is not None]
        if len(starts) < FEWEST_STARTS:
            continue
        values = sorted(start[0] for start in starts)
        scale = scale_of(target, values[len(values) // 2])
        found[target.metric_path] = learn(starts, scale, target.metric_path, target.metric.unit)
    return found


def record(state: RunState) -> dict[str, Any]:
    """What a profile leaves for later searches: by measurement key and metric."""
    suite, learnt = state.plan.suite, of_run(state)
    kept: dict[str, Any] = {}
    for scenario in suite.scenarios:
        key = measurement_key(suite.server(scenario.on), scenario, state.created.model_fingerprint)
        metrics = {
            metric.name: {**vars(learnt[path].noise), "starts": len(learnt[path].values)}
            for metric in scenario.metrics()
            if (path := f"{scenario.name}.{metric.name}") in learnt
        }
        if metrics:
            kept[key] = {
                "at": state.created.started,
                "run": state.created.run_id,
                "build": state.plan.builds[0].name,
                "scenario": scenario.name,
                "metrics": metrics,
            }
    return kept


def noise_of(plan: Plan, kept: Mapping[str, Any], model_fingerprint: str) -> dict[str, Noise]:
    """The noise that a search of this plan may assume, by target; only where server, scenario and model are the same."""
    found = {}
    for target in plan.suite.targets:
        scenario = plan.suite.scenario(target.scenario)
        key = measurement_key(plan.suite.server(scenario.on), scenario, model_fingerprint)
        seen = kept.get(key, {}).get("metrics", {}).get(target.metric.name)
        if seen is not None:
            found[target.name] = replace(
                LEAST, within=float(seen["within"]), between=float(seen["between"]), slow=float(seen["slow"])
            )
    return found
