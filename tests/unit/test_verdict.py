"""What starts of one build say together."""

from __future__ import annotations

import pytest

from imagebisect.scenario import MetricKind
from imagebisect.verdict import level, start_range, survivals_needed


def test_starts_of_one_build_are_summed_up_by_their_median_or_rate():
    """Numbers by the median, which one odd start does not move; events by the share that survived."""
    assert level((1415.0, 700.0, 1410.0), MetricKind.RATIO) == 1410.0
    assert level((1.0, 0.0, 1.0, 1.0), MetricKind.EVENT) == 0.75


def test_the_range_of_one_start_is_nothing():
    """One start says nothing about how far starts lie apart."""
    assert start_range((1415.0,)) == 0
    assert start_range((1415.0, 1400.0)) == 15


@pytest.mark.parametrize(("rate", "needed"), [(0.0, 1), (1 / 3, 3), (11 / 16, 8)])
def test_a_survival_is_worth_what_the_bad_end_says(rate, needed):
    """Where the bad end lives through 11 of 16 starts, eight survivals in a row are needed."""
    assert survivals_needed(rate) == needed
