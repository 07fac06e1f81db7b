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
        ("kind: growth", "kind: leak", "command, oom-probe, found 'leak'"),
        ("kind: growth", "kind: grwth", "found 'grwth'; did you mean growth?"),
        ("kind: growth, ", "", "oom-probe, found none"),
        ("idle: {on: plain", "idle: {on: single", "single is a variant, and a variant does every scenario of its server: write `on: plain`"),
        ("name: gsm8k", "name: passed", "passed is what a command without `prints` yields"),
        ("compare: level", "compare: level, worse: down", "expected 'lower' or 'higher', found 'down'"),
        ("floor: 10%", "floor: 100%", "expected a share below 100%, found '100%'"),
        ("{add: -64MiB}", "{add: 0}", "adding 0 changes nothing"),
        ("--flag: null", "--absent: null", "plain has no --absent: dropping it changes nothing"),
        ("--tensor-parallel-size: 1", "--tensor-parallel-size: 2", "--tensor-parallel-size is 2 on plain already"),
        ("--attention-backend=TRITON_ATTN", "--flag", "--flag stands in plain already"),
        ("--attention-backend=TRITON_ATTN", "max-num-seqs=4", "flags start with --, found 'max-num-seqs=4'"),
        ("--flag: null", "--max-num-batched-tokens=5: null", "flags stand here without their value"),
        ("gpus: [0]}", "gpus: [0, 1]}", "is the same on plain: it changes nothing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_at_its_place(tmp_path, old, new, says):
    """Every mistake has its line, its key and what was expected."""
    found = refused(tmp_path, old, new)

    assert any(says in problem for problem in found), found


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("--tensor-parallel-size: 1, ", "tensor-parallel-size: 1, ", "flags start with --; did you mean --tensor-parallel-size?"),
        ("--flag: null", "--enforce-eager: true", "a switch has no value: put it into args+"),
        ("{add: -64MiB}", "{ad: -64MiB}", "did you mean add?"),
        ('run: [sh, -c, "echo 1"]', "run: []", "expected at least 1 word, found none"),
        ("[4000, 16000, 64000]", "[4000]", "expected at least 2 lengths, found 1"),
        ("[4000, 16000, 64000]", "4000", "expected a list, found 4000"),
        ("rounds: 3", "rounds: -3", "expected a number above 0, found -3"),
        ("rounds: 3", "rounds: true", "expected a whole number, found true"),
        ("ladder: [[8000, 1]]", "ladder: [[8000]]", "expected [prompt tokens, concurrency], found [8000]"),
        ("{gpus: [0, 1]", "{gpus: two", "expected a list of card numbers, `all` or `none`, found 'two'"),
        ("{gpus: [0, 1]", "{gpus: [0, -1]", "base.gpus[1]: expected a number of 0 or more, found -1"),
        ("prompt_tokens: [4000", "promt_tokens: [4000", "did you mean prompt_tokens?"),
        ("servers:\n", "servers: {}\nrest:\n", "servers: is empty"),
        ("name: gsm8k", "name: gsm.8k", "expected a name of letters, digits, '-' and '_', found 'gsm.8k'"),
    ],
)  # fmt: skip
def test_one_mistake_is_told_once_and_in_plain_words(tmp_path, old, new, says):
    """Nothing that follows from it stands beside it, and no validator's own words are shown."""
    found = [problem for problem in refused(tmp_path, old, new) if ": rest: " not in problem]

    assert len(found) == 1, found
    assert says in found[0]
    assert "Input should" not in found[0]


def test_a_short_flag_and_another_metrics_name_are_fine(tmp_path):
    """`-tp` is a flag of vLLM's, and a printed number may be called as other kinds call theirs."""
    text = SUITE.replace("--tensor-parallel-size: 1, --flag", "-tp: 1, --flag").replace("gsm8k", "min_free_mib")
    suite = load(tmp_path, text.replace("compare: level", "compare: level, worse: lower"))

    assert suite.variants[1].server.tensor_parallel_size == 1
    assert suite.scenario("score").worse == "lower"
    assert suite.scenario("answers").worse is None


@pytest.mark.parametrize("spelling", ["--max-model-len=64001", "--max_model_len, 64001"])
def test_prompts_must_fit_the_servers_longest_sequence(tmp_path, spelling):
    """One output token is part of it; what just fits is fine, and `32k` is 32,000 as vLLM reads it."""
    limited = SUITE.replace("--max-num-batched-tokens=8192", spelling)
    assert load(tmp_path, limited).scenario("lengths").prompt_tokens[-1] == 64000

    def problems(text):
        with pytest.raises(ConfigError) as caught:
            load(tmp_path, text)
        return [str(problem).partition("suite.yaml:")[2] for problem in caught.value.problems]

    found = problems(limited.replace("64001", "32k").replace("[[8000, 1]]", "[[31999, 1], [32000, 2]]"))
    assert [problem.partition(": ")[2] for problem in found] == [
        "scenarios.lengths.prompt_tokens: 64000 prompt tokens and 1 output token do not fit --max-model-len=32000 of server plain",
        "scenarios.oom.ladder: 32000 prompt tokens and 1 output token do not fit --max-model-len=32000 of server plain",
    ]
    assert "4096 prompt tokens and 64 output tokens do not fit" in problems(limited.replace("64001", "4100"))[1]
    small = limited.replace("{--kv-cache-memory-bytes: {add: -64MiB}}", "{--max-model-len: 9000}")
    assert problems(small) == [
        "6:3: variants.relaxed: scenario lengths: 64000 prompt tokens and 1 output token do not fit --max-model-len=9000 of server relaxed"
    ]


def test_a_switch_before_a_short_flag_has_no_value(tmp_path):
    """Dropping the switch leaves its neighbour."""
    text = SUITE.replace("--flag]}", "--flag, -q, awq]}")

    assert load(tmp_path, text).variants[1].server.args[-3:] == ("-q", "awq", "--max-num-batched-tokens=8192")
