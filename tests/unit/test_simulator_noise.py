"""What is drawn for each start and request of a simulated build."""

from __future__ import annotations

import pytest

from imagebisect.simulator.noise import Noise
from imagebisect.simulator.profile import from_mapping

QUIET = {"noise": 0, "start_noise": 0}


def noise(nonce: str = "a.0", before: int = 0, **profile: object) -> Noise:
    """The draws of one start of a build without any noise but what is named."""
    return Noise(profile=from_mapping({**QUIET, **profile}), nonce=nonce, before=before)


def starts(count: int, **profile: object) -> list[float]:
    """The factors of so many starts of one build."""
    return [noise(f"a.{number}", **profile).start_factor for number in range(count)]


def test_a_start_draws_the_same_again_and_the_next_one_something_else():
    """A run that is repeated is the same; a start that is repeated is not."""
    wide = {"start_noise": 0.01, "noise": 0.01, "slow_start_share": 0.5, "slow_rep_share": 0.5}

    assert noise(**wide).start_factor == noise(**wide).start_factor
    assert noise(**wide).request_factor("r") == noise(**wide).request_factor("r")
    assert noise("a.0", **wide).start_factor != noise("a.1", **wide).start_factor
    assert noise(seed=1, **wide).start_factor != noise(seed=2, **wide).start_factor
    assert noise(**wide).request_factor("r") != noise(**wide).request_factor("s")


def test_nothing_is_slow_unless_it_is_said():
    """The shares of slow starts and requests are 0 by default, so that older profiles stay what they were."""
    assert starts(50) == [1.0] * 50
    assert noise().request_factor("r") == 1.0


def test_slow_starts_come_as_often_as_said_and_slow_every_request():
    """About one in twenty, each 10 to 40 % slow throughout."""
    found = starts(4000, slow_start_share=0.05)
    slow = [factor for factor in found if factor > 1.0]

    assert 0.04 < len(slow) / len(found) < 0.06
    assert min(slow) == pytest.approx(1.1, abs=0.01)
    assert max(slow) == pytest.approx(1.4, abs=0.01)
    one = next(n for n in map(str, range(100)) if noise(n, slow_start_share=0.05).start_factor > 1.0)
    start = noise(one, slow_start_share=0.05)
    assert {start.request_factor(key) for key in "abc"} == {start.start_factor}


def test_slow_requests_leave_the_rest_of_their_start_alone():
    """About one in twenty, each 15 to 60 % slow."""
    start = noise(slow_rep_share=0.05)
    found = [start.request_factor(str(number)) for number in range(4000)]
    slow = [factor for factor in found if factor > 1.0]

    assert start.start_factor == 1.0
    assert 0.04 < len(slow) / len(found) < 0.06
    assert min(slow) == pytest.approx(1.15, abs=0.01)
    assert max(slow) == pytest.approx(1.6, abs=0.01)


def test_a_slow_host_mode_can_be_of_one_size():
    """A share of 1 is every start; a factor of 1 is none that anybody would notice."""
    assert all(factor > 1.0 for factor in starts(50, slow_start_share=1, slow_start_factor=1.2))
    assert starts(50, slow_start_share=1, slow_start_factor=1) == [1.0] * 50


def test_a_drift_makes_each_start_slower_than_the_one_before():
    """Half a percent a start, whatever is started."""
    first, second, ninth = (noise(before=before, start_drift=0.005).start_factor for before in (0, 1, 8))

    assert (first, second, ninth) == pytest.approx((1.0, 1.005, 1.005**8))
