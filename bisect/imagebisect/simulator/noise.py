"""How far requests and whole starts of a simulated build lie from what its profile says. The same draws for the same start.

Every draw is named: by the profile's seed, by which start it is (`nonce`) and by what is drawn. Nothing is remembered.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import cached_property

from imagebisect.simulator.profile import Profile

_SMALLEST = 0.05
"""No factor is below this, whatever the profile says."""

_LEAST_SLOW = 0.25
"""A slow one is slowed by at least this share of what the profile allows."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The draws of one start. `before` is how many starts the host had seen when it began."""

    profile: Profile
    nonce: str
    before: int = 0

    def dice(self, key: str) -> random.Random:
        """Dice for one purpose: the same key gives the same throws."""
        text = f"{self.profile.seed}|{self.nonce}|{key}"
        return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))  # noqa: S311

    def _spread(self, key: str, spread: float) -> float:
        """A factor around 1, never further than four deviations away."""
        deviation = max(-4.0, min(4.0, self.dice(key).gauss(0.0, 1.0)))
        return max(_SMALLEST, 1.0 + deviation * spread)

    def _slow(self, key: str, share: float, most: float) -> float:
        """1 for all but `share` of the keys; for those a factor up to `most`."""
        dice = self.dice(f"slow|{key}")
        if dice.random() >= share:
            return 1.0
        return max(_SMALLEST, 1.0 + (most - 1.0) * dice.uniform(_LEAST_SLOW, 1.0))

    @cached_property
    def start_factor(self) -> float:
        """The factor on the time of all requests of this start."""
        profile = self.profile
        ordinary = self._spread("start", profile.start_noise)
        slow = self._slow("start", profile.slow_start_share, profile.slow_start_factor)
        return float(ordinary * slow * (1.0 + profile.start_drift) ** self.before)

    def request_factor(self, key: str) -> float:
        """The factor on the time of one request, the start's own in it; `key` names the request."""
        profile = self.profile
        return (
            self._spread(key, profile.noise)
            * self._slow(key, profile.slow_rep_share, profile.slow_rep_factor)
            * self.start_factor
        )
