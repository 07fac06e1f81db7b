"""What a target's standing rests on at one moment, in values for a reader: ends, belief, tests, weights. Pure.

Builds are names here. `good` and `bad` of a pair are its two sides, whichever of them is the older one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from imagebisect.calibration import (
    EQUIVALENCE_STARTS,
    LARGE_ENOUGH,
    Difference,
    Ends,
    compare,
    location,
    quantile,
)
from imagebisect.domain import LevelSummary, Status, TargetResult, Verdict
from imagebisect.evidence import Evidence, Question
from imagebisect.inquiry import CONFIRMED, CONFIRMED_FLAKY, LUCK_BAD, LUCK_LONE, SMALLEST, Inquiry
from imagebisect.posterior import DECIDED, FAR, Fit
from imagebisect.repetition import RepRule
from imagebisect.search import Standing
from imagebisect.survival import Survival, compare_events

MOST_PAIRS = 3
"""Pairs that are shown of a belief."""

ALWAYS = 0.9
"""Death rate from which on the smaller chance is enough for a pair of an event target."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two builds next to each other among those that can be tested, and the chance that it broke between them."""

    good: str
    bad: str
    chance: float


@dataclass(frozen=True, kw_only=True)
class EndsSeen:
    """How the two ends compare: starts with a value, the difference in words with its t, and what that means.

    `needed` is the t from which on it counts.
    """

    good_starts: int
    bad_starts: int
    change: str | None
    t: float | None
    needed: float | None
    says: str


@dataclass(frozen=True, kw_only=True)
class Belief:
    """Where it broke in low..high, as far as the starts tell. `bits` is what is still open: 3 is eight places alike.

    `good` and `bad` are the innermost builds with a verdict; levels are in the metric's unit (None for events), noise
    is in words; `death_rate` is how often a bad build dies (None but for events).
    """

    low: str
    high: str
    good: str
    bad: str
    suspects: int
    bits: float
    pairs: tuple[Pair, ...]
    good_level: float | None = None
    bad_level: float | None = None
    within: str | None = None
    between: str | None = None
    drift: str | None = None
    death_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """Where a target stands (`status` None: open) and what that rests on; `asks` is the start it would like."""

    status: str | None
    reason: str | None
    ends: EndsSeen
    belief: Belief | None
    asks: str | None


@dataclass(frozen=True, kw_only=True)
class Test:
    """One condition of an end, with what it needed and what there was."""

    what: str
    needed: str
    got: str
    passed: bool


def odds(weight: float) -> str:
    """Evidence (natural logarithm of the odds for good) in words: `good 440:1`, `says nothing`."""
    size = abs(weight)
    if size < math.log(1.5):
        return "says next to nothing"
    side = "good" if weight > 0 else "bad"
    if size > math.log(1e6):
        return f"{side} beyond 1,000,000:1"
    ratio = math.exp(size)
    return f"{side} {ratio:,.0f}:1" if ratio >= 10 else f"{side} {ratio:.1f}:1"


def _words(inquiry: Inquiry, drop: float) -> str:
    return inquiry.scale.words(drop, inquiry.target.metric.unit)


def _size(inquiry: Inquiry, drop: float) -> str:
    return _words(inquiry, drop).lstrip("+-")


# ------------------------------------------------------------------------ the ends


def _says(inquiry: Inquiry, word: Ends, found: Difference, needed: float) -> str:
    floor = _size(inquiry, inquiry.scale.floor)
    match word:
        case Ends.REPRODUCED:
            return "they differ"
        case Ends.IMPROVED:
            return "the bad end is better"
        case Ends.NOT_REPRODUCED:
            return f"a change of {floor} is excluded"
        case Ends.INCONCLUSIVE:
            return "neither a difference nor its absence, and no more starts will be made"
        case Ends.MORE:
            if abs(found.drop) >= LARGE_ENOUGH * inquiry.scale.floor and abs(found.t) <= needed:
                return "the difference may still be noise"
            if abs(found.drop) >= LARGE_ENOUGH * inquiry.scale.floor:
                return "starts of one end disagree too much"
            possible = max(found.drop + found.half_width(), 0.0)
            return f"{_size(inquiry, possible)} worse is still possible, {floor} would matter"


