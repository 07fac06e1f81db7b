"""One target's search: calibrate the ends, split the range, confirm the pair. A function of the starts so far. Pure.

Nothing is remembered between decisions: the same starts lead to the same next start or the same end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from imagebisect import choice
from imagebisect.calibration import LARGE_ENOUGH, Difference, difference, location, quantile
from imagebisect.domain import Verdict, Worse
from imagebisect.evidence import Evidence, Question
from imagebisect.noise import Noise
from imagebisect.posterior import Fit, Floats, Start, fit
from imagebisect.scale import Scale, scale_of
from imagebisect.scenario import MetricKind
from imagebisect.survival import Survival, survive

TRIES = 2
"""Failures of a build that are not plainly its own before it counts as untestable."""

SETTLED = 0.95
"""Chance of one pair from which on it is confirmed rather than searched."""

LIKELY = 0.5
"""Chance of one pair from which on another start of one of its builds counts as a fresh one."""

SETTLED_EVENT = 0.85
"""The same for failures that come always: a fresh one tells more of what survivals are worth than a survival does."""

ALWAYS = 0.9
"""Death rate from which on a failure counts as one that comes always."""

CONFIRMED = 0.98
"""Chance that a pair needs in the end."""

CONFIRMED_FLAKY = 0.99
"""The same where the failure comes only now and then."""

FRESH_MOST = 10
"""Fresh starts of one member of a pair; what they do not settle is below this host's noise."""

LUCK_BAD = 0.005
"""Chance accepted that all the bad starts of the first bad build were slow by themselves."""

USEFUL = 0.01
"""Bits that a start must be expected to tell; below that the pair that is likeliest is put to the proof instead."""

LUCK_LONE = 0.0001
"""The same where nothing but its own starts says that it is bad."""

OFF_BAD = 3.0
"""A first bad build so many standard errors off the bad level is not what the others are."""

LOOKS = 6
"""Starts of one build for searching."""

MOST_FIXED = 20
MOST_PER_HALVING = 6.0
"""Starts with a value that a range may have: so many, and so many for each halving."""

ODD_WEIGHT = 1.5
"""A start on the wrong side of a pair by so much evidence contradicts it."""

RECHECKS = 4
"""Starts of a build on the wrong side of a pair before it is left at what its majority says."""

SMALLEST = 1.75
"""No build is named for an effect below so many standard deviations of a start."""

CAREFUL_STARTS = 3
"""Starts of each of two builds before the later one is said to be better again, or to be a small step more."""

SMALL_SHARE = 0.33
"""A further step below this share of the range's effect is a small one."""

SUSPECT_MASS = 0.99
"""Chance that the suspects of a range that could not be settled hold together."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A start that a target asks for. `gains` are bits by build where several would do."""

    build: int
    purpose: str
    why: str
    pair: tuple[int, int]
    fit: Fit | None = None
    gains: dict[int, float] = field(default_factory=dict)
    wants: frozenset[int] = frozenset()
    confirming: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """A step between two builds. `reason` None: confirmed; else why it is no more than narrowed."""

    last: int
    first: int
    chance: float
    reason: str | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """A build on the wrong side of a step, measured again."""

    build: int
    last: int
    first: int


Piece = Wish | Found | Contradiction


def _binomial_tail(at_least: int, of: int, rate: float) -> float:
    return sum(math.comb(of, k) * rate**k * (1 - rate) ** (of - k) for k in range(at_least, of + 1))


