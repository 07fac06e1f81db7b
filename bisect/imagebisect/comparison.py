"""Two builds compared by the values of their starts: numbers in, a word out. Pure.

Starts are the unit of evidence. Ratio metrics are compared on their logarithm, levels in their unit, events by
counting. Nothing is paired: starts interleaved A B B A spread a steady drift of the host over both sides alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean, variance

from imagebisect.domain import Floor, Target, TargetRole, Worse
from imagebisect.quantiles import student_quantile
from imagebisect.scenario import Metric, MetricKind
from imagebisect.verdict import DIED, SURVIVED

EQUIVALENCE_STARTS = 3
"""Starts a side before `not reproduced` may be said, and before the starts' own spread is all that is used."""

PRIOR_RATIO = 0.007
"""Standard deviation between starts of one build that is assumed of a ratio metric before any is seen."""

PRIOR_MIB = 16.0
"""The same for a level in MiB; levels in other units take the ratio's share of their value."""

PRIOR_DF = 3
"""Degrees of freedom that the assumption counts for when it is pooled with what was seen."""

RESOLUTION_RATIO = 0.0005
"""Starts that agree better than this agree by chance: no smaller standard deviation is believed."""

RESOLUTION_MIB = 1.0
"""The same for a level in MiB: drivers report no finer."""

DEFAULT_FLOOR_RATIO = Floor(value=0.03, relative=True)
DEFAULT_FLOOR_MIB = Floor(value=64.0, relative=False)
DEFAULT_FLOOR_EVENT = Floor(value=0.0, relative=False)

CHANCE = 0.05
"""Largest chance of a false alarm that is accepted (two-sided intervals of 95 %)."""

_LOWER_IS_WORSE = ("tok_s", "survived", "passed", "free", "kv_pool", "long_over_short")

NOT_MEASURED = "not_measured"
"""The cause of a value that is missing although nothing failed: this host or build has no such metric."""


class Word(StrEnum):
    """What a comparison says of one metric."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    IMPROVED = "improved"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One metric to compare, which way is worse and from where on it matters. `target` None: defaults."""

    scenario: str
    metric: Metric
    worse: Worse
    floor: Floor
    target: str | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one build's starts say of a metric: a value each, or the cause for which there is none."""

    values: tuple[float, ...] = ()
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The answer for one metric.

    `a` and `b` are in the metric's unit (survival rates of events). `change` and `interval` are shares (-0.467)
    for ratios and in the unit for levels; None where a side has no value, and for events. `detectable` is the
    smallest change these starts would show, alike; for events the death rate that they would not miss.
    """

    asked: Asked
    a_side: Side
    b_side: Side
    a: float | None
    b: float | None
    change: float | None
    interval: tuple[float, float] | None
    detectable: float | None
    word: Word

    @property
    def comparable(self) -> bool:
        """Whether both sides have a value."""
        return bool(self.a_side.values and self.b_side.values)


def default_worse(metric: Metric) -> Worse:
    """Which way a metric is worse where no target says so."""
    return Worse.LOWER if any(part in metric.name for part in _LOWER_IS_WORSE) else Worse.HIGHER


def asked_by_default(scenario: str, metric: Metric) -> Asked:
    """A metric without a target: 3 %, or 64 MiB of a level in MiB, in the direction that its name tells."""
    floor = DEFAULT_FLOOR_RATIO
    if metric.kind is MetricKind.EVENT:
        floor = DEFAULT_FLOOR_EVENT
    elif _in_mib(metric):
        floor = DEFAULT_FLOOR_MIB
    return Asked(scenario=scenario, metric=metric, worse=default_worse(metric), floor=floor)


def asked_by(target: Target) -> Asked:
    """A target's metric with its own direction and floor."""
    return Asked(
        scenario=target.scenario, metric=target.metric, worse=target.worse, floor=target.floor, target=target.name
    )


