"""Profiles of simulated builds."""

from __future__ import annotations

import ast
import inspect
import json

import pytest

from imagebisect import simulator
from imagebisect.simulator import profile as module
from imagebisect.simulator.profile import Profile, ProfileError, from_file, from_json, from_mapping


def test_an_empty_profile_is_a_healthy_build():
    """Every key has a default."""
    assert from_mapping({}) == Profile()


def test_values_arrive_in_the_types_that_are_documented():
    """Whole numbers stand in for floats, lists for tuples, null for none."""
    found = from_mapping({"boot_s": 1, "unknown_flags": ["--a"], "long_from_tokens": None, "seed": 7.0})

    assert (found.boot_s, found.unknown_flags, found.long_from_tokens, found.seed) == (1.0, ("--a",), None, 7)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"long_slowdwn": 2}, "did you mean 'long_slowdown'"),
        ({"zzz": 2}, "known keys: version"),
        ({"boot_s": "soon"}, "'boot_s' must be a number, not 'soon'"),
        ({"seed": 1.5}, "'seed' must be a whole number"),
        ({"cards": True}, "'cards' must be a whole number"),
        ({"never_ready": 1}, "'never_ready' must be true or false"),
        ({"version": 1}, "'version' must be a text"),
        ({"unknown_flags": "--a"}, "'unknown_flags' must be a list of texts"),
        ({"oom_mask": "maybe"}, "one of none, keyerror, runtimeerror, enginedead"),
        ({"prefill_tok_s": 0}, "'prefill_tok_s' must be above 0"),
        ({"boot_s": -1}, "'boot_s' must be 0 or more"),
        ({"noise": float("nan")}, "'noise' must be 0 or more"),
        ({"oom_probability": 2}, "'oom_probability' must be at most 1"),
        ({"slow_start_share": 1.5}, "'slow_start_share' must be at most 1"),
        ({"slow_rep_share": 5}, "'slow_rep_share' must be at most 1"),
        ({"slow_start_factor": 0}, "'slow_start_factor' must be above 0"),
    ],
)
def test_a_wrong_profile_says_which_key_and_what_was_expected(mapping, words):
    """A typo is not a silent default."""
    with pytest.raises(ProfileError) as caught:
        from_mapping(mapping)
    assert words in str(caught.value)


def test_files_and_texts_that_are_no_profile_are_refused(tmp_path):
    """Broken JSON, a list, a missing file: one clear line each."""
    with pytest.raises(ProfileError, match="no JSON"):
        from_json("{")
    with pytest.raises(ProfileError, match="a mapping"):
        from_json("[]")
    with pytest.raises(ProfileError, match="cannot be read"):
        from_file(str(tmp_path / "none.json"))
    (tmp_path / "p.json").write_text(json.dumps({"seed": 3}))
    assert from_file(str(tmp_path / "p.json")).seed == 3


def test_every_key_is_documented():
    """Below each key stands what it does."""
    tree = ast.parse(inspect.getsource(module))
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Profile"]
    for key, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(key, ast.AnnAssign):
            assert isinstance(after, ast.Expr), ast.unparse(key)


def test_what_the_demo_says_is_planted_is_in_its_builds():
    """planted.json and images.yaml agree, so that the demo's check of itself means something."""
    from ruamel.yaml import YAML

    builds = YAML(typ="safe").load(simulator.DEMO_FOLDER / "images.yaml")["builds"]
    profiles = {entry["name"]: from_mapping(entry["simulated"]) for entry in builds}
    steady = profiles["b00"]

    def first(differs) -> str:
        return next(name for name, found in profiles.items() if differs(found))

    assert len(profiles) == 16
    slow = first(lambda p: p.long_slowdown > 1)
    hungry = first(lambda p: p.overhead_mib > steady.overhead_mib)
    assert simulator.planted() == {"long-prefill": slow, "memory": hungry, "survives-8192": hungry}
    assert profiles[slow].long_slowdown == 1.87
    assert profiles[hungry].overhead_mib - steady.overhead_mib == 1178
    untestable = {name: "unknown_flag" for name, found in profiles.items() if found.unknown_flags}
    untestable |= {name: "ready_timeout" for name, found in profiles.items() if found.never_ready}
    assert simulator.untestable() == untestable
