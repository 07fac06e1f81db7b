"""The scale on which a target's values are compared: good is up, whatever the metric's own direction. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from imagebisect.domain import Target, Worse
from imagebisect.noise import Noise
from imagebisect.scenario import MetricKind

RATIO_NOISE = Noise(within=0.005, between=0.007)
"""Assumed of ratios (natural logarithm), until a host is profiled."""

MIB_NOISE = Noise(within=8.0, between=16.0)
"""Assumed of levels in MiB."""

TINY = 1e-9


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Ratios as natural logarithms, levels in their unit; turned round where higher is worse.

    `floor` is the smallest drop that matters and `noise` what is assumed, both on the scale. `slow_reach` and
    `fast_reach` say how far below and above its level a start may lie for reasons of its own.
    """

    kind: MetricKind
    sign: float
    floor: float
    noise: Noise
    slow_reach: float
    fast_reach: float

    def place(self, value: float) -> float:
        """A measured value's place."""
        return self.sign * (math.log(max(value, TINY)) if self.kind is MetricKind.RATIO else value)

    def value(self, place: float) -> float:
        """The value at a place, in the metric's unit."""
        return math.exp(self.sign * place) if self.kind is MetricKind.RATIO else self.sign * place

    def change(self, drop: float) -> float:
        """A drop as a signed change of the metric: a share for ratios, an amount for levels."""
        if self.kind is MetricKind.RATIO:
            return math.expm1(max(min(-self.sign * drop, 50.0), -50.0))
        return -self.sign * drop

    def words(self, drop: float, unit: str = "") -> str:
        """A drop as people read it: `-46.6 %`, `+412 MiB`."""
        change = self.change(drop)
        return f"{change * 100:+.3g} %" if self.kind is MetricKind.RATIO else f"{change:+,.4g} {unit}".strip()


def scale_of(target: Target, good_value: float, noise: Noise | None = None) -> Scale:
    """The scale of a target whose good end is at `good_value`."""
    kind = target.metric.kind
    lower = target.worse is Worse.LOWER
    sign = 1.0 if lower else -1.0
    amount = target.floor.amount(good_value)
    if kind is MetricKind.RATIO:
        share = amount / abs(good_value) if good_value else amount
        floor = (-math.log1p(-min(share, 0.999)) if lower else math.log1p(share)) or TINY
        return Scale(kind=kind, sign=sign, floor=floor, noise=noise or RATIO_NOISE, slow_reach=0.8, fast_reach=0.15)
    assumed = noise or MIB_NOISE
    if noise is None and target.metric.unit != "MiB":
        size = max(abs(good_value), 1.0)
        assumed = Noise(within=RATIO_NOISE.within * size, between=RATIO_NOISE.between * size)
    reach = max(amount, 8 * assumed.between)
    return Scale(
        kind=kind,
        sign=sign,
        floor=max(amount, TINY),
        noise=assumed,
        slow_reach=8.0 * reach,
        fast_reach=1.5 * reach,
    )
