"""Do the two ends differ? A robust comparison of their starts, with one of four answers or a wish for more. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from imagebisect.noise import BETWEEN_DF, within_variance
from imagebisect.posterior import Start
from imagebisect.quantiles import student_quantile
from imagebisect.scale import Scale

MOST_STARTS = 6
"""Starts of each end for calibration; what they do not show is not shown here."""

EQUIVALENCE_STARTS = 3
"""Starts of each end before `not reproduced` or `improved` may be said."""

LARGE_ENOUGH = 0.8
"""An effect counts from this share of the floor on: its own estimate is noisy."""

DOUBTED = 0.4
"""Starts of one end that lie farther apart than this share of the effect cast doubt on it."""

_ROBUST_DF = 3.0


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


def _location(values: Sequence[float], spread: float) -> tuple[float, float, float]:
    """(location, effective number, weighted squares) of one side, odd starts weighed down (t with 3 df)."""
    ordered = sorted(values)
    count = len(ordered)
    middle = ordered[count // 2] if count % 2 else (ordered[count // 2 - 1] + ordered[count // 2]) / 2
    weights = [1.0] * count
    if count > 2:
        for _ in range(5):
            weights = [min(1.0, (_ROBUST_DF + 1) / (_ROBUST_DF + ((v - middle) / spread) ** 2)) for v in ordered]
            middle = sum(w * v for w, v in zip(weights, ordered, strict=True)) / sum(weights)
    squares = sum(w * (v - middle) ** 2 for w, v in zip(weights, ordered, strict=True))
    return middle, sum(weights), squares


def difference(
    good: Sequence[Start], bad: Sequence[Start], scale: Scale, *, df: float = BETWEEN_DF
) -> Difference:
    """The difference of two builds by their starts, each at least one; the scale's noise counts for `df` of them."""
    prior_df = df
    within = within_variance([start.reps for start in (*good, *bad)], scale.noise)
    reps = [len(start.reps) for start in (*good, *bad)]
    prior = scale.noise.between**2 + within * sum(1 / n for n in reps) / len(reps)
    variance = prior
    sides = [[start.place for start in side] for side in (good, bad)]
    for _ in range(4):
        found = [_location(side, math.sqrt(variance)) for side in sides]
        effective = sum(count for _, count, _ in found)
        df = prior_df + max(effective - 2, 0.0)
        variance = (prior_df * prior + sum(squares for _, _, squares in found)) / df
    error = math.sqrt(variance * (1 / found[0][1] + 1 / found[1][1]))
    return Difference(drop=found[0][0] - found[1][0], error=error, df=df, spread=math.sqrt(variance))


def _doubted(side: Sequence[Start], effect: float) -> bool:
    """Whether one end's starts disagree; one odd start is outvoted by two that agree."""
    places = sorted(start.place for start in side)
    if len(places) < 2:
        return False
    needed = len(places) // 2 + 1
    closest = min(places[i + needed - 1] - places[i] for i in range(len(places) - needed + 1))
    return closest > DOUBTED * abs(effect)


def compare(good: Sequence[Start], bad: Sequence[Start], scale: Scale) -> tuple[Ends, Difference]:
    """What the starts of the two ends say; MORE asks for another pair (the end with fewer starts first)."""
    found = difference(good, bad, scale)
    fewest, most = min(len(good), len(bad)), max(len(good), len(bad))
    spent = fewest >= MOST_STARTS or most >= 2 * MOST_STARTS
    doubted = _doubted(good, found.drop) or _doubted(bad, found.drop)
    sure = abs(found.t) > quantile(0.995, found.df) and abs(found.drop) >= LARGE_ENOUGH * scale.floor
    if sure and not doubted:
        if found.drop > 0:
            return Ends.REPRODUCED, found
        if fewest >= EQUIVALENCE_STARTS:
            return Ends.IMPROVED, found
    if fewest >= EQUIVALENCE_STARTS and found.drop + found.half_width() < scale.floor:
        return Ends.NOT_REPRODUCED, found
    return (Ends.INCONCLUSIVE if spent else Ends.MORE), found


def detectable(found: Difference, starts: int = MOST_STARTS) -> float:
    """The smallest drop that so many starts a side would show four times in five."""
    df = BETWEEN_DF + 2 * starts - 2
    return (quantile(0.995, df) + quantile(0.8, df)) * found.spread * math.sqrt(2 / starts)