def ends_seen(inquiry: Inquiry) -> EndsSeen:
    """How a target's ends compare now."""
    ask, evidence = inquiry.ask, inquiry.evidence
    counts = [len(evidence.values(build)) for build in (ask.good, ask.bad)]
    missing = [end for end, count in zip(("good", "bad"), counts, strict=True) if not count]
    if missing:
        text = f"no value of the {' and the '.join(missing)} end yet"
        return EndsSeen(good_starts=counts[0], bad_starts=counts[1], change=None, t=None, needed=None, says=text)
    if inquiry.event:
        good, bad = inquiry.survivals[ask.good], inquiry.survivals[ask.bad]
        floor = inquiry.target.floor
        word = compare_events(good, bad, 0.0 if floor.relative else floor.value).word
        dead = [sum(value != 1.0 for value in side) for side in (good, bad)]
        text = {
            "reproduced": "they differ",
            "not_reproduced": "both survive",
            "improved": "the good end dies more often",
            "inconclusive": "they die too much alike",
        }.get(word, "more starts are needed")
        died = f"{dead[0]} of {counts[0]} starts of the good end died, {dead[1]} of {counts[1]} of the bad one"
        return EndsSeen(good_starts=counts[0], bad_starts=counts[1], change=died, t=None, needed=None, says=text)
    word_of, found = compare(inquiry.starts[ask.good], inquiry.starts[ask.bad], inquiry.scale)
    needed = quantile(0.995, found.df)
    return EndsSeen(
        good_starts=counts[0],
        bad_starts=counts[1],
        change=_words(inquiry, found.drop),
        t=round(found.t, 2),
        needed=round(needed, 2),
        says=_says(inquiry, word_of, found, needed),
    )


# -------------------------------------------------------------------------- belief


def belief_of(inquiry: Inquiry, result: TargetResult) -> Fit | Survival | None:
    """The posterior of a target whose ends are known to differ; None for the others."""
    if result.first_bad is None or result.last_good is None:
        return None
    return inquiry.belief(inquiry.ask.good, inquiry.ask.bad)


def part_of(ask: Question, standing: Standing) -> tuple[int, int] | None:
    """The part of the range that a target looks into now, where it lies between levels of its own; None: no search yet."""
    if standing.result.first_bad is None or standing.result.last_good is None:
        return None
    known = standing.wish.fit if standing.wish else None
    return (known.low, known.high) if known is not None else (ask.good, ask.bad)


def can_believe(inquiry: Inquiry, part: tuple[int, int]) -> bool:
    """Whether both ends of a part have a value."""
    return all(inquiry.evidence.values(build) for build in part)


def _pairs(inquiry: Inquiry, belief: Fit | Survival) -> tuple[Pair, ...]:
    ask = inquiry.ask
    ends = (belief.low, belief.high)
    able = [b for b in range(belief.low, belief.high + 1) if b in ends or b not in inquiry.gone]
    found = sorted(pairwise(able), key=lambda pair: (-round(belief.mass(*pair), 9), pair[0]))[:MOST_PAIRS]
    return tuple(Pair(good=ask.names[a], bad=ask.names[b], chance=belief.mass(a, b)) for a, b in found)


def believed(inquiry: Inquiry, part: tuple[int, int]) -> Belief:
    """The belief about a part of the range, both of whose ends have a value."""
    ask, belief = inquiry.ask, inquiry.belief(*part)
    last, first = inquiry.bracket(*part, belief)
    mass = belief.posterior[belief.posterior > 1e-12]
    plain = Belief(
        low=ask.names[part[0]],
        high=ask.names[part[1]],
        good=ask.names[last],
        bad=ask.names[first],
        suspects=first - last,
        bits=abs(float(-(mass * np.log2(mass)).sum())),
        pairs=_pairs(inquiry, belief),
        death_rate=belief.bad_rate if isinstance(belief, Survival) else None,
    )
    if not isinstance(belief, Fit):
        return plain
    return replace(
        plain,
        good_level=inquiry.scale.value(belief.good),
        bad_level=inquiry.scale.value(belief.bad),
        within=_size(inquiry, belief.within),
        between=_size(inquiry, belief.between),
        drift=_words(inquiry, -belief.drift) if belief.drift else None,
    )


def grounds(ask: Question, standing: Standing) -> Grounds:
    """What a target's standing rests on."""
    inquiry = Inquiry(ask, standing.evidence)
    part = part_of(ask, standing)
    return Grounds(
        status=standing.result.status.value if standing.result.status else None,
        reason=standing.result.reason,
        ends=ends_seen(inquiry),
        belief=believed(inquiry, part) if part is not None else None,
        asks=standing.wish.why if standing.wish else None,
    )


def weights(inquiry: Inquiry, part: tuple[int, int]) -> dict[int, float]:
    """By the number of a start in a part of the range: how much it speaks for good (natural logarithm of the odds).

    As all starts say now. Events: what a build's starts say together, on each of them.
    """
    belief, evidence = inquiry.belief(*part), inquiry.evidence
    if isinstance(belief, Fit):
        return {start.at: float(weight) for start, weight in zip(belief.starts, belief.evidence, strict=True)}
    return {
        one.at: float(belief.per_build[build - belief.low])
        for build, seen in evidence.observations.items()
        if belief.low <= build <= belief.high
        for one in seen
        if one.value is not None
    }


