"""How many reps a start takes: one when fast, more when slow, never more than three."""

from __future__ import annotations

import math

import pytest

from imagebisect.noise import Noise, slow_share, start_value, within_variance
from imagebisect.posterior import Start, fit
from imagebisect.repetition import CALIBRATING, ONE_REP, calibrating, rule_of
from imagebisect.scale import scale_of
from search_world import target

SCALE = scale_of(target(), 1415.0)
RULE = rule_of(
    fit([Start(build=b, reps=(math.log(v),), at=at) for at, (b, v) in enumerate([(0, 1415), (9, 755)])], 0, 9, SCALE),
    SCALE,
)


@pytest.mark.parametrize(
    ("reps", "enough"),
    [
        ([1410.0], True),  # fast: believed
        ([755.0], True),  # at the bad level, and the effect is plain: believed
        ([790.0], False),  # slow, and not quite there: a second one
        ([790.0, 785.0], True),  # and they agree
        ([1100.0, 1400.0], False),  # they do not
        ([1100.0, 1400.0, 1405.0], True),
    ],
)
def test_a_fast_rep_is_believed_and_a_slow_one_repeated(reps, enough):
    """Noise makes reps slow, hardly ever fast."""
    assert RULE.enough(reps) is enough


def test_a_slow_rep_is_repeated_where_the_effect_is_not_plain():
    """On a noisy host, or for a small effect, one slow rep may be an accident."""
    small = [Start(build=b, reps=(math.log(v),), at=at) for at, (b, v) in enumerate([(0, 1415), (9, 1200)])]

    assert rule_of(fit(small, 0, 9, SCALE), SCALE).enough([1200.0]) is False


def test_starts_of_the_ends_take_three_reps_and_memory_takes_one():
    """Before the levels are known every start takes all."""
    assert [CALIBRATING.enough([1.0] * n) for n in (1, 2, 3)] == [False, False, True]
    assert ONE_REP.enough([1.0])


def test_a_start_is_one_value():
    """Its rep, the mean of two, the median of three."""
    assert start_value([3.0]) == 3
    assert start_value([3.0, 4.0]) == 3.5
    assert start_value([9.0, 3.0, 4.0]) == 4


def test_noise_is_pooled_with_what_is_assumed_and_odd_starts_are_left_out():
    """One start whose reps lie 30 % apart does not make the host noisy."""
    prior = Noise(within=0.005, between=0.007)
    calm = [(0.0, 0.01)] * 10

    assert within_variance([], prior) == pytest.approx(0.005**2)
    assert within_variance([*calm, (0.0, 0.3)], prior) == pytest.approx(within_variance(calm, prior), rel=0.2)
    assert slow_share([(0.0, 0.0), (0.0, -0.4)], 0.1, prior) == pytest.approx((10 * 0.025 + 1) / 14)


def test_a_host_whose_reps_all_lie_wide_is_noisy():
    """Where most starts' reps scatter, none of them is left out as odd."""
    prior = Noise(within=0.005, between=0.007)

    assert within_variance([(0.0, 0.06), (0.0, 0.05, -0.02)], prior) > 0.02**2


def test_two_reps_of_an_end_that_agree_are_enough():
    """Before the levels are known a long rep is not taken a third time where two say the same."""
    rule = calibrating(SCALE)

    assert [rule.enough(reps) for reps in ([1415.0], [1415.0, 1410.0], [1415.0, 1380.0])] == [False, True, False]
