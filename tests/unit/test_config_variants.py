"""Variants of a server, and the scenario kinds that a suite can add without Python."""

from __future__ import annotations

import pytest

from imagebisect import variants
from imagebisect.config import load_suite
from imagebisect.errors import ConfigError
from imagebisect.scenario import Command, Growth, Ladder, MetricKind, Startup, scenario_order

SUITE = """\
schema: 1
base: {gpus: [0, 1], args: [--tensor-parallel-size=2, --kv-cache-memory-bytes, "4294967296", --flag]}
servers:
  plain: {args+: [--max-num-batched-tokens=8192]}
variants:
  relaxed: {of: plain, set_args: {--kv-cache-memory-bytes: {add: -64MiB}}}
  single: {of: plain, set_args: {--tensor-parallel-size: 1, --flag: null}, gpus: [0]}
  other: {of: plain, args+: [--attention-backend=TRITON_ATTN], env: {A: b}}
scenarios:
  idle: {on: plain, kind: idle-memory}
  lengths: {on: plain, kind: ladder, prompt_tokens: [4000, 16000, 64000]}
  boot: {on: plain, kind: startup}
  leak: {on: plain, kind: growth, rounds: 3}
  answers: {on: plain, kind: command, run: "curl -sf $BISECT_URL/health", deadline: 1m}
  score: {on: plain, kind: command, run: [sh, -c, "echo 1"], prints: {name: gsm8k, unit: "%", compare: level}}
  oom: {on: plain, kind: oom-probe, ladder: [[8000, 1]]}
targets:
  growth: {metric: lengths.long_over_short, worse: lower, floor: 10%}
  answers: {metric: answers.passed, worse: lower}
  score: {metric: score.gsm8k, worse: lower, floor: 2}
"""


def load(folder, text=SUITE):
    """The suite in this text."""
    path = folder / "suite.yaml"
    path.write_text(text)
    return load_suite(path)


def refused(folder, old, new):
    """The problems after one change of the text."""
    assert old in SUITE
    with pytest.raises(ConfigError) as caught:
        load(folder, SUITE.replace(old, new))
    return [str(problem).partition("suite.yaml:")[2] for problem in caught.value.problems]


def test_a_variant_changes_what_it_names_in_its_place(tmp_path):
    """The pin in its two-word spelling, a flag dropped, one appended; order and the rest stay."""
    relaxed, single, other = load(tmp_path).variants

    assert relaxed.server.args == (
        "--tensor-parallel-size=2", "--kv-cache-memory-bytes", "4227858432", "--flag", "--max-num-batched-tokens=8192",
    )  # fmt: skip
    assert relaxed.changes == ("--kv-cache-memory-bytes -64MiB (to 4227858432)",)
    assert single.server.args[0] == "--tensor-parallel-size=1"
    assert "--flag" not in single.server.args
    assert single.server.gpus == (0,)
    assert other.server.args[-1] == "--attention-backend=TRITON_ATTN"
    assert other.server.env == {"A": "b"}


def test_spread_gives_every_variant_every_scenario(tmp_path):
    """Variants follow their server, and their scenarios are copies with the server's prompts."""
    suite, order = variants.spread(load(tmp_path), ("plain",))

    assert order == ("plain", "relaxed", "single", "other")
    assert {s.name for s in suite.scenarios if s.on == "relaxed"} == {
        f"{name}@relaxed" for name in ("idle", "lengths", "boot", "leak", "answers", "score", "oom")
    }


def test_the_kinds_and_their_order_inside_a_start(tmp_path):
    """What reads comes first, short before long, commands late, and last what may kill the server."""
    suite = load(tmp_path)

    assert [s.name for s in sorted(suite.scenarios, key=scenario_order)] == [
        "idle", "boot", "lengths", "leak", "answers", "score", "oom",
    ]  # fmt: skip
    kinds = {s.name: type(s) for s in suite.scenarios}
    assert (kinds["lengths"], kinds["boot"], kinds["leak"], kinds["answers"]) == (Ladder, Startup, Growth, Command)
    assert suite.scenario("answers").run == ("sh", "-c", "curl -sf $BISECT_URL/health")
    assert suite.scenario("answers").deadline_s == 60
    assert suite.target("score").metric.kind is MetricKind.LEVEL
    assert suite.target("answers").metric.kind is MetricKind.EVENT


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("relaxed: {of: plain", "relaxed: {of: plian", "expected a server (plain), found 'plian'"),
        ("{add: -64MiB}", "{add: -64MB}", "expected an amount such as -64MiB"),
        ("{add: -64MiB}", "{add: -64GiB}", "is not above 0"),
        ("set_args: {--kv-cache-memory-bytes: {add", "set_args: {--nothing: {add", "no whole number for --nothing"),
        ("  single:", "  plain:", "a server has this name already"),
        ("other: {of: plain, args+: [--attention-backend=TRITON_ATTN], env: {A: b}}", "other: {of: plain}", "changes nothing"),
        ("--flag: null}, gpus: [0]}", "--flag: null}, gpus: [0, 0]}", "different card numbers"),
        ("prompt_tokens: [4000, 16000, 64000]", "prompt_tokens: [4000, 4000]", "lengths that ascend"),
        ("prompt_tokens: [4000, 16000, 64000]", "prompt_tokens: [4000]", "at least 2"),
        ("run: [sh, -c", "run: [no-such-program-here, -c", "no program 'no-such-program-here' on the PATH"),
        ("run: [sh, -c", "run: [./check.sh, -c", "check.sh that can be run"),
        ('run: [sh, -c, "echo 1"]', "run: []", "run"),
        ("prints: {name: gsm8k", "prints: {name: a.b", "letters, digits"),
        ("compare: level", "compare: event", "compare"),
        ("answers.passed, worse: lower", "answers.score, worse: lower", "expected one of answers.passed"),
        ("kind: startup", "kind: boot", "expected one of"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_at_its_place(tmp_path, old, new, says):
    """Every mistake has its line, its key and what was expected."""
    found = refused(tmp_path, old, new)

    assert any(says in problem for problem in found), found
