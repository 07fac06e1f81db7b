"""How often would these settings name the right build, and what would it cost? The real search in simulated worlds."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from imagebisect import worlds
from imagebisect.noise import Noise
from imagebisect.worlds import Answer, World


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A range and a host to rehearse. Shares are fractions; `effect` 0.1 is a time 10 % longer from the step on.

    `noise` is the standard deviation of one rep of one start, half its variance between starts. `event` is the death
    rate of bad builds where the complaint is a failure. `minutes` are those of a pull, a boot and a rep.
    """

    builds: int
    effect: float
    noise: float
    skip: float = 0.0
    outliers: float = 0.0
    floor: float = 0.03
    event: float | None = None
    slow_mode: float = 0.0
    slow_depth: float = 0.2
    drift: float = 0.0
    scan: int = 0
    budget: int | None = None
    profiled: bool = False
    minutes: tuple[float, float, float] = (worlds.PULL_MIN, worlds.BOOT_MIN, worlds.REP_MIN)

    def world(self, dice: random.Random) -> World:
        """A world with one step at a random build, or with none where there is no effect."""
        if self.event is not None:
            first = dice.randrange(1, self.builds)
            deaths = tuple(0.0 if b < first else self.event for b in range(self.builds))
            return World(levels=(), deaths=deaths, skips=worlds.skips_of(self.builds, self.skip, dice))
        host = {
            "noise": self.noise,
            "outliers": self.outliers,
            "slow_mode": self.slow_mode,
            "slow_depth": -math.log1p(-self.slow_depth),
            "drift": self.drift,
        }
        return worlds.one_step(self.builds, self.effect, dice, skip=self.skip, **host)

    def profile(self) -> Noise | None:
        """What a profile of this host would have said, where there is one."""
        if not self.profiled:
            return None
        part = max(self.noise * math.sqrt(0.5), 0.001)
        slow = min(max(self.slow_mode + self.outliers / 2, 0.01), 0.6)
        return Noise(within=part, between=part, slow=slow)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Of so many searches: how many named the right pair exactly, a wrong one, or none, and what they cost."""

    runs: int
    exact: int
    wrong: int
    none: int
    covered: int
    with_interval: int
    starts: tuple[int, ...]
    reps: float
    images: float
    hours: tuple[float, ...]
    ends: dict[str, int]

    def figures(self) -> dict[str, Any]:
        """The figures of a JSON document."""
        return {
            "runs": self.runs,
            **{
                name: {
                    "percent": round(100 * count / self.runs, 1),
                    "low": round(100 * interval(count, self.runs)[0], 1),
                    "high": round(100 * interval(count, self.runs)[1], 1),
                }
                for name, count in (("exact", self.exact), ("wrong", self.wrong), ("no_claim", self.none))
            },
            "interval_covers_percent": round(100 * self.covered / self.with_interval, 1)
            if self.with_interval
            else None,
            "starts": {"mean": round(sum(self.starts) / self.runs, 1), "p90": percentile(self.starts, 0.9)},
            "reps": round(self.reps, 1),
            "images": round(self.images, 1),
            "hours": {"mean": round(sum(self.hours) / self.runs, 2), "p90": round(percentile(self.hours, 0.9), 2)},
            "ends": dict(sorted(self.ends.items(), key=lambda item: -item[1])),
        }


def percentile(values: tuple[int, ...] | tuple[float, ...], share: float) -> float:
    """The value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1]


def interval(count: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate."""
    z, rate = 1.96, count / of
    middle = (rate + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(rate * (1 - rate) / of + z * z / (4 * of * of))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def rehearse(
    settings: Settings, *, runs: int, seed: int = 1, naive: bool = False, tick: Callable[[int], None] = lambda _: None
) -> Rates:
    """Search `runs` worlds, with the real engine or with a naive binary search of one rep a build."""
    exact = wrong = covered = with_interval = 0
    answers: list[Answer] = []
    ends: Counter[str] = Counter()
    for run in range(runs):
        world = settings.world(random.Random(f"{seed}/world/{run}"))
        dice = random.Random(f"{seed}/{'naive' if naive else 'bisect'}/{run}")
        said = (
            worlds.naive(world, dice, minutes=settings.minutes)
            if naive
            else worlds.engine(
                world,
                dice,
                floor=settings.floor,
                profile=settings.profile(),
                sentinels=settings.scan,
                budget=settings.budget,
                minutes=settings.minutes,
            )
        )
        answers.append(said)
        ends[said.end] += 1
        steps = world.steps
        if said.claim and said.pair is not None:
            right = bool(steps) and said.pair == worlds.tightest(world, steps[0])
            exact += right
            wrong += not any(said.pair[0] < step <= said.pair[1] for step in steps)
            if right and said.interval is not None:
                with_interval += 1
                covered += said.interval[0] <= 100 * (1 / (1 + settings.effect) - 1) <= said.interval[1]
        tick(run + 1)
    return Rates(
        runs=runs,
        exact=exact,
        wrong=wrong,
        none=runs - sum(a.claim for a in answers),
        covered=covered,
        with_interval=with_interval,
        starts=tuple(a.starts for a in answers),
        reps=sum(a.reps for a in answers) / runs,
        images=sum(a.images for a in answers) / runs,
        hours=tuple(a.minutes / 60 for a in answers),
        ends=dict(ends),
    )


def advice(settings: Settings, found: Rates) -> list[str]:
    """What would make the answer better, in words; empty where little is to be had."""
    said = []
    spread = settings.noise * math.sqrt(0.5 + 0.5 / 3)
    drop = math.log1p(settings.effect) if settings.event is None else math.inf
    if settings.event is None and drop and drop < 1.75 * spread:
        said.append(
            f"the effect is {drop / spread:.1f} times what starts of one build differ by: no build is named below 1.75. "
            "A calmer host (locked clocks, nothing else on the cards) helps, more starts do not"
        )
    if settings.event is None and 0 < drop < 0.8 * settings.floor:
        said.append(f"the effect is below the floor of {settings.floor:.3g}: it would be called not reproduced")
    if settings.slow_mode >= 0.1 and not settings.profiled:
        said.append("where starts have a slow mode, profile the host first (`bisect profile`; here: --profiled)")
    if found.ends.get("narrowed:budget", 0) + found.ends.get("inconclusive:budget", 0) > found.runs / 10:
        said.append("the budget ends many searches before their answer")
    if settings.event is not None and settings.event < 0.9:
        said.append(f"a failure in {settings.event:.0%} of the starts takes many starts: each survival says little")
    return said
