"""The noise of starts: how far apart reps and starts of one build lie, and how often a good build starts slow. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

WITHIN_DF = 2.0
"""Starts' worth of belief in the assumed spread of reps inside a start."""

BETWEEN_DF = 3.0
"""The same for the spread between starts of one build."""

SLOW_WEIGHT = 10.0
"""Starts that the assumed share of slow starts counts for."""

CLOSEST_OF_THREE = 0.346
"""Mean square of the gap between the closest two of three normal values, in variances (a million draws)."""

ODD_REPS = 6.0
"""Reps of one start farther apart than so many of their standard deviations are left out of the pool."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What is assumed before anything is seen, on the scale of `scale.Scale`. A profiled host knows better.

    `within` and `between` are standard deviations of one rep inside a start and of starts of one build; `slow` is
    the share of a good build's starts that are slow throughout.
    """

    within: float
    between: float
    slow: float = 0.025


def start_value(reps: Sequence[float]) -> float:
    """One start's value on the scale: its only rep, the mean of two, the median of three."""
    ordered = sorted(reps)
    count = len(ordered)
    if count == 2:
        return fmean(ordered)
    middle = count // 2
    return ordered[middle] if count % 2 else fmean(ordered[middle - 1 : middle + 1])


def _of_closest(reps: Sequence[float]) -> float:
    """The variance of a start's reps by the two that lie closest: an odd rep does not widen it."""
    ordered = sorted(reps)
    gap = min(high - low for low, high in pairwise(ordered))
    return gap**2 / (2.0 if len(ordered) == 2 else CLOSEST_OF_THREE)


def within_variance(starts: Iterable[Sequence[float]], prior: Noise) -> float:
    """The variance of one rep inside its start, pooled over starts with several and with what is assumed.

    A start whose reps lie far wider than is usual here holds an odd rep and is left out; where most are wide, the host
    is.
    """
    groups = [reps for reps in starts if len(reps) > 1]
    usual = sorted(_of_closest(reps) for reps in groups)
    typical = max(usual[len(usual) // 2] if usual else 0.0, prior.within**2)
    squares, df = WITHIN_DF * prior.within**2, WITHIN_DF
    for reps in groups:
        if max(reps) - min(reps) <= ODD_REPS * typical**0.5:
            middle = fmean(reps)
            squares += sum((rep - middle) ** 2 for rep in reps)
            df += len(reps) - 1
    return squares / df


def slow_share(builds: Iterable[Sequence[float]], apart: float, prior: Noise) -> float:
    """How often a good build starts slow: what is assumed, and builds whose starts lie more than `apart` apart."""
    conflicts = seen = 0
    for values in builds:
        if len(values) > 1:
            seen += len(values)
            conflicts += max(values) - min(values) > apart
    return (SLOW_WEIGHT * prior.slow + conflicts) / (SLOW_WEIGHT + seen)
