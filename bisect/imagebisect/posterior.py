"""Which build is the first bad one? The posterior over a range, fed by robust evidence of each start. Pure.

A start counts for the logarithm of how much better it fits the good level than the bad one; what speaks for bad is
capped by how often a good build starts slow. Levels and noise are learned from the same starts (EM, four rounds).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from imagebisect.domain import Verdict
from imagebisect.noise import BETWEEN_DF, slow_share, start_value, within_variance
from imagebisect.scale import Scale

Floats = NDArray[np.float64]

ROUNDS = 4
OUTLIERS = 0.04
"""Share of starts that agree with neither level, for reasons of their own."""

OFF_LEVEL = 0.04
"""Builds need not sit exactly on a level: the standard deviation of where they do, as a share of the effect."""

DECIDED = math.log(19.0)
"""Evidence (natural logarithm of the odds) that makes a verdict of one build."""

GOOD_CAP = 9.0
"""One start never says more than this for good: a start can look fast by mistake too."""

FAR = 4.5
"""A start so many standard deviations from both levels belongs to neither."""

AGREE = 6.0
"""Starts of one build within so many standard deviations of each other agree on a level of their own."""

MIDDLE = 0.25
"""Starts farther than this share of the effect from both levels lie in the middle."""

HELD = 3.0
"""A level stays within so many standard errors of the starts of its own end."""

HELD_NOISE = 72.0
"""How far the spread around a level may exceed that of one build's starts (variances, over its degrees of freedom).

Builds at a level of their own would else pass for noise.
"""

DRIFT_STARTS = 6
DRIFT_SD = 0.002
"""A drift per start is learned from so many starts on, and expected to be of this size (share of a value)."""

DRIFT_T = 3.0
"""A drift is believed from this t on."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start's word: the build, its reps on the scale, its number among all starts, and what it was to confirm."""

    build: int
    reps: tuple[float, ...]
    at: int = 0
    confirming: tuple[int, int] | None = None

    @property
    def place(self) -> float:
        """The start's value."""
        return start_value(self.reps)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The posterior over a range of builds and what it rests on. Places are on the scale, without the drift.

    `between` is how far starts lie from their level and `repeat` how far starts of one build lie apart (sd).
    A level is `held` where the builds that seem to share it are off from what its own end says.
    """

    low: int
    high: int
    starts: tuple[Start, ...]
    places: Floats
    good: float
    bad: float
    between: float
    repeat: float
    repeat_df: float
    within: float
    df: float
    good_error: float
    bad_error: float
    good_held: bool
    bad_held: bool
    spread: Floats
    slow: float
    drift: float
    evidence: Floats
    per_build: Floats
    posterior: Floats
    chance_bad: Floats

    @property
    def effect(self) -> float:
        """The good level less the bad one."""
        return self.good - self.bad

    @property
    def start_spread(self) -> float:
        """The standard deviation of starts around their level, with the reps that they had."""
        reps = sum(len(start.reps) for start in self.starts) / len(self.starts)
        return math.sqrt(self.between**2 + self.within**2 / reps)

    def between_levels(self, build: int) -> bool:
        """Whether a build's two or more starts agree on the middle between the levels."""
        places = sorted(float(self.places[number]) for number in self.of(build))
        if len(places) < 2 or self.effect <= 0:
            return False
        low, high = self.bad + MIDDLE * self.effect, self.good - MIDDLE * self.effect
        return low < places[0] and places[-1] < high

    @property
    def last_started(self) -> int:
        """The last build of the range that was started."""
        return max(start.build for start in self.starts)

    @cached_property
    def _by_build(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number, start in enumerate(self.starts):
            found.setdefault(start.build, []).append(number)
        return found

    def of(self, build: int) -> list[int]:
        """The positions of a build's starts."""
        return self._by_build.get(build, [])

    def mass(self, low: int, high: int) -> float:
        """The chance that the first bad build lies in (low, high]."""
        return float(self.chance_bad[high - self.low] - self.chance_bad[low - self.low])

    def far(self, number: int) -> bool:
        """Whether a start agrees with neither level."""
        of_start = self.spread[number] ** 2 - max(self.between**2 - self.repeat**2, 0.0)
        place, apart = self.places[number], FAR * math.sqrt(of_start)
        to_good = abs(place - self.good) > math.hypot(apart, FAR * self.good_error)
        return bool(to_good and abs(place - self.bad) > math.hypot(apart, FAR * self.bad_error))

    def far_off(self, build: int) -> tuple[bool, bool]:
        """(a level of its own, wants another start to tell) of one build."""
        own = self.of(build)
        off = [number for number in own if self.far(number)]
        if len(off) * 2 <= len(own):  # also where there are none
            return False, False
        if len(own) == 1:
            return False, True
        places = [float(self.places[number]) for number in off]
        clean = math.sqrt(min(self.between, self.repeat) ** 2 + self.within**2)
        if len(off) >= 2 and max(places) - min(places) <= AGREE * clean:
            return True, False
        return False, len(own) < 3

    def verdict(self, build: int) -> Verdict:
        """A build's verdict from its own starts alone."""
        weight = float(self.per_build[build - self.low])
        if self.far_off(build)[0]:
            return Verdict.OTHER
        return Verdict.GOOD if weight >= DECIDED else Verdict.BAD if weight <= -DECIDED else Verdict.UNCLEAR


@lru_cache(maxsize=4096)
def _t_constant(df: float) -> float:
    return math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)


