"""How many reps a start takes of one target: one when it is fast, more when it is slow, never more than three. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from imagebisect.posterior import OFF_LEVEL, Fit
from imagebisect.scale import Scale

MOST_REPS = 3
PLAIN = 40.0
"""From an effect of so many standard deviations of a start on, a rep at the bad level is no accident."""

SURE = 3.0
"""A rep this many standard deviations from a level still belongs to it."""


@dataclass(frozen=True, kw_only=True)
class RepRule:
    """When a start's reps are enough; without a scale every start takes `most`.

    `fast` is the place from which on the first rep is believed (None: levels are not known, none is), `slow` the
    stretch around the bad level in which it is too, `agree` how far two reps may lie apart.
    """

    scale: Scale | None = None
    most: int = MOST_REPS
    fast: float | None = None
    slow: tuple[float, float] | None = None
    agree: float = 0.0

    def enough(self, values: Sequence[float]) -> bool:
        """Whether the start has said what it can; `values` are its reps in the metric's unit, oldest first."""
        if len(values) >= self.most:
            return True
        if self.scale is None or not values:
            return False
        places = [self.scale.place(value) for value in values]
        if len(places) == 1:
            if self.slow is not None and self.slow[0] <= places[0] <= self.slow[1]:
                return True
            return self.fast is not None and places[0] >= self.fast
        return max(places) - min(places) <= self.agree


ONE_REP = RepRule(most=1)
CALIBRATING = RepRule()

AGREEING = 2.0
"""Two reps of an end that lie within so many assumed standard deviations of a rep agree."""


def calibrating(scale: Scale) -> RepRule:
    """The rule before the levels are known: two reps that agree as well as is assumed, else three."""
    return RepRule(scale=scale, agree=AGREEING * scale.noise.within)


def rule_of(fit: Fit, scale: Scale) -> RepRule:
    """The rule once the levels are known: noise makes reps slow, so a fast one is believed and a slow one is not.

    Where the effect is large a slow one is believed too if it lies at the bad level: an odd rep lies anywhere.
    """
    clean = math.hypot(fit.between, fit.within)
    spread = math.hypot(clean, OFF_LEVEL * fit.effect)
    plain = fit.effect > PLAIN * clean
    return RepRule(
        scale=scale,
        fast=max((fit.good + fit.bad) / 2, fit.good - SURE * spread),
        slow=(fit.bad - SURE * clean, fit.bad + SURE * clean) if plain else None,
        agree=max(4 * fit.within, OFF_LEVEL * fit.effect),
    )
