"""A host's noise from starts of one build, and what a later search makes of it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from imagebisect.domain import Server
from imagebisect.errors import UsageError
from imagebisect.hostfiles import noise_for, path_of
from imagebisect.hostprofile import learn, measurement_key
from imagebisect.scale import RATIO_NOISE, scale_of
from imagebisect.scenario import Prefill
from run_events import plan
from search_world import target

SCALE = scale_of(target(), 1415.0)


def starts(count, *, within, between, slow=(), depth=0.2, seed=1):
    """Reps of starts of one build at 1,415 tok/s."""
    dice = random.Random(seed)
    found = []
    for number in range(count):
        place = dice.gauss(0, between) - (depth if number in slow else 0.0)
        found.append([1415.0 * math.exp(place + dice.gauss(0, within)) for _ in range(3)])
    return found


@pytest.mark.parametrize(("within", "between"), [(0.001, 0.02), (0.03, 0.001), (0.01, 0.03)])
def test_noise_in_a_start_and_between_starts_are_told_apart(within, between):
    """Twenty starts give both within a third, and what a search assumes lies near them."""
    found = learn(starts(20, within=within, between=between), SCALE, "x.c1.prefill_tok_s", "tok/s")

    assert found.seen_within == pytest.approx(within, rel=0.35)
    assert found.noise.within == pytest.approx(within, rel=0.4, abs=0.002)
    assert found.noise.between == pytest.approx(between, rel=0.4, abs=0.008)
    assert found.slow_starts == 0


def test_a_slow_mode_is_seen_as_such_and_not_as_noise():
    """Two modes 20 % apart: the share is learned, and the spread is that of one mode."""
    found = learn(starts(8, within=0.001, between=0.002, slow=(1, 4, 6)), SCALE, "x", "tok/s")

    assert found.slow_starts == 3
    assert found.noise.between < 0.01
    assert 0.15 < found.noise.slow < 0.4


def test_a_drift_has_its_slope_and_how_sure_it_is():
    """Each start 1 % slower than the one before is no spread of starts."""
    falling = [[1415.0 * math.exp(-0.01 * number)] * 2 for number in range(6)]
    found = learn(falling, SCALE, "x", "tok/s")

    assert found.drift == pytest.approx(-0.01, abs=0.002)
    assert abs(found.drift_t) > 10


def test_a_calm_host_is_not_believed_to_have_no_noise_at_all():
    """Equal values leave a sensible rest, and fewer than three starts say nothing."""
    found = learn([[1415.0] * 3] * 6, SCALE, "x", "tok/s")

    assert 0.0005 <= found.noise.within < RATIO_NOISE.within
    assert 0.001 <= found.noise.between < RATIO_NOISE.between
    with pytest.raises(ValueError, match="2 starts say nothing"):
        learn([[1415.0]] * 2, SCALE, "x", "tok/s")


def test_the_key_is_server_scenario_and_model_and_nothing_else():
    """Names do not matter, flags and lengths and the model do."""
    server, scenario = Server(name="a", args=("--x",)), Prefill(name="p", on="a", prompt_tokens=100)
    key = measurement_key(server, scenario, "m")

    assert key == measurement_key(replace(server, name="b"), replace(scenario, name="q", on="b"), "m")
    assert key != measurement_key(replace(server, args=("--y",)), scenario, "m")
    assert key != measurement_key(server, replace(scenario, prompt_tokens=101), "m")
    assert key != measurement_key(server, scenario, "n")


def test_a_host_that_was_not_profiled_has_no_noise_and_a_broken_file_is_named(tmp_path):
    """Nothing is assumed of it; what cannot be read is an error and not silently ignored."""
    assert noise_for(plan(2), tmp_path, "f", "m") == {}
    path = path_of(tmp_path, "f")
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(UsageError) as caught:
        noise_for(plan(2), tmp_path, "f", "m")

    assert str(path) in str(caught.value.where)
