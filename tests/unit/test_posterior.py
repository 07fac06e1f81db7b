"""The evidence of starts: levels, outliers, drift, and what one start may say at most."""

from __future__ import annotations

import math

import pytest

from imagebisect.domain import Verdict
from imagebisect.posterior import GOOD_CAP, Start, fit
from imagebisect.scale import scale_of
from search_world import target

SCALE = scale_of(target(), 1415.0)
GOOD, BAD = math.log(1415.0), math.log(755.0)


def starts(*seen, drift=0.0):
    """(build, place) in the order of the starts."""
    return [Start(build=b, reps=(p - drift * at,), at=at) for at, (b, p) in enumerate(seen, start=1)]


def test_a_start_at_a_level_speaks_for_it_and_bad_is_capped():
    """A good build starts slow now and then, so one bad start is never worth more than 39 to 1."""
    found = fit(starts((0, GOOD), (15, BAD), (7, GOOD), (11, BAD)), 0, 15, SCALE)

    assert [found.verdict(b) for b in (7, 11, 9)] == [Verdict.GOOD, Verdict.BAD, Verdict.UNCLEAR]
    assert min(found.evidence) == pytest.approx(-math.log(0.975 / 0.025))
    assert max(found.evidence) <= GOOD_CAP
    assert found.mass(7, 11) > 0.9


def test_a_start_far_below_both_levels_says_nothing():
    """Odd starts are slow: one that is slower than the bad level is evidence of neither."""
    found = fit(starts((0, GOOD), (15, BAD), (7, BAD - 0.3)), 0, 15, SCALE)

    assert abs(found.evidence[2]) < 2
    assert found.far_off(7) == (False, True)


def test_two_starts_that_agree_off_both_levels_are_a_level_of_their_own():
    """1100 tok/s between 1415 and 755 is neither."""
    middle = math.log(1100.0)
    found = fit(starts((0, GOOD), (15, BAD), (0, GOOD), (15, BAD), (7, middle), (7, middle)), 0, 15, SCALE)

    assert found.far_off(7) == (True, False)
    assert found.verdict(7) is Verdict.OTHER


def test_a_level_is_not_carried_away_from_its_own_end():
    """Builds that agree among themselves and not with the single start of the good end make that end doubtful."""
    seen = [(0, GOOD), (15, BAD), *((b, GOOD - 0.25) for b in (3, 5, 7, 9, 11))]
    found = fit(starts(*seen), 0, 15, SCALE)

    assert found.good_held
    assert found.good == pytest.approx(GOOD)


def test_a_drift_of_the_host_is_taken_out():
    """Half a percent a start over twelve starts: the levels are what they were, the drift is on record."""
    bad = GOOD - 0.18
    seen = [(0, GOOD), (15, bad), (7, GOOD), (11, bad), (0, GOOD), (15, bad), (9, bad), (8, bad), (7, GOOD), (8, bad)]
    found = fit(starts(*seen, drift=0.005), 0, 15, SCALE)

    assert found.drift == pytest.approx(-0.005, rel=0.3)
    assert found.effect == pytest.approx(0.18, rel=0.05)


def test_the_posterior_is_one_in_sum_and_stays_within_the_range():
    """Chances over (low, high], rising from 0 at the good end to 1 at the bad one."""
    found = fit(starts((2, GOOD), (9, BAD), (5, GOOD)), 2, 9, SCALE)

    assert found.posterior.sum() == pytest.approx(1)
    assert len(found.posterior) == 7
    assert (found.chance_bad[0], found.chance_bad[-1]) == (0, 1)
    assert all(a <= b for a, b in zip(found.chance_bad, found.chance_bad[1:], strict=False))
