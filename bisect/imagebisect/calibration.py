"""Do the two ends differ? A robust comparison of their starts, with one of four answers or a wish for more. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from imagebisect.noise import BETWEEN_DF, within_variance
from imagebisect.posterior import Start, within_slopes
from imagebisect.quantiles import student_quantile
from imagebisect.scale import Scale

MOST_STARTS = 6
"""Starts of each end for calibration; what they do not show is not shown here."""

PROMISING_STARTS = 8
"""The same where an effect above the floor is likely but not yet sure."""

EQUIVALENCE_STARTS = 3
"""Starts of each end before `not reproduced` or `improved` may be said."""

LARGE_ENOUGH = 0.8
"""An effect counts from this share of the floor on: its own estimate is noisy."""

DOUBTED = 0.4
"""Two starts of one end that lie farther apart than this share of the effect cast doubt on it."""

DOUBTED_MAJORITY = 0.25
"""The same for the closest majority of three or more."""

TORN = 2.5
"""Spreads of starts that the closest majority of an end may lie apart before equal ends are said to be equal."""

DRIFTING = 0.4
"""A drift is believed at the ends where the starts' spread is below this share of what it was, once it is out."""

ODD = 0.05
"""Share of starts that are odd for reasons of their own."""

FAST_ODD = 0.1
"""How much rarer odd starts are above their level than below it: most that goes wrong makes a start slow."""

ODD_SURPRISE = 0.05
"""Chance below which so many odd starts are no accident."""


class Ends(StrEnum):
    """How the two ends compare."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    IMPROVED = "improved"
    INCONCLUSIVE = "inconclusive"
    MORE = "more"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A less B on the scale, its standard error and degrees of freedom, and the spread of starts (sd)."""

    drop: float
    error: float
    df: float
    spread: float

    @property
    def t(self) -> float:
        """The drop in standard errors."""
        return self.drop / self.error

    def half_width(self, confidence: float = 0.95) -> float:
        """Half the width of the interval around the drop."""
        return quantile(0.5 + confidence / 2, self.df) * self.error


@lru_cache(maxsize=4096)
def _quantile(p: float, tenths: int) -> float:
    return student_quantile(p, tenths / 10)


