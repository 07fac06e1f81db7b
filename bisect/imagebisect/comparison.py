"""Two builds compared by the values of their starts: numbers in, a word out. Pure.

Starts are the unit of evidence. Ratio metrics are compared on their logarithm, levels in their unit, events by
counting. Nothing is paired: starts interleaved A B B A spread a steady drift of the host over both sides alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean, variance

from imagebisect.domain import Floor, Target, TargetRole, Worse
from imagebisect.quantiles import student_quantile, student_tail
from imagebisect.scenario import Command, Metric, MetricKind, Scenario
from imagebisect.verdict import DIED, SURVIVED

SPREAD_STARTS = 2
"""Starts a side before anything but `cannot tell` is said: one shows nothing of this host's spread."""

EQUIVALENCE_STARTS = 3
"""Starts a side before `not reproduced` may be said, and before the starts' own spread is all that is used."""

FEW_STARTS_FACTOR = 2.0
"""With fewer starts a change must be this many times the floor before it is claimed."""

PRIOR_RATIO = 0.007
"""Standard deviation between two starts of one build that is assumed of a ratio metric beside what was seen."""

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

_HIGHER_IS_WORSE = ("non_kv_memory_mib", "growth_mib", "output_token_s")
"""Of the metrics that this tool names itself, beside all times of a start; the others are worse when they fall."""

NOT_MEASURED = "not_measured"
"""The cause of a value that is missing although nothing failed: this host or build has no such metric."""


class Word(StrEnum):
    """What a comparison says of one metric."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    IMPROVED = "improved"
    DIFFERS = "differs"
    NO_DIFFERENCE = "no difference"
    CANNOT_TELL = "cannot tell"


CLAIMS = (Word.REPRODUCED, Word.IMPROVED, Word.DIFFERS)
"""The words that say that something changed."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One metric to compare, which way is worse and from where on it matters. `target` None: defaults.

    `worse` None: nobody said which way a number of the user's own is worse, so it can only differ.
    """

    scenario: str
    metric: Metric
    worse: Worse | None
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
    for ratios and in the unit for levels; None for events and where a side has no value, `interval` also where one has
    no second start. `detectable` is the smallest change these starts would show, alike; for events the death rate
    that they would not miss. `p` is the chance of such a difference between equal builds (one-sided for events). `by_chance`:
    the change would be claimed if it were the only one looked at, but among so many some come by chance.
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
    p: float | None = None
    by_chance: bool = False

    @property
    def moved(self) -> bool:
        """Whether the 95 % interval leaves 0, whatever the size."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    @property
    def comparable(self) -> bool:
        """Whether both sides have a value."""
        return bool(self.a_side.values and self.b_side.values)


def default_worse(scenario: Scenario, metric: Metric) -> Worse | None:
    """Which way a metric of a scenario is worse where no target says so; None where only its user could know."""
    if isinstance(scenario, Command) and scenario.prints is not None:
        return Worse(scenario.worse) if scenario.worse is not None else None
    if scenario.kind == "startup" or metric.name.rpartition(".")[2] in _HIGHER_IS_WORSE:
        return Worse.HIGHER
    return Worse.LOWER


def asked_by_default(scenario: Scenario, metric: Metric) -> Asked:
    """A metric without a target: 3 %, or 64 MiB of a level in MiB, in the direction of its scenario's kind."""
    floor = DEFAULT_FLOOR_RATIO
    if metric.kind is MetricKind.EVENT:
        floor = DEFAULT_FLOOR_EVENT
    elif _in_mib(metric):
        floor = DEFAULT_FLOOR_MIB
    return Asked(scenario=scenario.name, metric=metric, worse=default_worse(scenario, metric), floor=floor)


def asked_by(target: Target) -> Asked:
    """A target's metric with its own direction and floor."""
    return Asked(
        scenario=target.scenario, metric=target.metric, worse=target.worse, floor=target.floor, target=target.name
    )


def as_target(asked: Asked) -> Target:
    """The question as a target, for what reads observations of targets; a direction that nobody gave is any."""
    name = asked.target or f"{asked.scenario}.{asked.metric.name}"
    return Target(
        name=name,
        scenario=asked.scenario,
        metric=asked.metric,
        worse=asked.worse or Worse.HIGHER,
        floor=asked.floor,
        role=TargetRole.WATCH,
    )


def _in_mib(metric: Metric) -> bool:
    return metric.kind is MetricKind.LEVEL and metric.unit == "MiB"


