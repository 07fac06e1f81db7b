"""docs/files.md and docs/simulated.md say what the program knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagebisect.config import load_builds, load_suite, profile_keys
from imagebisect.config.schema import KINDS
from imagebisect.measure.command import last_number
from imagebisect.scenario import Command

SUITE = """\
schema: 1
servers: {plain: {}}
scenarios:
  idle-memory: {on: plain, kind: idle-memory}
  startup: {on: plain, kind: startup}
  prefill: {on: plain, kind: prefill, prompt_tokens: 8}
  ladder: {on: plain, kind: ladder, prompt_tokens: [4000, 8000]}
  decode: {on: plain, kind: decode}
  growth: {on: plain, kind: growth}
  command: {on: plain, kind: command, run: "true"}
  oom-probe: {on: plain, kind: oom-probe, ladder: [[8, 1]]}
targets:
  any: {metric: command.passed, worse: lower}
"""


@pytest.fixture(scope="module")
def page(pytestconfig):
    """docs/files.md."""
    return (pytestconfig.rootpath / "docs" / "files.md").read_text(encoding="utf-8")


def test_the_keys_of_a_profile_are_current(pytestconfig):
    """`python -m imagebisect.config.profile_keys docs/simulated.md` was run after the last change."""
    text = (pytestconfig.rootpath / "docs" / "simulated.md").read_text(encoding="utf-8")

    assert profile_keys.renewed(text) == text


def test_the_builds_file_of_the_page_can_be_read(pytestconfig, tmp_path):
    """The example of docs/simulated.md, copied out: the second build is the first but for two keys and the seed."""
    text = (pytestconfig.rootpath / "docs" / "simulated.md").read_text(encoding="utf-8")
    path = tmp_path / "images.yaml"
    path.write_text(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0], encoding="utf-8")

    fast, slow = (dict(build.source.profile) for build in load_builds(path))
    assert slow == {**fast, "seed": 2, "long_from_tokens": 12000, "long_slowdown": 1.87}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_keys_and_metrics_in_the_tables(page, kind, tmp_path):
    """A key or a metric that is added is written down, with its direction."""
    path = Path(tmp_path / "suite.yaml")
    path.write_text(SUITE, encoding="utf-8")
    scenario = load_suite(path).scenario(kind)
    row = re.search(rf"^\| `{kind}` \|(.*)\| (.*) \|$", page, re.MULTILINE)
    assert row is not None

    for key in set(KINDS[kind].model_fields) - {"kind", "on", "deadline"}:
        assert f"`{key}" in row[1], key
    for metric in scenario.metrics():
        if metric.name != "t8000.prefill_tok_s":
            assert f"`{metric.name}`" in row[2], metric.name
            assert re.search(rf"^\| .*`{metric.name}`.*\|.*\| (lower|higher) \| ", page, re.MULTILINE), metric.name


def test_numbers_that_a_command_may_print_are_read_as_the_page_says(page):
    """The forms that it names are numbers, and those that it warns of are none."""
    good, bad = re.search(r"((?:`[^`]+`(?:,| and)? )+)are numbers;\n((?:`[^`]+`(?:,| and)? )+)are none", page).groups()

    assert all(last_number(form) is not None for form in re.findall("`([^`]+)`", good))
    assert all(last_number(form) is None for form in re.findall("`([^`]+)`", bad))


def test_commands_run_in_the_order_of_their_names():
    """As the page says, whatever the order in the file."""
    from imagebisect.scenario import scenario_order

    made = [Command(name=name, on="plain", run=("true",)) for name in ("b", "a", "c")]
    assert [command.name for command in sorted(made, key=scenario_order)] == ["a", "b", "c"]
