"""The verdict of one build, relative to both anchors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebisect.domain import Verdict
from imagebisect.scenario import MetricKind
from imagebisect.verdict import Levels, Separation, judge, separation
from search_world import target

SPEED = Levels(good=1415, bad=755, kind=MetricKind.RATIO)


@pytest.mark.parametrize(
    ("good", "bad", "expected"),
    [
        ((1415, 1410), (755, 756), Separation.APART),
        ((1415, 1410), (1400, 1405), Separation.TOO_CLOSE),
        ((755, 756), (1415, 1410), Separation.IMPROVED),
        ((1415, 1015), (1000, 1005), Separation.NOISY),  # 400 between two starts of one build
        ((1415, 1410, 1015), (755, 756), Separation.NOISY),
        ((1415, 1410, 1015, 1412), (755, 756), Separation.APART),  # one odd start outvoted by three
        ((1415, 1415), (1300, 1300), Separation.TOO_CLOSE),  # 8 %: below the floor of 10 %
        ((1415, 1415), (1415, 1415), Separation.TOO_CLOSE),
    ],
)
def test_ends_are_apart_only_beyond_floor_and_spread(good, bad, expected):
    """Two ends differ only by more than the floor and three times what starts of one build differ by."""
    assert expected == separation(good, bad, target())


def test_memory_floor_is_in_mib():
    """A level target's floor is an amount, and higher is worse."""
    memory = target(kind=MetricKind.LEVEL)

    assert Separation.APART == separation((3000, 3000), (4178, 4178), memory)
    assert Separation.TOO_CLOSE == separation((3000, 3000), (3200, 3200), memory)
    assert Separation.IMPROVED == separation((4178, 4178), (3000, 3000), memory)


def test_zero_memory_at_the_good_end_does_not_divide():
    """A good value of 0 MiB is a value like any other."""
    assert Separation.APART == separation((0, 0), (1178, 1178), target(kind=MetricKind.LEVEL))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1415,), Verdict.GOOD),
        ((2000,), Verdict.GOOD),
        ((755,), Verdict.BAD),
        ((300,), Verdict.BAD),
        ((1100,), Verdict.UNCLEAR),
        ((1085, 1415), Verdict.UNCLEAR),
        ((1415, 755), Verdict.UNCLEAR),
        ((1415, 755, 1415), Verdict.UNCLEAR),
        ((1415, 755, 1415, 1410), Verdict.GOOD),
        ((755, 1415, 755, 750), Verdict.BAD),
        ((1415, 755, 1415, 755), Verdict.UNCLEAR),
        ((1100, 1100, 1101, 1099), Verdict.OTHER),
        ((), Verdict.UNCLEAR),
    ],
)
def test_judge(values, expected):
    """One clear start decides; a value near the midpoint or a contradiction asks for more."""
    assert expected == judge(values, SPEED)


def test_one_death_is_bad_and_survival_is_worth_what_the_bad_end_says():
    """Where the bad end dies in 2 of 3 starts, three survivals are needed to call a build good."""
    flaky = Levels(good=1, bad=1 / 3, kind=MetricKind.EVENT)

    assert Verdict.BAD == judge((1, 1, 0), flaky)
    assert Verdict.UNCLEAR == judge((1, 1), flaky)
    assert Verdict.GOOD == judge((1, 1, 1), flaky)
    assert Verdict.GOOD == judge((1,), Levels(good=1, bad=0, kind=MetricKind.EVENT))


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=5), st.floats(1, 1e6), st.floats(1.5, 5))
def test_judge_does_not_depend_on_the_unit(values, good, ratio):
    """Tokens or kilotokens a second: the same verdict. Binary scaling is exact, so it must be equal."""
    levels = Levels(good=good, bad=good / ratio, kind=MetricKind.RATIO)
    scaled = Levels(good=good * 1024, bad=good / ratio * 1024, kind=MetricKind.RATIO)

    assert judge(values, levels) == judge([value * 1024 for value in values], scaled)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=4), st.randoms())
def test_judge_does_not_depend_on_the_order_of_starts(values, random):
    """Starts are exchangeable."""
    shuffled = list(values)
    random.shuffle(shuffled)

    assert judge(values, SPEED) == judge(shuffled, SPEED)