def student(z: Floats, df: float) -> Floats:
    """The density of Student's t."""
    density: Floats = _t_constant(df) * (1.0 + z * z / df) ** (-(df + 1) / 2)
    return density


def _odd(scale: Scale, places: Floats, level: float, effect: float) -> Floats:
    """The density of starts that lie away from their level for reasons of their own: below it, mostly."""
    reach = max(scale.slow_reach, effect + scale.slow_reach / 2)
    width = reach + scale.fast_reach
    near = (places > level - reach) & (places < level + scale.fast_reach)
    return np.where(near, 1.0 / width, 1e-9 / width)


def _middle(values: Sequence[float]) -> float:
    return median(values) if values else math.nan


def within_slopes(starts: Sequence[Start]) -> list[float]:
    """How places change a start, between the starts of one build."""
    return [
        (two.place - one.place) / (two.at - one.at)
        for number, one in enumerate(starts)
        for two in starts[number + 1 :]
        if one.build == two.build and one.at != two.at
    ]


class _Em:
    """The rounds of expectation and maximisation over one range."""

    def __init__(
        self, starts: Sequence[Start], low: int, high: int, scale: Scale, marks: Mapping[int, Verdict]
    ) -> None:
        self.low, self.high, self.scale, self.starts = low, high, scale, tuple(starts)
        self.size = high - low + 1
        self.builds = np.array([start.build - low for start in starts], dtype=np.intp)
        self.raw = np.array([start.place for start in starts], dtype=np.float64)
        self.reps = np.array([len(start.reps) for start in starts], dtype=np.float64)
        at = np.array([start.at for start in starts], dtype=np.float64)
        self.at = at - at.mean() if len(at) else at
        self.within = within_variance([start.reps for start in starts], scale.noise)
        self.marked = np.zeros(self.size)
        for build, verdict in marks.items():
            if low < build < high and verdict in (Verdict.GOOD, Verdict.BAD):
                self.marked[build - low] = 60.0 if verdict is Verdict.GOOD else -60.0
        self.prior = scale.noise.between**2
        self.between = self.prior
        self.df = BETWEEN_DF
        self.good = _middle(self._of(low))
        self.bad = _middle(self._of(high))
        by_build: dict[int, list[float]] = {}
        for start, place in zip(starts, self.raw, strict=True):
            by_build.setdefault(start.build, []).append(float(place))
        apart = max(0.4 * (self.good - self.bad), 5 * scale.noise.between)
        self.slow = min(slow_share(by_build.values(), apart, scale.noise), 0.45)
        self.repeat, self.repeat_df = self._repeat(by_build.values())
        self.weights = (1.0, 1.0)
        self.good_held = self.bad_held = False
        self.drift = 0.0
        self.drift_t = 0.0

    def _repeat(self, builds: Iterable[Sequence[float]]) -> tuple[float, float]:
        """(variance, degrees of freedom) of what lies between starts of one build, without those that disagree so much that one must be odd."""
        prior = self.prior
        squares, df = BETWEEN_DF * prior, BETWEEN_DF
        for values in builds:
            middle = _middle(values)
            kept = [v for v in values if abs(v - middle) <= AGREE * math.sqrt(squares / df + self.within)]
            if len(kept) > 1:
                centre = sum(kept) / len(kept)
                squares += sum((v - centre) ** 2 for v in kept)
                df += len(kept) - 1
        return max(squares / df - self.within / 3, squares / df / 4), df

    def begin_drifting(self) -> None:
        """Take the drift from builds that were started more than once, before anything is known of the levels."""
        slopes = within_slopes(self.starts)
        if len(slopes) < 2:
            return
        self.drift = _middle(slopes)
        self.raw = self.raw - self.drift * self.at
        self.good, self.bad = _middle(self._of(self.low)), _middle(self._of(self.high))
        self.raw = self.raw + self.drift * self.at

    def _of(self, build: int) -> list[float]:
        return [float(place) for place, start in zip(self.raw, self.starts, strict=True) if start.build == build]

    def step(self, *, learn: bool, drifting: bool) -> None:
        """One round: what the starts say given the levels, then (unless it is the last) the levels given that."""
        scale = self.scale
        places = self.raw - self.drift * self.at if self.drift else self.raw
        effect = self.good - self.bad
        self.variance = self.between + self.within / self.reps + (OFF_LEVEL * effect) ** 2
        typical = float(self.variance.mean())
        spread_good = np.sqrt(self.variance + typical / self.weights[0])
        spread_bad = np.sqrt(self.variance + typical / self.weights[1])
        in_good = (1 - OUTLIERS) * student((places - self.good) / spread_good, self.df) / spread_good
        in_bad = (1 - OUTLIERS) * student((places - self.bad) / spread_bad, self.df) / spread_bad
        like_good = in_good + OUTLIERS * _odd(scale, places, self.good, effect)
        like_bad = in_bad + OUTLIERS * _odd(scale, places, self.bad, effect)
        self.evidence = np.clip(np.log(like_good) - np.log(like_bad), -math.log((1 - self.slow) / self.slow), GOOD_CAP)
        self.per_build = np.bincount(self.builds, self.evidence, minlength=self.size) + self.marked
        log_post = np.cumsum(self.per_build[:-1]) - self.per_build[0]
        post = np.exp(log_post - log_post.max())
        self.post = post / post.sum()
        self.chance_bad = np.concatenate(([0.0], np.minimum(np.cumsum(self.post), 1.0)))
        self.chance_bad[-1] = 1.0
        if not learn:
            return
        bad = self.chance_bad[self.builds]
        of_good = (1 - bad) * in_good / like_good
        of_bad = bad * in_bad / like_bad
        self._levels(of_good, of_bad, drifting=drifting)

    def _levels(self, of_good: Floats, of_bad: Floats, *, drifting: bool) -> None:
        precision = 1.0 / self.variance
        sums, means, pulls, turns = [], [], [], []
        for share in (of_good, of_bad):
            weight = share * precision
            total = float(weight.sum()) or 1e-12
            mean, when = float(weight @ self.raw) / total, float(weight @ self.at) / total
            sums.append(float(share.sum()))
            means.append((mean, when))
            turns.append(float(weight @ (self.at - when) ** 2))
            pulls.append(float(weight @ ((self.at - when) * (self.raw - mean))))
        if drifting:
            size = 1.0 if self.scale.slow_reach < 1 else self.scale.slow_reach
            curve = sum(turns) + 1.0 / (DRIFT_SD * size) ** 2
            self.drift = sum(pulls) / curve
            self.drift_t = self.drift * math.sqrt(curve)
        if min(sums) > 1e-3:
            self.good, self.good_held = self._near(self.low, means[0][0] - self.drift * means[0][1])
            self.bad, self.bad_held = self._near(self.high, means[1][0] - self.drift * means[1][1])
        self.weights = (max(sums[0], 0.5), max(sums[1], 0.5))
        places = self.raw - self.drift * self.at
        squares = float(of_good @ (places - self.good) ** 2 + of_bad @ (places - self.bad) ** 2)
        squares = max(squares - float((of_good + of_bad) @ (self.within / self.reps)), 0.0)
        self.df = BETWEEN_DF + max(sum(sums) - 2, 0.0)
        between = (BETWEEN_DF * self.prior + squares) / self.df
        self.between = min(between, self.repeat * (1 + HELD_NOISE / self.repeat_df))

    def _near(self, end: int, level: float) -> tuple[float, bool]:
        """A level, held to what its own end says: builds that agree among themselves do not carry it away."""
        own = self.builds == end - self.low
        places = self.raw[own] - self.drift * self.at[own]
        middle = median(places.tolist())
        reach = HELD * math.sqrt(float(self.variance[own].mean()) / len(places))
        if abs(level - middle) <= reach:
            return level, False
        return middle, True

    def repeats_drift(self) -> bool:
        """Whether starts of one build drift as all do: a step that was reached late looks like a drift too."""
        pairs = sorted(
            ((two.place - one.place) / (two.at - one.at), abs(two.at - one.at))
            for number, one in enumerate(self.starts)
            for two in self.starts[number + 1 :]
            if one.build == two.build and one.at != two.at
        )
        if not pairs:
            return False
        half, passed, slope = sum(weight for _, weight in pairs) / 2, 0.0, pairs[-1][0]
        for found, weight in pairs:
            passed += weight
            if passed >= half:
                slope = found
                break
        longest = max(weight for _, weight in pairs)
        error = math.sqrt(2 * self.repeat) / longest
        return abs(self.drift - slope) <= max(abs(self.drift) / 2, 2 * error)

    def run(self, *, drifting: bool) -> None:
        for _ in range(ROUNDS):
            self.step(learn=True, drifting=drifting)
        self.step(learn=False, drifting=drifting)

    def fit(self) -> Fit:
        typical = float(self.variance.mean())
        return Fit(
            low=self.low,
            high=self.high,
            starts=self.starts,
            places=self.raw - self.drift * self.at,
            good=self.good,
            bad=self.bad,
            between=math.sqrt(self.between),
            repeat=math.sqrt(self.repeat),
            repeat_df=self.repeat_df,
            within=math.sqrt(self.within),
            df=self.df,
            good_error=math.sqrt(typical / self.weights[0]),
            bad_error=math.sqrt(typical / self.weights[1]),
            good_held=self.good_held,
            bad_held=self.bad_held,
            spread=np.sqrt(self.variance),
            slow=self.slow,
            drift=self.drift,
            evidence=self.evidence,
            per_build=self.per_build,
            posterior=self.post,
            chance_bad=self.chance_bad,
        )


def fit(starts: Sequence[Start], low: int, high: int, scale: Scale, marks: Mapping[int, Verdict] | None = None) -> Fit:
    """The posterior over (low, high] from all starts in the range; both ends must have one.

    A common drift per start is learned from six starts on and used only where it is plain.
    """
    inside = [start for start in starts if low <= start.build <= high]
    plain = _Em(inside, low, high, scale, marks or {})
    plain.run(drifting=False)
    if len(inside) < DRIFT_STARTS or not np.ptp(plain.at):
        return plain.fit()
    drifting = _Em(inside, low, high, scale, marks or {})
    drifting.begin_drifting()
    drifting.run(drifting=True)
    return drifting.fit() if abs(drifting.drift_t) > DRIFT_T and drifting.repeats_drift() else plain.fit()
