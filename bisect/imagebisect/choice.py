"""Which build to start next: what a start is expected to tell, over what it costs. Pure."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from imagebisect.posterior import Floats

CLUSTERED = 0.65
"""Chance that a build next to an untestable one is untestable too: breakage comes in stretches."""

REACH = 3.0
"""Builds over which that chance fades."""

TOGETHER = 0.35
"""Belief that two complaints about one range begin with the same build."""

CLOSE = 0.15
"""Belief that they begin within two builds of each other."""

NEARBY = np.full(5, 0.2)


def entropy(chance: Floats) -> Floats:
    """Bits that a sure answer about each build would give."""
    p = np.clip(chance, 1e-12, 1 - 1e-12)
    bits: Floats = -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    return bits


def event_gain(chance: Floats, bad_rate: float, good_rate: float = 0.01) -> Floats:
    """Bits that one more start tells of an event: a bad build dies only now and then."""
    dies = chance * bad_rate + (1 - chance) * good_rate
    known = chance * entropy(np.array(bad_rate)) + (1 - chance) * entropy(np.array(good_rate))
    return np.maximum(entropy(dies) - known, 0.0)


def expected(posterior: Floats, elsewhere: Floats) -> Floats:
    """How likely each build of a range is bad, if one complaint tends to begin where another did.

    `posterior` and `elsewhere` are over the first bad build, without the range's first one; `elsewhere` need not add up.
    """
    size = len(posterior)
    same = elsewhere / elsewhere.sum() if elsewhere.sum() > 0 else np.full(size, 1 / size)
    near = np.convolve(same, NEARBY)[len(NEARBY) // 2 :][:size]
    prior = (1 - TOGETHER - CLOSE) / size + TOGETHER * same + CLOSE * near
    weighted = posterior * prior
    chance: Floats = np.concatenate(([0.0], np.minimum(np.cumsum(weighted) / weighted.sum(), 1.0)))
    chance[-1] = 1.0
    return chance


def untestable_chance(low: int, high: int, skips: Collection[int], tested: Collection[int]) -> Floats:
    """How likely each build of low..high cannot be tested; 0 for those that were."""
    base = (1 + len(skips)) / (8 + len(skips) + len(tested))
    builds = np.arange(low, high + 1)
    chance = np.full(len(builds), base)
    if skips:
        near = np.min(np.abs(builds[:, None] - np.array(sorted(skips))[None, :]), axis=1)
        chance = base + (max(CLUSTERED, base) - base) * np.exp(-(np.maximum(near, 1) - 1) / REACH)
    for build in tested:
        if low <= build <= high:
            chance[build - low] = 0.0
    return chance


def best(scores: Floats, low: int) -> int:
    """The build with the highest score; of equals the oldest, whatever the last bit of a number says."""
    rounded = np.round(scores / max(float(scores.max()), 1e-300), 9)
    return low + int(np.argmax(rounded))
