"""The two ends: regressed, not reproduced, improved, or more starts."""

from __future__ import annotations

import math

import pytest

from imagebisect.calibration import Ends, compare, detectable, location
from imagebisect.domain import Floor, Target
from imagebisect.posterior import Start
from imagebisect.scale import scale_of
from imagebisect.scenario import MetricKind
from search_world import target


def side(*values, kind=MetricKind.RATIO, first=1):
    """Starts of one end with one rep each."""
    scale = scale_of(target(kind=kind), 1415.0)
    return [Start(build=0, reps=(scale.place(v),), at=first + 3 * n) for n, v in enumerate(values)]


def told(good, bad, kind=MetricKind.RATIO, floor=None):
    """What the ends say."""
    complaint = target(kind=kind)
    if floor is not None:
        complaint = Target(**{**vars(complaint), "floor": Floor(value=floor, relative=True)})
    scale = scale_of(complaint, good[0])
    return compare(side(*good, kind=kind), side(*bad, kind=kind, first=2), scale)[0]


@pytest.mark.parametrize(
    ("good", "bad", "expected"),
    [
        ((1415,), (755,), Ends.REPRODUCED),  # one start each is enough for 1.87x
        ((1415,), (1350,), Ends.MORE),  # 4.6 % against an assumed 0.9 % is not
        ((1415, 1410), (1200, 1205), Ends.REPRODUCED),
        ((1415, 1410), (1400, 1405), Ends.MORE),  # absence takes three starts an end
        ((1415, 1410, 1412), (1400, 1405, 1398), Ends.NOT_REPRODUCED),
        ((1415, 1410, 755), (1400, 1405, 1398), Ends.NOT_REPRODUCED),  # one odd start does not hide it
        ((755,), (1415,), Ends.MORE),
        ((755, 756, 754), (1415, 1410, 1412), Ends.IMPROVED),
        ((1415, 900), (755, 755), Ends.MORE),  # two starts of an end that disagree
        ((1415, 900, 1410), (755, 755, 756), Ends.REPRODUCED),  # outvoted
    ],
)
def test_the_ends_are_told_apart_by_effect_floor_and_noise(good, bad, expected):
    """A regression needs the floor and certainty; its absence needs that the floor is excluded."""
    assert expected == told(good, bad)


def test_six_starts_that_settle_nothing_are_the_end_of_it():
    """Noise of a third: neither the regression nor its absence can be shown here."""
    noisy = (1415, 1000, 1300, 900, 1200, 1450)
    ends, found = compare(side(*noisy), side(*reversed(noisy), first=2), scale_of(target(), 1415.0))

    assert ends is Ends.INCONCLUSIVE
    assert detectable(found) > 0.1


def test_memory_is_compared_in_mib():
    """More is worse; 1,178 MiB are plain after one start each."""
    assert told((3000,), (4178,), kind=MetricKind.LEVEL) is Ends.REPRODUCED
    assert told((3000, 3001, 3000), (3004, 3000, 3002), kind=MetricKind.LEVEL) is Ends.NOT_REPRODUCED


def test_a_steady_drift_of_the_host_is_not_taken_for_noise():
    """3 % a start on both ends alike: the 5 % between them is still seen."""
    places = [(0, n) for n in (0, 3, 4, 7)], [(1, n) for n in (1, 2, 5, 6)]
    values = [[Start(build=b, reps=(math.log(1415) - 0.05 * b - 0.03 * at,), at=at) for b, at in s] for s in places]
    complaint = Target(**{**vars(target()), "floor": Floor(value=0.03, relative=True)})

    assert compare(values[0], values[1], scale_of(complaint, 1415.0))[0] is Ends.REPRODUCED


def wide(*values):
    """Starts by their logarithms, three reps that agree."""
    return [Start(build=0, reps=(v, v, v), at=at) for at, v in enumerate(values)]


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ([-0.007, -0.087, 0.067], [0.034, 0.001, -0.056]),
        ([-0.066, -0.001, 0.040], [0.047, 0.088, -0.031]),
        ([0.033, -0.020, -0.004], [0.053, -0.058, 0.009]),
    ],
)
def test_a_host_whose_starts_lie_wide_is_not_taken_for_one_with_odd_starts(good, bad):
    """Three starts a side that scatter by several percent say nothing: leaving out the far ones would make luck sure."""
    word, found = compare(wide(*good), wide(*bad), scale_of(target(), 1.0))

    assert word not in (Ends.IMPROVED, Ends.REPRODUCED)
    assert found.spread > 0.03


def test_a_fast_start_is_hardly_ever_odd():
    """What lies above its level counts: what goes wrong makes a start slow."""
    spread, width = 0.007, 0.95
    slow = location([0.0, 0.001, -0.05], spread, width)
    fast = location([0.0, 0.001, 0.035], spread, width)

    assert slow[1] < 2.1
    assert fast[1] > 2.05
