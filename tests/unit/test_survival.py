"""Events: one death is strong, a survival is worth what the bad end says."""

from __future__ import annotations

import pytest

from imagebisect.domain import Verdict
from imagebisect.survival import compare_events, equivalence_starts, survive

ALWAYS = {0: (1.0,), 15: (0.0, 0.0)}
FLAKY = {0: (1.0,) * 8, 15: (0.0, 1.0, 1.0, 0.0, 1.0, 1.0)}


def test_a_survival_is_worth_much_where_the_bad_end_always_dies_and_little_where_it_does_not():
    """The same survival in the middle of the range."""
    sure = survive({**ALWAYS, 7: (1.0,)}, 0, 15, {})
    weak = survive({**FLAKY, 7: (1.0,)}, 0, 15, {})

    assert sure.verdict(7) is Verdict.GOOD
    assert weak.verdict(7) is Verdict.UNCLEAR
    assert sure.chance_bad[7] < 0.05
    assert weak.chance_bad[7] > 0.3


def test_a_death_is_strong_either_way():
    """Good builds hardly ever die."""
    for ends in (ALWAYS, FLAKY):
        assert survive({**ends, 7: (0.0,)}, 0, 15, {}).verdict(7) is Verdict.BAD


@pytest.mark.parametrize(
    ("good", "bad", "word"),
    [
        ((), (), "more"),
        ((1.0,), (0.0,), "more"),
        ((1.0,), (0.0, 0.0), "reproduced"),
        ((1.0, 1.0), (0.0, 1.0, 1.0), "more"),
        ((1.0,) * 8, (0.0, 1.0, 1.0), "reproduced"),
        ((1.0,) * 3, (1.0,) * 4, "more"),
        ((1.0,) * 3, (1.0,) * 5, "not_reproduced"),
        ((0.0,) * 4, (1.0,) * 4, "improved"),
        ((0.0, 1.0) * 4, (0.0, 1.0) * 4, "inconclusive"),
    ],
)
def test_the_ends_of_an_event(good, bad, word):
    """Always against never is settled in three starts; never against never in eight."""
    assert compare_events(good, bad, 0.0).word == word


def test_a_death_rate_that_matters_asks_for_so_many_survivals():
    """To exclude that a quarter of the starts die takes eleven survivals."""
    assert equivalence_starts(0.25) == 11
    assert equivalence_starts(0.0) == 5
