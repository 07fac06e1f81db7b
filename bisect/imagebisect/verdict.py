"""Numbers in, verdict out: what the starts of one build say together, and what survivals are worth. Pure.

A verdict is relative to both anchors as measured on this host, never to an absolute number. That of one build among
its neighbours is `posterior.Fit.verdict` and `survival.Survival.verdict`; the ends are compared by `calibration`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from imagebisect.scenario import MetricKind

LUCK = 0.05
"""Chance accepted that a bad build survives all the starts that called it good."""

SURVIVED = 1.0
DIED = 0.0


def survivals_needed(rate: float) -> int:
    """Survivals in a row that an end which survives at `rate` would show with a chance of at most LUCK."""
    return 1 if rate <= 0 else math.ceil(math.log(LUCK) / math.log(min(rate, 0.99)))


def start_range(values: Sequence[float]) -> float:
    """The start-to-start range of one build's values; 0 for fewer than two."""
    return max(values) - min(values) if len(values) > 1 else 0.0


def level(values: Sequence[float], kind: MetricKind) -> float:
    """What the starts of one build say together: the median, or the survival rate for events."""
    return sum(values) / len(values) if kind is MetricKind.EVENT else median(values)