# --------------------------------------------------------------------------- numbers


@dataclass(frozen=True, kw_only=True)
class Difference:
    """B less A: the estimate, its 95 % interval, the smallest difference that so many starts would show, and p."""

    estimate: float
    low: float
    high: float
    detectable: float
    p: float


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
    p = 2 * student_tail(abs(estimate) / error, df) if error > 0 else float(estimate == 0)
    return Difference(estimate=estimate, low=estimate - half, high=estimate + half, detectable=shown, p=p)


def holm(chances: Sequence[float]) -> tuple[float, ...]:
    """Each p corrected for how many there are, so that one false claim among all of them stays as rare as CHANCE."""
    ranked = sorted(range(len(chances)), key=chances.__getitem__)
    found = [0.0] * len(chances)
    least = 0.0
    for rank, position in enumerate(ranked):
        least = max(least, min(1.0, (len(chances) - rank) * chances[position]))
        found[position] = least
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """The values of two sides where they can be subtracted, and what is known beforehand there.

    `fall` and `rise` are the changes that matter, `prior` and `resolution` standard deviations: all on that scale.
    """

    a: tuple[float, ...]
    b: tuple[float, ...]
    fall: float
    rise: float
    prior: float
    resolution: float

    @property
    def fewest(self) -> int:
        """Starts of the side that has fewer."""
        return min(len(self.a), len(self.b))

    @property
    def apart(self) -> bool:
        """Whether every value of one side lies beyond every value of the other."""
        return max(self.a) < min(self.b) or max(self.b) < min(self.a)

    @property
    def factor(self) -> float:
        """How many floors a change must have to be claimed."""
        return 1.0 if self.fewest >= EQUIVALENCE_STARTS else FEW_STARTS_FACTOR

    def claims(self, found: Difference) -> bool:
        """Whether there is a change and it matters, of one metric by itself."""
        if self.fewest < EQUIVALENCE_STARTS and not self.apart:
            return False
        needed = (self.fall if found.estimate < 0 else self.rise) * self.factor
        return found.low * found.high > 0 and abs(found.estimate) >= needed

    def excludes(self, found: Difference, worse: Worse | None) -> bool:
        """Whether a change that matters is excluded: a worse one, or any where no way is worse."""
        if self.fewest < EQUIVALENCE_STARTS:
            return False
        if self.fall == 0 and len({*self.a, *self.b}) == 1:
            return True  # a share of 0 is 0: no interval is narrower, and no value differs
        falls, rises = found.low > -self.fall, found.high < self.rise
        match worse:
            case Worse.LOWER:
                return falls
            case Worse.HIGHER:
                return rises
            case None:
                return falls and rises


def _word(scale: _Scale, found: Difference, worse: Worse | None, *, may_claim: bool) -> Word:
    if may_claim and scale.claims(found):
        if worse is None:
            return Word.DIFFERS
        return Word.REPRODUCED if (found.estimate < 0) == (worse is Worse.LOWER) else Word.IMPROVED
    if scale.excludes(found, worse):
        return Word.NO_DIFFERENCE if worse is None else Word.NOT_REPRODUCED
    return Word.CANNOT_TELL


def _log_fall(share: float) -> float:
    """A loss of a share as a distance between logarithms; a loss of everything is infinitely far."""
    return -math.log1p(-share) if share < 1 else math.inf


# --------------------------------------------------------------------------- answers


def compare_all(questions: Iterable[tuple[Asked, Side, Side]]) -> tuple[Compared, ...]:
    """The answer to each question. Metrics without a target are claims only after Holm's correction for their number."""
    asked = tuple(questions)
    found = [compare(*question) for question in asked]
    plain = [position for position, one in enumerate(found) if one.asked.target is None and one.interval is not None]
    for position, p in zip(plain, holm([found[position].p or 0.0 for position in plain]), strict=True):
        if p > CHANCE and found[position].word in CLAIMS:
            found[position] = replace(compare(*asked[position], may_claim=False), by_chance=True)
    return tuple(found)


def compare(asked: Asked, a: Side, b: Side, *, may_claim: bool = True) -> Compared:
    """What two builds' starts say of one metric. A start without a value leaves it at `cannot tell`.

    `may_claim` False: a change is not to be claimed, however clear it looks by itself.
    """
    match asked.metric.kind:
        case MetricKind.EVENT:
            found = _compare_events(asked, a, b)
        case MetricKind.LEVEL:
            found = _compare_levels(asked, a, b, may_claim=may_claim)
        case MetricKind.RATIO:
            found = _compare_ratios(asked, a, b, may_claim=may_claim)
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


