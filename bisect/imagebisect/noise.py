"""The noise of starts: how far apart reps and starts of one build lie, and how often a good build starts slow. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

WITHIN_DF = 2.0
"""Starts' worth of belief in the assumed spread of reps inside a start."""

BETWEEN_DF = 3.0
"""The same for the spread between starts of one build."""

SLOW_WEIGHT = 10.0
"""Starts that the assumed share of slow starts counts for."""

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


def within_variance(starts: Iterable[Sequence[float]], prior: Noise) -> float:
    """The variance of one rep inside its start, pooled over starts with several and with what is assumed.

    A start whose reps lie far wider than those of the others holds an odd rep and is left out; where most are wide, the
    host is.
    """
    groups = [reps for reps in starts if len(reps) > 1]
    own = sorted(sum((rep - fmean(reps)) ** 2 for rep in reps) / (len(reps) - 1) for reps in groups)
    typical = max(own[(len(own) - 1) // 2] if own else 0.0, prior.within**2)
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


def between_prior(prior: Noise, within: float) -> float:
    """The variance expected between starts of one build: what is assumed, and no less than that of reps in a start."""
    return max(prior.between**2, within)
