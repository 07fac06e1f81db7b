"""Events: which build is the first that dies? Exact over how often good and bad builds die. Pure.

One death is strong evidence, one survival is worth what the bad end's own deaths say: where it dies in 5 of 16 starts,
a survival is worth little. Both rates are integrated over, so nothing is assumed of how flaky the failure is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from imagebisect.comparison import fisher, possible_rate
from imagebisect.domain import Verdict
from imagebisect.posterior import DECIDED, Floats
from imagebisect.verdict import SURVIVED, survivals_needed

BAD_RATES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.995])
"""How often a bad build dies: most of the belief is on always, as most out-of-memory failures do."""

BAD_BELIEF = np.array([0.2 / 9] * 9 + [0.8])
GOOD_RATES = np.array([0.01, 0.1, 0.25])
GOOD_BELIEF = np.array([0.93, 0.05, 0.02])

EVENT_STARTS = 5
"""Survivals of the bad end before `not reproduced` may be said, where the target has no floor: at most 45 % can die."""

GOOD_STARTS = 3
MOST_EVENT_STARTS = 12
"""Starts of the bad end of an event target; a floor (a death rate) may ask for so many."""

CHANCE = 0.05


def equivalence_starts(floor: float) -> int:
    """Survivals of the bad end that leave at most a death rate of `floor` possible (at 95 %)."""
    if floor <= 0:
        return EVENT_STARTS
    count = GOOD_STARTS
    while possible_rate(count) > floor and count < MOST_EVENT_STARTS:
        count += 1
    return count


@dataclass(frozen=True, kw_only=True)
class EventEnds:
    """What the ends' starts say: `reproduced`, `not_reproduced`, `improved`, `inconclusive`, or the wish for more."""

    word: str
    want_good: bool = False
    want_bad: bool = False


def compare_events(good: Sequence[float], bad: Sequence[float], floor: float) -> EventEnds:
    """The ends of an event target: the good one must survive, the bad one die, beyond luck."""
    dead_good = sum(value != SURVIVED for value in good)
    dead_bad = sum(value != SURVIVED for value in bad)
    if not good or not bad:
        return EventEnds(word="more", want_good=not good, want_bad=not bad)
    if dead_bad and not dead_good:
        always = dead_bad == len(bad)
        wanted_bad = 2 if always else 3
        wanted_good = 1 if always else max(3, survivals_needed(1 - dead_bad / len(bad)))
        if len(bad) >= wanted_bad and len(good) >= min(wanted_good, MOST_EVENT_STARTS):
            return EventEnds(word="reproduced")
        return EventEnds(word="more", want_good=len(good) < wanted_good, want_bad=len(bad) < wanted_bad)
    if not dead_bad and not dead_good:
        need = equivalence_starts(floor)
        if len(bad) >= need and len(good) >= GOOD_STARTS:
            return EventEnds(word="not_reproduced")
        return EventEnds(word="more", want_good=len(good) < GOOD_STARTS, want_bad=len(bad) < need)
    most = 8
    if len(good) >= GOOD_STARTS and len(bad) >= GOOD_STARTS:
        if fisher(dead_good, len(good), dead_bad, len(bad)) <= CHANCE / 5:
            return EventEnds(word="reproduced")
        if dead_good and not dead_bad and len(bad) >= survivals_needed(1 - dead_good / len(good)):
            return EventEnds(word="improved")
    if len(good) >= most and len(bad) >= most:
        return EventEnds(word="inconclusive")
    return EventEnds(word="more", want_good=len(good) < most, want_bad=len(bad) < most)


@dataclass(frozen=True, kw_only=True)
class Survival:
    """The posterior of an event target over a range of builds; the same words as `posterior.Fit`."""

    low: int
    high: int
    deaths: Floats
    lives: Floats
    posterior: Floats
    chance_bad: Floats
    per_build: Floats
    bad_rate: float

    def mass(self, low: int, high: int) -> float:
        """The chance that the first bad build lies in (low, high]."""
        return float(self.chance_bad[high - self.low] - self.chance_bad[low - self.low])

    def far_off(self, _build: int) -> tuple[bool, bool]:
        """Events have no third level."""
        return False, False

    def verdict(self, build: int) -> Verdict:
        """One build's verdict from its own starts."""
        weight = float(self.per_build[build - self.low])
        return Verdict.GOOD if weight >= DECIDED else Verdict.BAD if weight <= -DECIDED else Verdict.UNCLEAR


def survive(values: Mapping[int, Sequence[float]], low: int, high: int, marks: Mapping[int, Verdict]) -> Survival:
    """The posterior over (low, high]: `values` by build, 1.0 survived."""
    size = high - low + 1
    deaths, lives = np.zeros(size), np.zeros(size)
    for build, seen in values.items():
        if low <= build <= high:
            dead = sum(value != SURVIVED for value in seen)
            deaths[build - low], lives[build - low] = dead, len(seen) - dead
    marked = np.zeros(size)
    for build, verdict in marks.items():
        if low < build < high and verdict in (Verdict.GOOD, Verdict.BAD):
            marked[build - low] = 60.0 if verdict is Verdict.GOOD else -60.0
    as_good = np.outer(np.log(GOOD_RATES), deaths) + np.outer(np.log1p(-GOOD_RATES), lives)
    as_bad = np.outer(np.log(BAD_RATES), deaths) + np.outer(np.log1p(-BAD_RATES), lives)
    good_side = np.cumsum(as_good + marked, axis=1)[:, :-1]
    bad_side = as_bad[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
    belief = np.log(np.outer(GOOD_BELIEF, BAD_BELIEF))
    possible = BAD_RATES[None, :] >= 2 * GOOD_RATES[:, None]
    joint = belief[:, :, None] + good_side[:, None, :] + bad_side[None, :, :]
    joint = np.where(possible[:, :, None], joint, -np.inf)
    weight = np.exp(joint - joint.max())
    weight /= weight.sum()
    posterior = weight.sum(axis=(0, 1))
    of_bad = weight.sum(axis=(0, 2))
    of_good = weight.sum(axis=(1, 2))
    per_build = np.array(
        [
            math.log(float(of_good @ np.exp(as_good[:, b]))) - math.log(float(of_bad @ np.exp(as_bad[:, b])))
            if deaths[b] or lives[b]
            else 0.0
            for b in range(size)
        ]
    )
    chance = np.concatenate(([0.0], np.minimum(np.cumsum(posterior), 1.0)))
    chance[-1] = 1.0
    return Survival(
        low=low,
        high=high,
        deaths=deaths,
        lives=lives,
        posterior=posterior,
        chance_bad=chance,
        per_build=per_build + marked,
        bad_rate=float(of_bad @ BAD_RATES),
    )