class Inquiry:
    """The starts of one target over the range. `good` and `bad` of the question are the anchors.

    `elsewhere` is how likely each build is the first bad one of another target: where to look first, proof of nothing.
    """

    def __init__(self, ask: Question, evidence: Evidence, elsewhere: Floats | None = None) -> None:
        self.ask = ask
        self.evidence = evidence
        self.elsewhere = elsewhere
        self.target = evidence.target
        self.event = self.target.metric.kind is MetricKind.EVENT
        self.marks = {b: v for b, v in evidence.marks.items() if b not in (ask.good, ask.bad)}

    # ------------------------------------------------------------------ facts

    @cached_property
    def scale(self) -> Scale:
        """The target's scale, from the median of the good end."""
        values = sorted(self.evidence.values(self.ask.good))
        return scale_of(self.target, values[len(values) // 2] if values else 0.0, self.evidence.noise)

    @cached_property
    def starts(self) -> dict[int, tuple[Start, ...]]:
        """Starts with a value, by build."""
        found: dict[int, tuple[Start, ...]] = {}
        for build, seen in self.evidence.observations.items():
            own = tuple(
                Start(
                    build=build,
                    reps=tuple(self.scale.place(v) for v in o.reps or (o.value,)),
                    at=o.at,
                    confirming=o.confirming,
                )
                for o in seen
                if o.value is not None
            )
            if own:
                found[build] = own
        return found

    @cached_property
    def survivals(self) -> dict[int, tuple[float, ...]]:
        """Of an event target: 1.0 for each start that went well, by build."""
        turned = self.target.worse is Worse.HIGHER
        return {
            build: tuple(1.0 - v if turned else v for v in self.evidence.values(build))
            for build in self.evidence.observations
            if self.evidence.values(build)
        }

    def tested(self, build: int) -> bool:
        """Whether a build has a value, or a verdict by hand."""
        if build in self.marks:
            return self.marks[build] is not Verdict.SKIP
        return bool(self.evidence.values(build))

    def given_up(self, build: int) -> bool:
        """Whether another start of a build is not worth it: it failed by its own doing, or twice."""
        failures = self.evidence.failures(build)
        return any(failure.own for failure in failures) or len(failures) >= TRIES

    def _gone(self, build: int) -> bool:
        if build in self.marks:
            return self.marks[build] is Verdict.SKIP
        return not self.evidence.values(build) and self.given_up(build)

    @cached_property
    def gone(self) -> frozenset[int]:
        """Builds that have no value and will have none."""
        asked = {*self.evidence.observations, *self.marks}
        return frozenset(build for build in asked if self._gone(build))

    def untestable(self, build: int) -> bool:
        """Whether a build has no value and will have none."""
        return build in self.gone

    def can_start(self, build: int) -> bool:
        """Whether another start of it may say something."""
        return build not in self.marks and not self.given_up(build)

    def name(self, build: int) -> str:
        """A build's name."""
        return self.ask.names[build]

    def belief(self, low: int, high: int) -> Fit | Survival:
        """The posterior over a range."""
        if self.event:
            return survive(self.survivals, low, high, self.marks)
        inside = [start for build in sorted(self.starts) if low <= build <= high for start in self.starts[build]]
        if any(start.at for start in inside):
            inside.sort(key=lambda start: start.at)
        return fit(inside, low, high, self.scale, self.marks)

    def between(self, low: int, high: int, known: Fit, *, careful: bool = False) -> Difference:
        """The difference of two builds, given how far starts of one build lie apart in a range.

        `careful` also heeds how far builds lie from their level, which a step among them makes larger than noise is.
        """
        between = known.repeat if not careful else math.sqrt(known.repeat * max(known.between, known.repeat))
        noise = Noise(within=known.within, between=between, slow=known.slow)
        scale = Scale(
            kind=self.scale.kind,
            sign=self.scale.sign,
            floor=self.scale.floor,
            noise=noise,
            slow_reach=self.scale.slow_reach,
            fast_reach=self.scale.fast_reach,
        )
        drift = known.drift
        sides = [
            [
                Start(build=s.build, reps=tuple(r - drift * s.at for r in s.reps), at=s.at)
                for s in self.starts.get(build, ())
            ]
            for build in (low, high)
        ]
        return difference(sides[0], sides[1], scale, df=known.repeat_df)

    # ------------------------------------------------------------------ a range

    def resolve(self, low: int, high: int) -> list[Piece]:
        """The steps in a range whose ends differ, oldest first; a Wish ends the list where more must be known."""
        belief = self.belief(low, high)
        if isinstance(belief, Fit):
            odd = self._odd_level(low, high, belief)
            if isinstance(odd, Wish):
                return [odd]
            if odd is not None:
                return [*self._rest(low, odd, belief), *self._rest(odd, high, belief)]
        piece = self._settle(low, high, belief)
        if not isinstance(piece, Found) or not isinstance(belief, Fit):
            return [piece]
        return [*self._rest(low, piece.last, belief), piece, *self._rest(piece.first, high, belief)]

    def _rest(self, low: int, high: int, known: Fit) -> list[Piece]:
        """The steps of a part whose ends still differ; nothing where they do not."""
        if low >= high or not self.starts.get(low) or not self.starts.get(high):
            return []
        found = self.between(low, high, known)
        if abs(found.drop) < LARGE_ENOUGH * self.scale.floor:
            return []
        # one start that stands off is asked again before it counts for or against anything
        rise, small = found.drop < 0, abs(found.drop) < SMALL_SHARE * known.effect
        if rise and small:
            return []
        if small:
            found = self.between(low, high, known, careful=True)
        for build in sorted((low, high), key=lambda b: len(self.starts[b])):
            count = len(self.starts[build])
            doubt = quantile(0.99 if count < 2 else 0.9995 if rise else 0.995, found.df)
            if count < (CAREFUL_STARTS if rise or small else 2) and self.can_start(build) and abs(found.t) > doubt:
                why = f"{self.name(low)} and {self.name(high)} differ: {self.name(build)} is started again"
                return [self._wish(build, "steps", why, (low, high), known)]
        if abs(found.t) <= quantile(0.9995 if rise else 0.995, found.df):
            return []
        if rise:
            return [Contradiction(build=high, last=low, first=high)]
        pieces = self.resolve(low, high)
        if small and any(isinstance(piece, Found) and piece.reason == "noise" for piece in pieces):
            return []  # what is left unexplained is named beside the steps
        return pieces

    def _wish(self, build: int, purpose: str, why: str, pair: tuple[int, int], known: Fit | Survival | None) -> Wish:
        return Wish(
            build=build,
            purpose=purpose,
            why=why,
            pair=pair,
            fit=known if isinstance(known, Fit) else None,
            gains={build: 1.0},
            wants=frozenset({build}),
        )

    def _odd_level(self, low: int, high: int, belief: Fit) -> Wish | int | None:
        """A build at a level of its own, or the wish to start one again that may be."""
        for end, held in ((low, belief.good_held), (high, belief.bad_held)):
            if held and len(self.starts[end]) < 2 and self.can_start(end):
                why = f"other builds agree among themselves and not with {self.name(end)}: it is started again"
                return self._wish(end, "recheck", why, (low, high), belief)
        lone = [end for end in (high, low) if len(self.starts[end]) < 2 and self.can_start(end)]
        between = next((b for b in range(low + 1, high) if b in self.starts and belief.between_levels(b)), None)
        if lone and between is not None and between not in self.marks:
            why = f"{self.name(between)} keeps to the middle: is {self.name(lone[0])} what its one start says?"
            return self._wish(lone[0], "recheck", why, (low, high), belief)
        again = None
        for build in range(low + 1, high):
            if build in self.marks or build not in self.starts:
                continue
            own_level, wanted = belief.far_off(build)
            if own_level:
                return build
            if wanted and again is None and self.can_start(build):
                again = build
        if again is None:
            return None
        why = f"{self.name(again)} agrees with neither end: another start before it says anything"
        return self._wish(again, "search", why, (low, high), belief)

    def _settle(self, low: int, high: int, belief: Fit | Survival) -> Piece:
        """The pair of a range: confirmed, or what to start for it."""
        separators = [b for b in range(low, high + 1) if b in (low, high) or b not in self.gone]
        last, first = max(pairwise(separators), key=lambda pair: (round(belief.mass(*pair), 12), -pair[0]))
        chance = belief.mass(last, first)
        if self._spent(low, high):
            return self._suspects(separators, belief, "noise", "so many starts did not settle it")
        always = isinstance(belief, Survival) and belief.bad_rate > ALWAYS
        if chance < (SETTLED_EVENT if always else SETTLED):
            wish = self._search(low, high, belief, separators)
            if wish and chance >= LIKELY:
                if always and wish.build in (last, first) and self.tested(wish.build):
                    # another start of a member of the pair might as well be its proof
                    return self._ask_fresh(last, first, chance, belief, lacking=[wish.build])
                if wish.gains[wish.build] < USEFUL:
                    if max(len(self._fresh(build, (last, first))) for build in (last, first)) >= self._most_fresh(
                        belief
                    ):
                        return self._suspects(separators, belief, "noise", "starts of one build disagree too much")
                    return self._ask_fresh(last, first, chance, belief)
            return wish or self._suspects(separators, belief, "noise", "starts of one build disagree too much")
        wrong = self._wrong_side(low, high, last, first, belief)
        if wrong is not None:
            return wrong
        if isinstance(belief, Fit):
            return self._confirm(last, first, chance, belief, separators)
        return self._confirm_event(last, first, chance, belief, separators)

    def _spent(self, low: int, high: int) -> bool:
        """Whether a range has had all the starts it may have."""
        if self.event:
            return False
        count = sum(len(own) for build, own in self.starts.items() if low <= build <= high)
        return count >= MOST_FIXED + MOST_PER_HALVING * math.log2(max(high - low, 2))

    def _suspects(self, separators: Sequence[int], belief: Fit | Survival, reason: str, detail: str) -> Found:
        """The smallest stretch of pairs that holds the first bad build almost surely."""
        best: tuple[int, int] = (separators[0], separators[-1])
        reach = len(separators)
        for i in range(len(separators) - 1):
            for j in range(i + 1, min(i + reach + 1, len(separators))):
                if belief.mass(separators[i], separators[j]) >= SUSPECT_MASS:
                    if j - i < reach:
                        best, reach = (separators[i], separators[j]), j - i
                    break
        return Found(last=best[0], first=best[1], chance=belief.mass(*best), reason=reason, detail=detail)

    def _most_fresh(self, belief: Fit | Survival) -> int:
        return FRESH_MOST if isinstance(belief, Fit) else max(FRESH_MOST, math.ceil(6 / belief.bad_rate))

    def _searched(self, build: int) -> int:
        return sum(o.confirming is None for o in self.evidence.observations.get(build, ()))

    def _search(self, low: int, high: int, belief: Fit | Survival, separators: Sequence[int]) -> Wish | None:
        """The start that is expected to tell most for its cost; None where all were looked at often enough."""
        looks = LOOKS if isinstance(belief, Fit) else max(LOOKS, math.ceil(6 / belief.bad_rate))
        able = [b for b in separators[1:-1] if self.can_start(b) and self._searched(b) < looks]
        if not able:
            return None
        gains = self._gains(low, high, belief)
        scores = np.full(high - low + 1, -1.0)
        for build in able:
            scores[build - low] = gains[build - low] / self.ask.cost(build, self.evidence.server)
        if scores.max() <= 0:
            return None
        build = choice.best(scores, low)
        expected = self._expected(low, high, belief)
        bad = float(expected[build - low])
        seen = "again: " if self.tested(build) else ""
        why = f"{seen}{self.name(build)} parts {self.name(low)}..{self.name(high)} (bad with a chance of {bad:.0%})"
        return Wish(
            build=build,
            purpose="search",
            why=why,
            pair=self.bracket(low, high, belief),
            fit=belief if isinstance(belief, Fit) else None,
            gains={b: float(gains[b - low]) for b in able},
            wants=frozenset(b for b in able if 0.02 < expected[b - low] < 0.98) | {build},
        )

    def _gains(self, low: int, high: int, belief: Fit | Survival) -> Floats:
        skips = [b for b in range(low, high + 1) if self.untestable(b)]
        tested = [b for b in range(low, high + 1) if self.evidence.observations.get(b) and not self.untestable(b)]
        able: Floats = 1.0 - choice.untestable_chance(low, high, skips, tested)
        chance = self._expected(low, high, belief)
        if isinstance(belief, Survival):
            return choice.event_gain(chance, belief.bad_rate) * able
        return choice.entropy(chance) * able

    def _expected(self, low: int, high: int, belief: Fit | Survival) -> Floats:
        """How likely each build is bad, with what other targets say about where things broke."""
        if self.elsewhere is None:
            return belief.chance_bad
        return choice.expected(belief.posterior, self.elsewhere[low + 1 : high + 1])

    def bracket(self, low: int, high: int, belief: Fit | Survival) -> tuple[int, int]:
        """The innermost builds with a verdict around the most likely first bad one."""
        peak = low + 1 + int(np.argmax(belief.posterior))
        last = max((b for b in range(low + 1, peak) if belief.verdict(b) is Verdict.GOOD), default=low)
        first = min((b for b in range(peak, high) if belief.verdict(b) is Verdict.BAD), default=high)
        return last, first

    # ------------------------------------------------------------------ the final pair

    def _wrong_side(self, low: int, high: int, last: int, first: int, belief: Fit | Survival) -> Piece | None:
        """A build on the wrong side of the pair: started again, then a contradiction."""
        for build in (*range(low + 1, last), *range(first + 1, high)):
            expected = Verdict.GOOD if build <= last else Verdict.BAD
            found = belief.verdict(build)
            if found in (expected, Verdict.UNCLEAR, Verdict.OTHER) or build in self.marks:
                continue
            against, count = self._against(build, expected, belief)
            if against * 2 > count >= 2:
                return Contradiction(build=build, last=last, first=first)
            if count < RECHECKS and (count < 2 or against * 2 == count) and self.can_start(build):
                why = (
                    f"{self.name(build)} looks {found.value} where the others say {expected.value}: it is started again"
                )
                return self._wish(build, "recheck", why, (last, first), belief)
        return None

    def _against(self, build: int, expected: Verdict, belief: Fit | Survival) -> tuple[int, int]:
        if isinstance(belief, Survival):
            dead, lives = belief.deaths[build - belief.low], belief.lives[build - belief.low]
            return int(dead if expected is Verdict.GOOD else lives), int(dead + lives)
        own = [float(belief.evidence[number]) for number in belief.of(build)]
        sign = 1 if expected is Verdict.GOOD else -1
        return sum(sign * weight < 0 for weight in own), len(own)

    def _fresh(self, build: int, pair: tuple[int, int]) -> tuple[int, ...]:
        seen = [o for o in self.evidence.observations.get(build, ()) if o.value is not None]
        return tuple(number for number, o in enumerate(seen) if o.confirming == pair)

    def _found(self, last: int, first: int, chance: float, separators: Sequence[int], detail: str = "") -> Found:
        """A pair that stood its confirmation: narrowed only for what lies between or who set its verdicts."""
        reason = None
        if first - last > 1:
            reason = "untestable"
        elif last in self.marks or first in self.marks:
            reason = "marked"
        elif self.ask.lines[last] != self.ask.lines[first]:
            reason = "off_line"
        del separators
        return Found(last=last, first=first, chance=chance, reason=reason, detail=detail)

    def _ask_fresh(
        self, last: int, first: int, chance: float, belief: Fit | Survival, *, lacking: Sequence[int] | None = None
    ) -> Piece:
        """The next fresh start, g b b g g b; the pair's own members only."""
        pair = (last, first)
        counts = {build: len(self._fresh(build, pair)) for build in pair}
        tries = {build: sum(o.confirming == pair for o in self.evidence.observations.get(build, ())) for build in pair}
        able = [build for build in (lacking or pair) if self.can_start(build)]
        gone = [build for build in pair if not self.can_start(build) and build not in self.marks]
        if gone or not able:
            who = ", ".join(self.name(build) for build in gone) or self.name(first)
            return Found(
                last=last,
                first=first,
                chance=chance,
                reason="untestable",
                detail=f"{who} could not be measured once more",
            )
        if len(able) == 2 and counts[last] == counts[first]:
            build = last if counts[last] % 2 == 0 else first
        else:
            build = min(able, key=lambda b: (counts[b], tries[b], b))
        side = ("first", "last") if self.ask.fix else ("last", "first")
        end = f"{side[0]} good" if build == last else f"{side[1]} bad"
        return Wish(
            build=build,
            purpose="confirm",
            why=f"a fresh start of {self.name(build)}, the {end} build so far (chance {chance:.3f})",
            pair=pair,
            fit=belief if isinstance(belief, Fit) else None,
            gains={b: 1.0 if b == build else 0.5 for b in able},
            wants=frozenset(able),
            confirming=pair,
        )

    def _confirm(self, last: int, first: int, chance: float, belief: Fit, separators: Sequence[int]) -> Piece:
        pair = (last, first)
        if any(build in self.marks for build in pair):
            return self._found(last, first, chance, separators)
        fresh = [self._fresh(build, pair) for build in pair]
        fits = []
        for build, sign in ((last, 1), (first, -1)):
            own = [sign * float(belief.evidence[number]) for number in belief.of(build)]
            fits.append((sum(weight > 0 for weight in own), len(own)))
        looks = min(len(one) for one in fresh)
        proven = (
            looks >= 1
            and all(good >= 2 and good * 2 > count for good, count in fits)
            and belief.slow ** fits[1][0] < (LUCK_LONE if self.lonely(first, belief) else LUCK_BAD)
            and chance >= CONFIRMED
            and self._fresh_apart(pair, fresh, belief, looks)
        )
        if proven and belief.effect < SMALLEST * belief.start_spread:
            detail = (
                f"the effect is only {belief.effect / belief.start_spread:.1f} times what starts of one build differ by"
            )
            return self._suspects(separators, belief, "noise", detail)
        if proven:
            return self._found(last, first, chance, separators)
        wrong = [
            number
            for number, start in enumerate(belief.starts)
            if (belief.evidence[number] < -ODD_WEIGHT and start.build <= last)
            or (belief.evidence[number] > ODD_WEIGHT and start.build >= first)
        ]
        if (
            len(wrong) >= 3
            and _binomial_tail(len(wrong), len(belief.starts), max(0.05, 2 * self.scale.noise.slow)) < 0.01
        ):
            return self._suspects(separators, belief, "noise", "starts of one build are unstable here")
        if max(len(one) for one in fresh) >= FRESH_MOST:
            return self._suspects(separators, belief, "noise", "the difference is below this host's noise")
        return self._ask_fresh(last, first, chance, belief)

    def lonely(self, first: int, belief: Fit) -> bool:
        """Whether no other build says that a first bad one is bad: none after it was started, or it lies off their level."""
        if first >= belief.last_started:
            return True
        own = [float(belief.places[number]) for number in belief.of(first)]
        clean = math.hypot(belief.repeat, belief.within) / math.sqrt(len(own))
        return abs(sum(own) / len(own) - belief.bad) > OFF_BAD * clean

    def _fresh_apart(self, pair: tuple[int, int], fresh: Sequence[Sequence[int]], belief: Fit, looks: int) -> bool:
        """Whether the fresh starts alone differ by enough."""
        places = [
            [float(belief.places[belief.of(build)[number]]) for number in numbers]
            for build, numbers in zip(pair, fresh, strict=True)
        ]
        variance = belief.start_spread**2
        width = self.scale.slow_reach + self.scale.fast_reach
        good, bad = (location(side, math.sqrt(variance), width) for side in places)
        drop = good[0] - bad[0]
        error = math.sqrt(variance * (1 / good[1] + 1 / bad[1]))
        needed = quantile(0.995 if looks <= 2 else 0.998, belief.df)
        return drop > LARGE_ENOUGH * self.scale.floor and drop > needed * error

    def _confirm_event(
        self, last: int, first: int, chance: float, belief: Survival, separators: Sequence[int]
    ) -> Piece:
        pair = (last, first)
        if any(build in self.marks for build in pair):
            return self._found(last, first, chance, separators)
        values = [[self.survivals[build][number] for number in self._fresh(build, pair)] for build in pair]
        good_done = bool(values[0]) and belief.verdict(last) is Verdict.GOOD
        deaths = belief.deaths[first - belief.low]
        bad_done = any(value == 0 for value in values[1]) and deaths >= 2
        needed = CONFIRMED if belief.bad_rate > ALWAYS else CONFIRMED_FLAKY
        if good_done and bad_done and chance >= needed:
            return self._found(last, first, chance, separators)
        if max(len(one) for one in values) >= self._most_fresh(belief):
            return self._suspects(separators, belief, "noise", "it fails too seldom to be told apart here")
        lacking = [build for build, done in zip(pair, (good_done, bad_done), strict=True) if not done] or list(pair)
        return self._ask_fresh(last, first, chance, belief, lacking=lacking)
