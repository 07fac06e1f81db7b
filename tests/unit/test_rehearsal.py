"""`bisect simulate`: the real search against dice."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from imagebisect.cli import app
from imagebisect.rehearsal import Settings, interval, percentile, rehearse


def test_a_clean_world_is_searched_exactly_and_the_same_seed_gives_the_same_table():
    """No noise to speak of: every build named is the right one, in fewer starts than one each."""
    settings = Settings(builds=16, effect=0.5, noise=0.002)
    found = rehearse(settings, runs=20)

    assert found.exact == 20
    assert max(found.starts) < 16
    assert found.figures() == rehearse(settings, runs=20).figures()


def test_where_nothing_regressed_a_naive_search_names_a_build_and_this_one_does_not():
    """The reason why there is a rule at all."""
    settings = Settings(builds=16, effect=0.0, noise=0.01)

    assert rehearse(settings, runs=30).wrong == 0
    assert rehearse(settings, runs=30, naive=True).wrong > 5


def test_a_budget_ends_every_search():
    """No search takes more starts than it was given."""
    found = rehearse(Settings(builds=64, effect=0.1, noise=0.02, budget=6), runs=20)

    assert max(found.starts) <= 6
    assert any(end.endswith(":budget") for end in found.ends)


def test_rates_come_with_what_so_few_searches_can_say():
    """Twenty of twenty is not a hundred percent."""
    low, high = interval(20, 20)

    assert (round(low, 2), high) == (0.84, 1.0)
    assert percentile((1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 0.9) == 9


def test_the_command_prints_a_table_and_one_json_document():
    """Both searches side by side; JSON holds the settings and the intervals."""
    arguments = ["simulate", "--builds", "8", "--effect", "20%", "--runs", "10"]
    text = CliRunner().invoke(app, arguments)
    document = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)

    assert text.exit_code == 0
    assert "10 simulated searches of 8 builds, 20 % slower, noise 1 %" in text.stdout
    assert "dice, not a measurement" in text.stdout
    assert document["simulated"] is True
    assert document["bisect"]["exact"]["percent"] == 100.0
    assert document["bisect"]["exact"]["low"] < 80


@pytest.mark.parametrize(
    "arguments",
    [["--effect", "lots"], ["--noise", "120%"], ["--skip", "-1"], ["--budget", "2h"], ["--budget", "soon"]],
)
def test_what_is_no_share_is_refused_with_an_example(arguments):
    """Exit code 2 and how to write it."""
    done = CliRunner().invoke(app, ["simulate", *arguments, "--json"])

    assert done.exit_code == 2
    assert "such as" in json.loads(done.stdout)["next_step"]


def test_settings_that_cannot_work_are_told_what_would_help():
    """An effect that drowns in the noise is called so."""
    done = CliRunner().invoke(app, ["simulate", "--builds", "8", "--effect", "3%", "--noise", "5%", "--runs", "5"])

    assert "no build is named below 1.75" in done.stdout