def as_target(asked: Asked) -> Target:
    """The question as a target, for what reads observations of targets."""
    name = asked.target or f"{asked.scenario}.{asked.metric.name}"
    return Target(
        name=name,
        scenario=asked.scenario,
        metric=asked.metric,
        worse=asked.worse,
        floor=asked.floor,
        role=TargetRole.WATCH,
    )


def _in_mib(metric: Metric) -> bool:
    return metric.kind is MetricKind.LEVEL and metric.unit == "MiB"


# --------------------------------------------------------------------------- numbers


@dataclass(frozen=True, kw_only=True)
class Difference:
    """B less A: the estimate, its 95 % interval, and the smallest difference that so many starts would show."""

    estimate: float
    low: float
    high: float
    detectable: float


def difference(a: Sequence[float], b: Sequence[float], *, prior: float, resolution: float) -> Difference:
    """Welch's interval from three starts a side on; below that the spread is pooled with the prior `prior` sd.

    `resolution` is the smallest sd that is believed. Each side holds at least one value.
    """
    estimate = fmean(b) - fmean(a)
    seen = [variance(side) if len(side) > 1 else 0.0 for side in (a, b)]
    least = resolution**2
    if min(len(a), len(b)) >= EQUIVALENCE_STARTS:
        of_a, of_b = max(seen[0], least) / len(a), max(seen[1], least) / len(b)
        total = of_a + of_b
        df = total**2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1)) if total > 0 else float(len(a) + len(b) - 2)
    else:
        df = float(PRIOR_DF + len(a) - 1 + len(b) - 1)
        squares = PRIOR_DF * prior**2 + seen[0] * (len(a) - 1) + seen[1] * (len(b) - 1)
        total = max(squares / df, least) * (1 / len(a) + 1 / len(b))
    error = math.sqrt(total)
    half = student_quantile(1 - CHANCE / 2, df) * error
    shown = (student_quantile(0.995, df) + student_quantile(0.8, df)) * error
    return Difference(estimate=estimate, low=estimate - half, high=estimate + half, detectable=shown)


def _word(worse_by: float, low: float, high: float, *, floor: float, fewest: int) -> Word:
    """The word for a difference that counts as worse when it is above 0."""
    if low > 0 and worse_by >= floor:
        return Word.REPRODUCED
    if high < 0 and -worse_by >= floor:
        return Word.IMPROVED
    if fewest >= EQUIVALENCE_STARTS and high < floor:
        return Word.NOT_REPRODUCED
    return Word.CANNOT_TELL


def _log_floor(share: float, worse: Worse) -> float:
    """A share as a distance between logarithms; a loss of everything is infinitely far."""
    if worse is Worse.HIGHER:
        return math.log1p(share)
    return -math.log1p(-share) if share < 1 else math.inf


# --------------------------------------------------------------------------- answers


def compare(asked: Asked, a: Side, b: Side) -> Compared:
    """What two builds' starts say of one metric. A start without a value leaves it at `cannot tell`."""
    match asked.metric.kind:
        case MetricKind.EVENT:
            found = _compare_events(asked, a, b)
        case MetricKind.LEVEL:
            found = _compare_levels(asked, a, b)
        case MetricKind.RATIO:
            found = _compare_ratios(asked, a, b)
    if a.causes or b.causes:
        return replace(found, word=Word.CANNOT_TELL)
    return found


def _unknown(asked: Asked, a: Side, b: Side) -> Compared:
    means = [fmean(side.values) if side.values else None for side in (a, b)]
    return Compared(
        asked=asked,
        a_side=a,
        b_side=b,
        a=means[0],
        b=means[1],
        change=None,
        interval=None,
        detectable=None,
        word=Word.CANNOT_TELL,
    )