def verdict_rule(ask: Question, evidence: Evidence, result: TargetResult, summary: LevelSummary) -> str:
    """Why a build has the verdict that it has; `summary` is the build's in the question's order."""
    inquiry, build = Inquiry(ask, evidence), summary.build
    if summary.marked:
        return "set by hand"
    if inquiry.untestable(build):
        return f"it cannot be tested: {', '.join(summary.causes) or 'no value'}"
    if not summary.values:
        return f"it gave no value so far: {', '.join(summary.causes)}" if summary.causes else "never started for this"
    if build in (ask.good, ask.bad):
        return f"it is the {'good' if build == ask.good else 'bad'} end"
    belief = belief_of(inquiry, result)
    if belief is None:
        return "nothing is judged: the ends are not known to differ"
    if summary.verdict is Verdict.OTHER:
        if belief.far_off(build)[0]:
            return f"its starts agree with each other and lie {FAR:g} sd and more from both ends' levels"
        return "it lies between two steps, at a level of its own"
    weight = float(belief.per_build[build - belief.low])
    rule = f"{math.exp(DECIDED):.0f}:1 makes a verdict"
    return f"its starts together: {odds(weight)}; {rule}"


# --------------------------------------------------------------------------- reps


def reps_words(rule: RepRule, unit: str) -> str:
    """How many reps a start takes of a target."""
    if rule.most == 1:
        return "one round"
    if rule.scale is None:
        return f"{rule.most} reps"
    if rule.fast is None:
        return "two reps that agree, else three: the levels are not known yet"
    better = "or more" if rule.scale.sign > 0 else "or less"
    enough = rule.scale.value(rule.fast)
    text = f"one rep of {enough:,.{0 if abs(enough) >= 100 else 2}f} {unit} {better} is enough"
    if rule.slow is not None:
        text += ", or one at the bad level"
    return f"{text}; else two that agree, at most {rule.most}"


# -------------------------------------------------------------------------- tests


def _fresh(inquiry: Inquiry, build: int, pair: tuple[int, int]) -> list[int]:
    seen = [o for o in inquiry.evidence.observations.get(build, ()) if o.value is not None]
    return [number for number, o in enumerate(seen) if o.confirming == pair]


def _range_of(inquiry: Inquiry, result: TargetResult, pair: tuple[int, int]) -> tuple[int, int]:
    """The part of the range in which a pair was searched: up to the next steps where there are several."""
    ask = inquiry.ask
    steps = sorted((step.last, step.first) for step in result.steps)
    if len(steps) < 2 or pair not in steps:
        return ask.good, ask.bad
    place = steps.index(pair)
    return (
        steps[place - 1][1] if place else ask.good,
        steps[place + 1][0] if place + 1 < len(steps) else ask.bad,
    )


def _pair_tests(inquiry: Inquiry, belief: Fit, pair: tuple[int, int], chance: float) -> list[Test]:
    fresh = [_fresh(inquiry, build, pair) for build in pair]
    looks = min(len(one) for one in fresh)
    fits = []
    for build, sign in zip(pair, (1, -1), strict=True):
        own = [sign * float(belief.evidence[number]) for number in belief.of(build)]
        fits.append((sum(weight > 0 for weight in own), len(own)))
    luck = belief.slow ** fits[1][0]
    allowed = LUCK_LONE if inquiry.lonely(pair[1], belief) else LUCK_BAD
    good, bad = fits
    what = "chance of the pair" if pair[1] - pair[0] == 1 else "chance of the stretch"
    tests = [
        Test(what=what, needed=f">= {CONFIRMED}", got=f"{chance:.4f}", passed=chance >= CONFIRMED),
        Test(
            what="starts that fit their level",
            needed="2 of each, and most",
            got=f"{good[0]} of {good[1]} and {bad[0]} of {bad[1]}",
            passed=all(fit >= 2 and fit * 2 > count for fit, count in fits),
        ),
        Test(
            what="fresh starts, made for the pair",
            needed="1 of each",
            got=f"{len(fresh[0])} and {len(fresh[1])}",
            passed=looks >= 1,
        ),
        Test(
            what="chance that the bad starts were slow by luck",
            needed=f"< {allowed}",
            got=f"{luck:.2g}",
            passed=luck < allowed,
        ),
    ]
    if looks:
        places = [
            [float(belief.places[belief.of(build)[number]]) for number in numbers]
            for build, numbers in zip(pair, fresh, strict=True)
        ]
        width = inquiry.scale.slow_reach + inquiry.scale.fast_reach
        sides = [location(side, belief.start_spread, width) for side in places]
        drop = sides[0][0] - sides[1][0]
        error = belief.start_spread * math.sqrt(1 / sides[0][1] + 1 / sides[1][1])
        needed = quantile(0.995 if looks <= 2 else 0.998, belief.df)
        floor = LARGE_ENOUGH * inquiry.scale.floor
        tests += [
            Test(
                what="difference of the fresh starts",
                needed=f"beyond {_words(inquiry, floor)}",
                got=_words(inquiry, drop),
                passed=drop > floor,
            ),
            Test(what="its t", needed=f"> {needed:.2f}", got=f"{drop / error:.1f}", passed=drop > needed * error),
        ]
    size = belief.effect / belief.start_spread
    tests.append(
        Test(
            what="effect, in sd of a start",
            needed=f">= {SMALLEST}",
            got=f"{size:.1f}",
            passed=size >= SMALLEST,
        )
    )
    return tests


