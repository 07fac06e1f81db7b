"""Budgets: how they are written, what counts against them."""

from __future__ import annotations

import pytest

from imagebisect import budget
from imagebisect.errors import UsageError
from imagebisect.state import Budget


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], Budget()),
        (["12 starts"], Budget(starts=12)),
        (["1start"], Budget(starts=1)),
        (["2h"], Budget(hours=2.0)),
        (["90 m"], Budget(hours=1.5)),
        (["1.5 hours", "4 GPU-hours"], Budget(hours=1.5, gpu_hours=4.0)),
    ],
)
def test_budgets_are_written_as_people_say_them(given, expected):
    """Starts, hours, minutes and GPU hours, in any case and spacing, and several at once."""
    assert budget.parse(given) == expected


@pytest.mark.parametrize("given", [["12"], ["0 starts"], ["1.5 starts"], ["2h", "3h"], ["-1h"], ["soon"], ["2 days"]])
def test_what_is_no_budget_is_refused_with_examples(given):
    """A number without a unit means nothing: the message shows how to write it."""
    with pytest.raises(UsageError) as caught:
        budget.parse(given)

    assert "12 starts" in (caught.value.next_step or "")


def test_a_budget_reads_as_it_was_meant():
    """Singular and plural, and nothing where nothing is limited."""
    assert budget.words(Budget(starts=1, hours=1.5)) == "1 start, 1.5 h"
    assert budget.words(Budget(gpu_hours=4)) == "4 GPU hours"
    assert budget.words(Budget()) == ""
