"""Simulated worlds with a known truth, and three ways to search them: the real engine and its rivals.

Simulated here means drawn from dice: the stand-in server is `simulator`. A world says how fast each build is, which cannot be tested, and what the host adds: noise of reps and of starts, slow
reps and slow starts, two modes, drift, wander, flaky failures. Values are natural logarithms of the throughput.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from imagebisect.domain import Floor, Status, Target, TargetRole, Worse
from imagebisect.evidence import Evidence, Observation, Question
from imagebisect.evidence import sentinels as scanned
from imagebisect.noise import Noise
from imagebisect.scenario import Metric, MetricKind
from imagebisect.search import Probe, decide, standings

GOOD_TOK_S = 1415.0
PULL_MIN, BOOT_MIN, REP_MIN = 8.0, 4.0, 2.0
"""Placeholders of the reference: minutes to pull an image, to boot a server, and of one rep at the good speed."""

MOST_STARTS = 300


@dataclass(frozen=True, kw_only=True)
class World:
    """A truth and a host. `levels` are drops below the good end by build; `skips` cannot be tested.

    `noise` is the standard deviation of one rep of one start, half its variance between starts unless `shared` says
    another share. `deaths` is the death rate by build of an event world.
    """

    levels: tuple[float, ...]
    skips: frozenset[int] = frozenset()
    noise: float = 0.005
    shared: float = 0.5
    outliers: float = 0.0
    slow_mode: float = 0.0
    slow_depth: float = 0.21
    fast: float = 0.0
    drift: float = 0.0
    deaths: tuple[float, ...] = ()

    @property
    def steps(self) -> tuple[int, ...]:
        """Builds that differ from the one before them (by more than a wander does)."""
        values = self.deaths or self.levels
        return tuple(b for b in range(1, len(values)) if abs(values[b] - values[b - 1]) > 0.03)


@dataclass
class Host:
    """Starts builds of a world and counts what that costs."""

    world: World
    dice: random.Random
    prices: tuple[float, float, float] = (PULL_MIN, BOOT_MIN, REP_MIN)
    starts: int = 0
    reps: int = 0
    minutes: float = 0.0
    pulled: set[int] = field(default_factory=set)

    def start(self, build: int) -> float | None:
        """One start: its offset, or None where the build cannot be tested."""
        world, dice = self.world, self.dice
        self.starts += 1
        self.minutes += self.prices[1] + (0 if build in self.pulled else self.prices[0])
        self.pulled.add(build)
        if build in world.skips:
            return None
        place = -world.levels[build] if world.levels else 0.0
        place += dice.gauss(0, world.noise * math.sqrt(world.shared)) - world.drift * self.starts
        if dice.random() < world.outliers / 2:
            place -= math.log1p(dice.uniform(0.1, 0.4))
        if dice.random() < world.slow_mode:
            place -= world.slow_depth
        if dice.random() < world.fast:
            place += math.log1p(dice.uniform(0.1, 0.4))
        return place

    def rep(self, place: float) -> float:
        """One rep of a start, as tokens a second."""
        world, dice = self.world, self.dice
        seen = place + dice.gauss(0, world.noise * math.sqrt(1 - world.shared))
        if dice.random() < world.outliers:
            seen -= math.log1p(dice.uniform(0.1, 0.6))
        self.reps += 1
        self.minutes += self.prices[2] * math.exp(-place)
        return GOOD_TOK_S * math.exp(seen)

    def dies(self, build: int) -> bool:
        """Whether an event world's start dies."""
        self.reps += 1
        return self.dice.random() < self.world.deaths[build]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a search said, and what it cost. `pair` is its (last good, first bad) where it claims one."""

    claim: bool
    pair: tuple[int, int] | None
    steps: tuple[tuple[int, int], ...]
    end: str
    suspects: tuple[int, ...]
    confidence: float | None
    starts: int
    reps: int
    images: int
    minutes: float
    interval: tuple[float, float] | None = None


def target(*, floor: float = 0.03, event: bool = False) -> Target:
    """The complaint that a benchmark searches."""
    metric = (
        Metric(name="survived", unit="", kind=MetricKind.EVENT)
        if event
        else Metric(name="c1.prefill_tok_s", unit="tok/s", kind=MetricKind.RATIO)
    )
    return Target(
        name="t",
        scenario="x",
        metric=metric,
        worse=Worse.LOWER,
        floor=Floor(value=floor, relative=not event),
        role=TargetRole.BISECT,
    )


def _answer(host: Host, **said: object) -> Answer:
    whole: dict[str, object] = {
        "claim": False,
        "pair": None,
        "steps": (),
        "end": "",
        "suspects": (),
        "confidence": None,
        "starts": host.starts,
        "reps": host.reps,
        "images": len(host.pulled),
        "minutes": host.minutes,
    }
    return Answer(**{**whole, **said})  # type: ignore[arg-type]


def engine(
    world: World,
    dice: random.Random,
    *,
    floor: float = 0.03,
    profile: Noise | None = None,
    sentinels: int = 0,
    budget: int | None = None,
    minutes: tuple[float, float, float] = (PULL_MIN, BOOT_MIN, REP_MIN),
) -> Answer:
    """The real engine, asked start by start as a session does. `budget` in starts; `minutes` to pull, boot and of a rep."""
    host = Host(world=world, dice=dice, prices=minutes)
    event = bool(world.deaths)
    count = len(world.deaths or world.levels)
    ask = Question(
        names=tuple(f"b{b}" for b in range(count)),
        lines=("main",) * count,
        good=0,
        bad=count - 1,
        evidence=(Evidence(target=target(floor=floor, event=event), server="s", noise=profile),),
        scan=scanned(0, count - 1, sentinels),
    )
    while (probe := decide(ask, {"s": ("x",)})) is not None and host.starts < MOST_STARTS:
        seen = _observe(host, probe)
        before = ask.evidence[0].observations
        after = {**before, probe.build: (*before.get(probe.build, ()), seen)}
        spent = budget is not None and host.starts >= budget
        ask = replace(ask, evidence=(replace(ask.evidence[0], observations=after),), spent=spent)
    found = standings(ask)[0].result
    claims = found.status is Status.CONFIRMED or (
        found.status is Status.NARROWED and found.reason in ("untestable", "off_line")
    )
    pair = (found.last_good, found.first_bad)
    return _answer(
        host,
        claim=claims,
        pair=pair if claims else None,
        steps=tuple((step.last, step.first) for step in found.steps),
        end=f"{found.status}:{found.reason}" if found.reason else str(found.status),
        suspects=found.suspects,
        confidence=found.confidence,
        interval=found.interval_percent,
    )


def _observe(host: Host, probe: Probe) -> Observation:
    """One start of a world as the search sees it."""
    confirming = probe.confirms.get("t")
    place = host.start(probe.build)
    if place is None:
        return Observation(value=None, cause="unknown_flag", at=host.starts)
    if host.world.deaths:
        return Observation(value=0.0 if host.dies(probe.build) else 1.0, at=host.starts, confirming=confirming)
    reps: list[float] = []
    while not probe.reps["t"].enough(reps):
        reps.append(host.rep(place))
    middle = sorted(reps)[len(reps) // 2] if len(reps) % 2 else math.sqrt(reps[0] * reps[1])
    return Observation(value=middle, reps=tuple(reps), at=host.starts, confirming=confirming)


def naive(
    world: World,
    dice: random.Random,
    *,
    reps: int = 1,
    skips_like_git: bool = False,
    minutes: tuple[float, float, float] = (PULL_MIN, BOOT_MIN, REP_MIN),
) -> Answer:
    """Binary search by the midpoint between one start of each end; `reps` each, their median counts."""
    host = Host(world=world, dice=dice, prices=minutes)
    count = len(world.levels or world.deaths)

    def value(build: int) -> float | None:
        place = host.start(build)
        if place is None:
            return None
        if world.deaths:
            return 0.0 if host.dies(build) else 1.0
        return sorted(host.rep(place) for _ in range(reps))[reps // 2]

    good, bad = value(0), value(count - 1)
    assert good is not None
    assert bad is not None
    if bad >= good:
        return _answer(host, end="ends alike")
    middle = (good + bad) / 2
    low, high = 0, count - 1
    skipped: set[int] = set()
    while True:
        able = [b for b in range(low + 1, high) if b not in skipped]
        if not able:
            break
        if skips_like_git and skipped:
            build = _git_skip(able, low, high, skipped, dice)
        else:
            build = min(able, key=lambda b: (abs(b - (low + high) / 2), b))
        seen = value(build)
        if seen is None:
            skipped.add(build)
        elif seen > middle:
            low = build
        else:
            high = build
    return _answer(
        host, claim=True, pair=(low, high), steps=((low, high),), end="pair", suspects=tuple(range(low + 1, high + 1))
    )


def _git_skip(able: list[int], low: int, high: int, skipped: set[int], dice: random.Random) -> int:
    """`git bisect skip`: the best one if it can be had, else a random one, biased towards good ranks."""
    ranked = sorted(range(low + 1, high), key=lambda b: (abs(b - (low + high) / 2), b))
    if ranked[0] not in skipped:
        return ranked[0]
    ranked = [b for b in ranked if b in set(able)]
    return ranked[int(len(ranked) * dice.random() ** 1.5)]


# --------------------------------------------------------------------------- making worlds


def skips_of(count: int, share: float, dice: random.Random) -> frozenset[int]:
    """Untestable builds in stretches of three on average; never an end."""
    if not share:
        return frozenset()
    leave, enter = 1 / 3, share / (3 * (1 - share))
    found = set()
    skipping = dice.random() < share
    for build in range(1, count - 1):
        if skipping:
            found.add(build)
        skipping = dice.random() >= leave if skipping else dice.random() < enter
    return frozenset(found)


def one_step(count: int, effect: float, dice: random.Random, *, skip: float = 0.0, **host: float) -> World:
    """A single step at a random build: `effect` 0.2 is 20 % slower from there on."""
    first = dice.randrange(1, count)
    drop = math.log1p(effect)
    return World(
        levels=tuple(0.0 if b < first else drop for b in range(count)),
        skips=skips_of(count, skip, dice),
        **host,  # type: ignore[arg-type]
    )


def tightest(world: World, first: int) -> tuple[int, int]:
    """The narrowest pair of testable builds around a step."""
    count = len(world.levels or world.deaths)
    able = [b for b in range(count) if b not in world.skips]
    return max(b for b in able if b < first), min(b for b in able if b >= first)