def _event_tests(inquiry: Inquiry, belief: Survival, pair: tuple[int, int], chance: float) -> list[Test]:
    last, first = pair
    values = [[inquiry.survivals[build][number] for number in _fresh(inquiry, build, pair)] for build in pair]
    deaths = int(belief.deaths[first - belief.low])
    needed = CONFIRMED if belief.bad_rate > ALWAYS else CONFIRMED_FLAKY
    survived = inquiry.survivals.get(last, ())
    return [
        Test(what="chance of the pair", needed=f">= {needed}", got=f"{chance:.4f}", passed=chance >= needed),
        Test(
            what="survivals of the good side",
            needed="enough for a verdict, 1 fresh",
            got=f"{sum(v == 1.0 for v in survived)} of {len(survived)}, {len(values[0])} fresh",
            passed=bool(values[0]) and belief.verdict(last) is Verdict.GOOD,
        ),
        Test(
            what="deaths of the bad side",
            needed="2, 1 of them fresh",
            got=f"{deaths}, {sum(v == 0 for v in values[1])} fresh",
            passed=any(v == 0 for v in values[1]) and deaths >= 2,
        ),
    ]


def _neighbours(inquiry: Inquiry, pair: tuple[int, int]) -> list[Test]:
    last, first = pair
    between = [inquiry.name(build) for build in range(last + 1, first)]
    lines = [inquiry.ask.lines[build] for build in pair]
    by_hand = [inquiry.name(build) for build in pair if build in inquiry.marks]
    shown = f"{', '.join(between[:3])}{' ...' if len(between) > 3 else ''}"
    return [
        Test(what="builds between", needed="none", got=shown or "none", passed=not between),
        Test(what="line of history", needed="one", got=" and ".join(dict.fromkeys(lines)), passed=lines[0] == lines[1]),
        Test(what="verdicts by hand", needed="none", got=", ".join(by_hand) or "none", passed=not by_hand),
    ]


def _absence(inquiry: Inquiry) -> list[Test]:
    """What `not reproduced` takes: enough starts, and the floor excluded."""
    ask = inquiry.ask
    counts = [len(inquiry.evidence.values(build)) for build in (ask.good, ask.bad)]
    if inquiry.event or not all(counts):
        return []
    _, found = compare(inquiry.starts[ask.good], inquiry.starts[ask.bad], inquiry.scale)
    worst = found.drop + found.half_width()
    return [
        Test(
            what="starts of each end",
            needed=str(EQUIVALENCE_STARTS),
            got=f"{counts[0]} and {counts[1]}",
            passed=min(counts) >= EQUIVALENCE_STARTS,
        ),
        Test(
            what="largest change still possible (95 %)",
            needed=f"below {_size(inquiry, inquiry.scale.floor)}",
            got=f"{_size(inquiry, worst)} worse" if worst > 0 else "not worse at all",
            passed=worst < inquiry.scale.floor,
        ),
    ]


def tests_of(ask: Question, evidence: Evidence, result: TargetResult) -> tuple[Test, ...]:
    """The conditions of a target's end with what there was: of its pair, or of the ends. Failed ones tell what it lacks.

    `result` is in the question's order.
    """
    inquiry = Inquiry(ask, evidence)
    if result.status in (Status.NOT_REPRODUCED, Status.IMPROVED, Status.INCONCLUSIVE):
        return tuple(_absence(inquiry)) if result.status is not Status.IMPROVED else ()
    if result.last_good is None or result.first_bad is None or result.status is Status.INCONSISTENT:
        return ()
    pair = (result.last_good, result.first_bad)
    belief = inquiry.belief(*_range_of(inquiry, result, pair))
    chance = result.confidence if result.confidence is not None else belief.mass(*pair)
    found: Sequence[Test] = ()
    if not any(build in inquiry.marks for build in pair):
        if isinstance(belief, Fit):
            found = _pair_tests(inquiry, belief, pair, chance)
        else:
            found = _event_tests(inquiry, belief, pair, chance)
    return (*found, *_neighbours(inquiry, pair))
