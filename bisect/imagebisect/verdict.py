"""Numbers in, verdict out: the plain rule. Pure.

The value of a start is one number (the median of its reps). Verdicts are relative to both anchors
as measured on this host: the threshold is the midpoint between them (as TensorRT-LLM #16601 did).
A better rule replaces `separation` and `judge` and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from imagebisect.domain import Target, Verdict, Worse
from imagebisect.scenario import MetricKind

ANCHOR_STARTS = 2
"""Starts of each anchor before anything is searched."""

EVENT_ANCHOR_STARTS = 3
"""Starts of the bad anchor of an event target, unless it died in each of the first two."""

SPREADS_APART = 3.0
"""The ends must lie this many times the larger start-to-start range apart (peers: gap >= 3x spread)."""

GREY = 0.15
"""A value within this share of the good-bad distance from the midpoint may not move a bracket alone."""

MAX_STARTS = 4
"""Starts of one build for one ratio or level target; what they leave unclear stays unclear."""

LUCK = 0.05
"""Chance accepted that a bad build survives all the starts that called it good."""

SURVIVED = 1.0
DIED = 0.0


def survivals_needed(rate: float) -> int:
    """Survivals in a row that an end which survives at `rate` would show with a chance of at most LUCK."""
    return 1 if rate <= 0 else math.ceil(math.log(LUCK) / math.log(min(rate, 0.99)))


class Separation(StrEnum):
    """How the two ends compare."""

    APART = "apart"
    IMPROVED = "improved"
    TOO_CLOSE = "too_close"
    NOISY = "noisy"


@dataclass(frozen=True, kw_only=True)
class Levels:
    """The two ends of one target, in the metric's unit; for events `bad` is the survival rate of the bad end."""

    good: float
    bad: float
    kind: MetricKind

    @property
    def threshold(self) -> float:
        """The midpoint between the ends."""
        return (self.good + self.bad) / 2

    @property
    def survivals_needed(self) -> int:
        """Survivals in a row that make an event target's build good: a bad one would do it with chance <= LUCK."""
        return survivals_needed(self.bad) if self.kind is MetricKind.EVENT else 1


def start_range(values: Sequence[float]) -> float:
    """The start-to-start range of one build's values; 0 for fewer than two."""
    return max(values) - min(values) if len(values) > 1 else 0.0


def spread(values: Sequence[float]) -> float:
    """How far starts of one build lie apart: their range; of MAX_STARTS without the one farthest from the median.

    One odd start is outvoted by three that agree, as in `judge`, and by no fewer.
    """
    if len(values) < MAX_STARTS:
        return start_range(values)
    middle = median(values)
    return start_range(sorted(values, key=lambda value: abs(value - middle))[:-1])


def level(values: Sequence[float], kind: MetricKind) -> float:
    """What the starts of one build say together: the median, or the survival rate for events."""
    return sum(values) / len(values) if kind is MetricKind.EVENT else median(values)


def separation(good: Sequence[float], bad: Sequence[float], target: Target) -> Separation:
    """Compare the ends' start values.

    APART needs the floor and SPREADS_APART times the starts' spread; NOISY has only the floor. Events are APART
    when the good end never died and the bad end did.
    """
    kind = target.metric.kind
    worse_by = level(bad, kind) - level(good, kind)
    if target.worse is Worse.LOWER:
        worse_by = -worse_by
    if kind is MetricKind.EVENT:
        if worse_by > 0 and all(value == SURVIVED for value in good):
            return Separation.APART
        if worse_by < 0 and all(value == SURVIVED for value in bad) and len(bad) >= survivals_needed(level(good, kind)):
            return Separation.IMPROVED
        return Separation.TOO_CLOSE
    floor = target.floor.amount(level(good, kind))
    if worse_by == 0 or abs(worse_by) < floor:
        return Separation.TOO_CLOSE
    if abs(worse_by) < SPREADS_APART * max(spread(good), spread(bad)):
        return Separation.NOISY
    return Separation.APART if worse_by > 0 else Separation.IMPROVED


def position(value: float, levels: Levels) -> float:
    """Where a value lies between the ends: 0 at the good one, 1 at the bad one."""
    return (value - levels.good) / (levels.bad - levels.good)


def judge(values: Sequence[float], levels: Levels) -> Verdict:
    """The verdict of one build from the values of its starts; UNCLEAR asks for another start.

    Events: one death is BAD, GOOD needs `survivals_needed` survivals. Others: starts that agree decide;
    one dissenter is outvoted by three; values that keep to the middle are OTHER after MAX_STARTS.
    """
    if not values:
        return Verdict.UNCLEAR
    if levels.kind is MetricKind.EVENT:
        if any(value != SURVIVED for value in values):
            return Verdict.BAD
        return Verdict.GOOD if len(values) >= levels.survivals_needed else Verdict.UNCLEAR
    places = [position(value, levels) for value in values]
    good = sum(place <= 0.5 - GREY for place in places)
    bad = sum(place >= 0.5 + GREY for place in places)
    grey = len(places) - good - bad
    if not grey and not bad:
        return Verdict.GOOD
    if not grey and not good:
        return Verdict.BAD
    outvoted = 3
    if good >= outvoted and good > bad + grey + 1:
        return Verdict.GOOD
    if bad >= outvoted and bad > good + grey + 1:
        return Verdict.BAD
    if len(values) >= MAX_STARTS and not (good and bad):
        return Verdict.OTHER
    return Verdict.UNCLEAR


def exhausted(values: Sequence[float], levels: Levels) -> bool:
    """Whether another start of an UNCLEAR build would be one too many."""
    if levels.kind is MetricKind.EVENT:
        return len(values) >= levels.survivals_needed
    return len(values) >= MAX_STARTS
