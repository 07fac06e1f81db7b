"""Quantiles of Student's t, for degrees of freedom that need not be whole. Pure; nothing but `math`."""

from __future__ import annotations

import math

_STEPS = 200
_TINY = 1e-300


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function (Lentz's method)."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _STEPS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + numerator / c
            c = c if abs(c) > _TINY else _TINY
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function I_x(a, b)."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def student_tail(t: float, df: float) -> float:
    """The chance that a t of `df` degrees of freedom lies above `t` >= 0."""
    return 0.5 * _incomplete_beta(df / 2.0, 0.5, df / (df + t * t))


def student_quantile(p: float, df: float) -> float:
    """The t that a share `p` (0.5 <= p < 1) lies below; ValueError outside, or for `df` not above 0."""
    if not 0.5 <= p < 1.0 or df <= 0:
        raise ValueError(f"no quantile of Student's t at p={p}, df={df}")
    high = 1.0
    while student_tail(high, df) > 1.0 - p:
        high *= 2.0
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if student_tail(middle, df) > 1.0 - p else (low, middle)
    return (low + high) / 2.0