def _compare_ratios(asked: Asked, a: Side, b: Side, *, may_claim: bool) -> Compared:
    if not a.values or not b.values or min(*a.values, *b.values) <= 0:
        return _unknown(asked, a, b)
    logs_a, logs_b = tuple(map(math.log, a.values)), tuple(map(math.log, b.values))
    level_a, level_b = math.exp(fmean(logs_a)), math.exp(fmean(logs_b))
    share = asked.floor.amount(level_a) / level_a
    fall, rise = _log_fall(share), math.log1p(share)
    if asked.worse is not None:  # the better way has the worse one's floor, so that swapping the builds swaps the word
        fall = rise = fall if asked.worse is Worse.LOWER else rise
    scale = _Scale(a=logs_a, b=logs_b, fall=fall, rise=rise, prior=PRIOR_RATIO, resolution=RESOLUTION_RATIO)
    found = difference(logs_a, logs_b, prior=scale.prior, resolution=scale.resolution)
    least = found.detectable
    if scale.factor > 1:
        least = max(least, scale.factor * (rise if asked.worse is Worse.HIGHER else fall))
    return _answered(
        replace(_unknown(asked, a, b), a=level_a, b=level_b, change=_share(found.estimate)),
        scale,
        found,
        interval=(_share(found.low), _share(found.high)),
        detectable=abs(_share(least if asked.worse is Worse.HIGHER else -least)),
        may_claim=may_claim,
    )


def _share(logarithm: float) -> float:
    """A difference of logarithms as a share, kept finite for values no server has."""
    return math.expm1(min(logarithm, 300.0))


def _compare_levels(asked: Asked, a: Side, b: Side, *, may_claim: bool) -> Compared:
    if not a.values or not b.values:
        return _unknown(asked, a, b)
    level_a, level_b = fmean(a.values), fmean(b.values)
    size = max(abs(level_a), abs(level_b))
    in_mib = _in_mib(asked.metric)
    floor = asked.floor.amount(level_a)
    scale = _Scale(
        a=a.values,
        b=b.values,
        fall=floor,
        rise=floor,
        prior=PRIOR_MIB if in_mib else PRIOR_RATIO * size,
        resolution=RESOLUTION_MIB if in_mib else RESOLUTION_RATIO * size,
    )
    found = difference(a.values, b.values, prior=scale.prior, resolution=scale.resolution)
    return _answered(
        replace(_unknown(asked, a, b), change=found.estimate),
        scale,
        found,
        interval=(found.low, found.high),
        detectable=max(found.detectable, floor * scale.factor if scale.factor > 1 else 0.0),
        may_claim=may_claim,
    )


def _answered(
    unknown: Compared,
    scale: _Scale,
    found: Difference,
    *,
    interval: tuple[float, float],
    detectable: float,
    may_claim: bool,
) -> Compared:
    """The answer with its word; one start a side leaves it at the numbers, as nothing is known of their spread."""
    if scale.fewest < SPREAD_STARTS:
        return unknown
    word = _word(scale, found, unknown.asked.worse, may_claim=may_claim)
    return replace(unknown, interval=interval, detectable=detectable, word=word, p=found.p)


def died(asked: Asked, side: Side) -> int:
    """Starts of a side in which an event's worse outcome came."""
    bad = SURVIVED if asked.worse is Worse.HIGHER else DIED
    return sum(value == bad for value in side.values)


def _compare_events(asked: Asked, a: Side, b: Side) -> Compared:
    found = _unknown(asked, a, b)
    if not a.values or not b.values:
        return found
    of_a, of_b = died(asked, a), died(asked, b)
    word = Word.CANNOT_TELL
    more = fisher(of_a, len(a.values), of_b, len(b.values))
    fewer = fisher(of_b, len(b.values), of_a, len(a.values))
    if more <= CHANCE:
        word = Word.REPRODUCED
    elif fewer <= CHANCE:
        word = Word.IMPROVED
    elif of_b == 0 and len(b.values) >= EQUIVALENCE_STARTS:
        word = Word.NOT_REPRODUCED
    return replace(found, word=word, detectable=possible_rate(len(b.values)), p=min(more, fewer))


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
    """The share of starts (0 to 1) with an effect that is still possible at 95 % after so many (at least 1) without."""
    return float(1 - CHANCE ** (1 / starts))