def quantile(p: float, df: float) -> float:
    """Student's quantile, remembered to a tenth of a degree of freedom."""
    return _quantile(p, max(5, round(df * 10)))


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    count = len(ordered)
    return ordered[count // 2] if count % 2 else (ordered[count // 2 - 1] + ordered[count // 2]) / 2


def location(values: Sequence[float], spread: float, width: float, share: float = ODD) -> tuple[float, float, float]:
    """(location, effective number, weighted squares) of one side; odd starts count by their chance of being none.

    `share` of the starts are odd. Two starts that disagree are left to disagree: nobody knows which is the odd one.
    """
    middle, weights = _median(values), [1.0] * len(values)
    if len(values) > 2 and share > 0:
        odd = share / (1 - share) * math.sqrt(2 * math.pi) * spread / width
        for _ in range(5):
            weights = [
                1 / (1 + odd * (1 if v < middle else FAST_ODD) * math.exp(min(((v - middle) / spread) ** 2 / 2, 60.0)))
                for v in values
            ]
            total = sum(weights)
            if total < 1:
                return _median(values), float(len(values)), sum((v - _median(values)) ** 2 for v in values)
            middle = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    squares = sum(w * (v - middle) ** 2 for w, v in zip(weights, values, strict=True))
    return middle, sum(weights), squares


def _plain(values: Sequence[float]) -> tuple[float, float, float]:
    middle = sum(values) / len(values)
    return middle, float(len(values)), sum((v - middle) ** 2 for v in values)


@lru_cache(maxsize=256)
def _most_odd(starts: int, share: float) -> float:
    """The largest number of odd starts that is no surprise (at 5 %), and half a one for those in doubt."""
    chance, count = 0.0, 0
    while chance < 1 - ODD_SURPRISE:
        chance += math.comb(starts, count) * share**count * (1 - share) ** (starts - count)
        count += 1
    return count - 0.5


def _rough_spread(sides: Sequence[Sequence[float]]) -> float:
    """The spread of starts by the median of their distances, that half of them may be odd without harm; 0: unknown."""
    distances = [abs(v - _median(side)) for side in sides if len(side) > 2 for v in side]
    kept = sorted(distances)[sum(len(side) > 2 for side in sides) :]
    return 1.4826 * _median(kept) if kept else 0.0


def difference(good: Sequence[Start], bad: Sequence[Start], scale: Scale, *, df: float = BETWEEN_DF) -> Difference:
    """The difference of two builds by their starts, each at least one; the scale's noise counts for `df` of them."""
    prior_df = df
    within = within_variance([start.reps for start in (*good, *bad)], scale.noise)
    reps = [len(start.reps) for start in (*good, *bad)]
    prior = scale.noise.between**2 + within * sum(1 / n for n in reps) / len(reps)
    variance = prior
    sides = [[start.place for start in side] for side in (good, bad)]
    variance = max(variance, _rough_spread(sides) ** 2)
    width = scale.slow_reach + scale.fast_reach
    share = max(ODD, scale.noise.slow)
    total = len(good) + len(bad)
    for _ in range(5):
        found = [location(side, math.sqrt(variance), width, share) for side in sides]
        effective = sum(count for _, count, _ in found)
        if share and effective < total - _most_odd(total, share):
            # more odd starts than there can be: it is the host that is wide
            share = 0.0
            found = [_plain(side) for side in sides]
            effective = total
        df = prior_df + max(effective - 2, 0.0)
        variance = (prior_df * prior + sum(squares for _, _, squares in found)) / df
    error = math.sqrt(variance * (1 / found[0][1] + 1 / found[1][1]))
    return Difference(drop=found[0][0] - found[1][0], error=error, df=df, spread=math.sqrt(variance))


def _doubted(side: Sequence[Start], effect: float, scale: Scale) -> bool:
    """Whether an end's starts disagree: two of two, or no majority that lies together."""
    places = sorted(start.place for start in side)
    if len(places) < 2:
        return False
    needed = len(places) // 2 + 1
    closest = min(places[i + needed - 1] - places[i] for i in range(len(places) - needed + 1))
    if len(places) == 2:
        return closest > DOUBTED * abs(effect)
    return closest > max(DOUBTED_MAJORITY * abs(effect), 5 * scale.noise.between)


def _torn(side: Sequence[Start], found: Difference, scale: Scale) -> bool:
    """Whether no majority of an end's starts lies together, so that nobody knows where it is."""
    places = sorted(start.place for start in side)
    needed = len(places) // 2 + 1
    closest = min(places[i + needed - 1] - places[i] for i in range(len(places) - needed + 1))
    return closest > max(scale.floor, 5 * scale.noise.between, TORN * found.spread)


def _without_drift(good: Sequence[Start], bad: Sequence[Start]) -> tuple[Sequence[Start], Sequence[Start]]:
    """The starts with a drift of the host taken out, where three of each end show one plainly."""
    if min(len(good), len(bad)) < EQUIVALENCE_STARTS:
        return good, bad
    slope = _median(within_slopes((*good, *bad)) or [0.0])
    sides = [[replace(s, reps=tuple(rep - slope * s.at for rep in s.reps)) for s in side] for side in (good, bad)]
    before = _rough_spread([[s.place for s in side] for side in (good, bad)])
    after = _rough_spread([[s.place for s in side] for side in sides])
    return (sides[0], sides[1]) if after < DRIFTING * before else (good, bad)


def compare(good: Sequence[Start], bad: Sequence[Start], scale: Scale) -> tuple[Ends, Difference]:
    """What the starts of the two ends say; MORE asks for another pair (the end with fewer starts first)."""
    good, bad = _without_drift(good, bad)
    found = difference(good, bad, scale)
    fewest, most = min(len(good), len(bad)), max(len(good), len(bad))
    promising = found.drop > LARGE_ENOUGH * scale.floor and found.t > quantile(0.95, found.df)
    allowed = PROMISING_STARTS if promising else MOST_STARTS
    spent = fewest >= allowed or most >= 2 * allowed
    doubted = _doubted(good, found.drop, scale) or _doubted(bad, found.drop, scale)
    sure = abs(found.t) > quantile(0.995, found.df) and abs(found.drop) >= LARGE_ENOUGH * scale.floor
    if sure and not doubted:
        if found.drop > 0:
            return Ends.REPRODUCED, found
        if fewest >= EQUIVALENCE_STARTS:
            return Ends.IMPROVED, found
    if (
        fewest >= EQUIVALENCE_STARTS
        and found.drop + found.half_width() < scale.floor
        and not (_torn(good, found, scale) or _torn(bad, found, scale))
    ):
        return Ends.NOT_REPRODUCED, found
    return (Ends.INCONCLUSIVE if spent else Ends.MORE), found


def detectable(found: Difference, starts: int = MOST_STARTS) -> float:
    """The smallest drop that so many starts a side would show four times in five."""
    df = BETWEEN_DF + 2 * starts - 2
    return (quantile(0.995, df) + quantile(0.8, df)) * found.spread * math.sqrt(2 / starts)