def _compare_ratios(asked: Asked, a: Side, b: Side) -> Compared:
    if not a.values or not b.values or min(*a.values, *b.values) <= 0:
        return _unknown(asked, a, b)
    found = difference(
        [math.log(value) for value in a.values],
        [math.log(value) for value in b.values],
        prior=PRIOR_RATIO,
        resolution=RESOLUTION_RATIO,
    )
    level_a = math.exp(fmean(math.log(value) for value in a.values))
    level_b = math.exp(fmean(math.log(value) for value in b.values))
    share = asked.floor.amount(level_a) / level_a
    lower = asked.worse is Worse.LOWER
    word = _word(
        -found.estimate if lower else found.estimate,
        -found.high if lower else found.low,
        -found.low if lower else found.high,
        floor=_log_floor(share, asked.worse),
        fewest=min(len(a.values), len(b.values)),
    )
    return Compared(
        asked=asked,
        a_side=a,
        b_side=b,
        a=level_a,
        b=level_b,
        change=_share(found.estimate),
        interval=(_share(found.low), _share(found.high)),
        detectable=abs(_share(-found.detectable if lower else found.detectable)),
        word=word,
    )


def _share(logarithm: float) -> float:
    """A difference of logarithms as a share, kept finite for values no server has."""
    return math.expm1(min(logarithm, 300.0))


def _compare_levels(asked: Asked, a: Side, b: Side) -> Compared:
    if not a.values or not b.values:
        return _unknown(asked, a, b)
    level_a, level_b = fmean(a.values), fmean(b.values)
    size = max(abs(level_a), abs(level_b))
    in_mib = _in_mib(asked.metric)
    found = difference(
        a.values,
        b.values,
        prior=PRIOR_MIB if in_mib else PRIOR_RATIO * size,
        resolution=RESOLUTION_MIB if in_mib else RESOLUTION_RATIO * size,
    )
    lower = asked.worse is Worse.LOWER
    word = _word(
        -found.estimate if lower else found.estimate,
        -found.high if lower else found.low,
        -found.low if lower else found.high,
        floor=asked.floor.amount(level_a),
        fewest=min(len(a.values), len(b.values)),
    )
    return Compared(
        asked=asked,
        a_side=a,
        b_side=b,
        a=level_a,
        b=level_b,
        change=found.estimate,
        interval=(found.low, found.high),
        detectable=found.detectable,
        word=word,
    )


def died(asked: Asked, side: Side) -> int:
    """Starts of a side in which an event's worse outcome came."""
    bad = DIED if asked.worse is Worse.LOWER else SURVIVED
    return sum(value == bad for value in side.values)


def _compare_events(asked: Asked, a: Side, b: Side) -> Compared:
    found = _unknown(asked, a, b)
    if not a.values or not b.values:
        return found
    of_a, of_b = died(asked, a), died(asked, b)
    word = Word.CANNOT_TELL
    if _died_more(of_a, len(a.values), of_b, len(b.values)):
        word = Word.REPRODUCED
    elif _died_more(of_b, len(b.values), of_a, len(a.values)):
        word = Word.IMPROVED
    elif of_b == 0 and len(b.values) >= EQUIVALENCE_STARTS:
        word = Word.NOT_REPRODUCED
    return replace(found, word=word, detectable=possible_rate(len(b.values)))


def _died_more(one: int, of_one: int, other: int, of_other: int) -> bool:
    """Whether the other side dies more often: always against never (twice at least), or by Fisher's exact test."""
    if one == 0 and other == of_other and of_other >= 2:
        return True
    return fisher(one, of_one, other, of_other) <= CHANCE


def fisher(one: int, of_one: int, other: int, of_other: int) -> float:
    """Fisher's exact one-sided p: the chance of at least `other` of all deaths on the other side, both being alike."""
    deaths, starts = one + other, of_one + of_other
    ways = sum(
        math.comb(of_other, count) * math.comb(of_one, deaths - count)
        for count in range(other, min(deaths, of_other) + 1)
        if deaths - count <= of_one
    )
    return ways / math.comb(starts, deaths)


def possible_rate(starts: int) -> float:
    """The death rate (0 to 1) that is still possible at 95 % after so many starts (at least 1) without a death."""
    return float(1 - CHANCE ** (1 / starts))
