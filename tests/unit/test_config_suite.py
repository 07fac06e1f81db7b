"""A suite: what it can say, and how it is refused."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebisect import config
from imagebisect.domain import Floor
from imagebisect.errors import ConfigError, UsageError
from imagebisect.scenario import OomProbe, Prefill

SUITE = """\
schema: 1
vars:
  MODEL: {env: TEST_CONFIG_MODEL, required: true, help: the model's folder}
  PIN: {required: true}
  LONG: {default: "176425"}
model: {path: "${MODEL}", at: /models/m}
base:
  gpus: [0, 1]
  ipc: host
  env: {PYTORCH_ALLOC_CONF: "expandable_segments:True", N: 4}
  pass_env: [HF_TOKEN]
  args: ["--model=${model}", --tensor-parallel-size=2]
servers:
  bt4096: {args+: [--max-num-batched-tokens=4096, "--kv-cache-memory-bytes=${PIN}"], env: {M: x}}
  bt8192: {args: [--only], shm_size: 8g, cache: per-build}
scenarios:
  idle: {on: bt4096, kind: idle-memory}
  long: {on: bt4096, kind: prefill, prompt_tokens: "${LONG}", concurrency: [1, 4], deadline: 20m}
  decode: {on: bt4096, kind: decode, concurrency: [1, 3, 4]}
  oom: {on: bt8192, kind: oom-probe, ladder: [[16000, 1], [16000, 4]]}
targets:
  long: {metric: long.c1.prefill_tok_s, worse: lower, floor: 10%, role: bisect}
  memory: {metric: idle.non_kv_memory_mib, worse: higher, floor: 256}
  oom: {metric: oom.survived, worse: lower, role: bisect}
"""


def load(tmp_path, text=SUITE, **options):
    """Load a suite of this text with the required variables set."""
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    options.setdefault("sets", {"MODEL": str(tmp_path), "PIN": "123"})
    return config.load_suite(path, **options)


def problems(tmp_path, text, **options):
    """Every problem of such a suite."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **options)
    return [str(problem).partition("suite.yaml:")[2] for problem in caught.value.problems]


def test_everything_the_format_can_say(tmp_path):
    """Base and servers merge, args keep their order, variables are put in, units are read."""
    suite = load(tmp_path)
    small, large = suite.servers

    assert small.args == (
        "--model=${model}",
        "--tensor-parallel-size=2",
        "--max-num-batched-tokens=4096",
        "--kv-cache-memory-bytes=123",
    )
    assert dict(small.env) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "N": "4", "M": "x"}
    assert (small.gpus, small.ipc, small.pass_env, small.tensor_parallel_size) == ((0, 1), "host", ("HF_TOKEN",), 2)
    assert (large.args, large.shm_size, large.cache, large.ipc) == (("--only",), "8g", "per-build", "host")
    assert suite.scenario("long") == Prefill(
        name="long", on="bt4096", prompt_tokens=176425, concurrency=(1, 4), reps=3, deadline_s=1200.0
    )
    assert suite.scenario("oom") == OomProbe(name="oom", on="bt8192", ladder=((16000, 1), (16000, 4)))
    assert suite.target("long").floor == Floor(value=0.1, relative=True)
    assert suite.target("memory").floor == Floor(value=256.0, relative=False)
    assert suite.model.path == str(tmp_path)


def test_variables_come_from_set_then_environment_then_file_then_default(tmp_path, monkeypatch):
    """The nearest to the user wins."""
    file = tmp_path / "vars.yaml"
    file.write_text(f"MODEL: {tmp_path}/from-file\nPIN: 7\nLONG: 9000\n")
    monkeypatch.setenv("TEST_CONFIG_MODEL", f"{tmp_path}/from-env")

    suite = load(tmp_path, sets={"PIN": "8"}, vars_file=file)

    assert suite.model.path == f"{tmp_path}/from-env"
    assert "--kv-cache-memory-bytes=8" in suite.servers[0].args
    assert suite.scenario("long").prompt_tokens == 9000


def test_overlays_are_applied_and_named_as_deltas(tmp_path):
    """What differs from the published suite is on record."""
    suite = load(tmp_path, add_args=("--disable-custom-all-reduce",), envs={"NCCL_P2P_DISABLE": "1"})

    assert all(server.args[-1] == "--disable-custom-all-reduce" for server in suite.servers)
    assert all(server.env["NCCL_P2P_DISABLE"] == "1" for server in suite.servers)
    assert "--add-arg --disable-custom-all-reduce on every server" in suite.deltas


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "on: bt4096, kind: idle-memory",
            "on: bt9, kind: idle-memory",
            "scenarios.idle.on: expected a server (bt4096, bt8192)",
        ),
        (
            "long.c1.prefill_tok_s",
            "long.c2.prefill_tok_s",
            "expected one of long.c1.prefill_tok_s, long.c4.prefill_tok_s",
        ),
        ("long.c1.prefill_tok_s", "nope.x", "with a scenario of idle, long, decode, oom"),
        ("kind: prefill", "kind: prefil", "scenarios.long.kind: expected one of"),
        ("floor: 10%", "floor: ten", "expected a share such as 10%"),
        (", floor: 256", "", "targets.memory.floor: is missing"),
        ("worse: lower, role: bisect}", "worse: lower, floor: 1, role: bisect}", "an event either happens or not"),
        ("worse: higher", "worse: bigger", "'lower' or 'higher'"),
        ("[1, 4], deadline: 20m", "[1, 0], deadline: 20m", "expected a number above 0, found 0"),
        ("[1, 4], deadline: 20m", "[1, 1], deadline: 20m", "stands twice"),
        ("deadline: 20m", "deadline: soon", "expected a time such as 90s"),
        ("gpus: [0, 1]", "gpus: [0]", "1 card is too few for --tensor-parallel-size=2"),
        ("gpus: [0, 1]", "gpus: [0, 0]", "expected different card numbers"),
        ("--only", "--port=8000", "--port is set by bisect"),
        ("--only", '""', "is empty"),
        ("${PIN}", "${PINN}", "${PINN} is not declared"),
        ("ipc: host", "ipcs: host", "did you mean ipc?"),
        ("prompt_tokens:", "promt_tokens:", "did you mean prompt_tokens?"),
        ("N: 4", "HF_TOKEN: hf_x", "pass it by name with `pass_env`"),
        ("deadline: 20m", "deadline: .inf", "expected a time"),
        ("N: 4", "N: true", "expected text, found true (put it in quotes)"),
        ("schema: 1", "schema: 7", "schema"),
        ('path: "${MODEL}", at', 'path: "${MODEL}", hf_cache: {path: x, repo: y}, at', "either `path` or `hf_cache`"),
        ("at: /models/m", "at: models", "begins with '/'"),
        ("  oom: {metric", "  long: {metric", "this key stands twice"),
    ],
)
def test_errors_have_a_place_a_key_and_what_was_expected(tmp_path, old, new, expected):
    """file:line:column, the key, what was expected."""
    assert old in SUITE
    found = problems(tmp_path, SUITE.replace(old, new, 1))

    assert any(expected in problem for problem in found), found
    assert all(problem.split(":")[0].isdigit() and problem.split(":")[1].isdigit() for problem in found)


def test_problems_of_shape_and_of_meaning_are_told_together(tmp_path):
    """A misspelt key in one scenario hides neither an unknown server in another nor a bad target."""
    text = (
        SUITE.replace("deadline: 20m", "dedline: 20m")
        .replace("decode: {on: bt4096", "decode: {on: bt1")
        .replace("floor: 10%", "floor: x")
        .replace("metric: oom.survived", "metric: oom.lived")
    )
    found = problems(tmp_path, text)

    assert len(found) == 4, found
    assert "dedline" in found[0]
    assert "expected a server" in found[1]
    assert "targets.long.floor" in found[2]
    assert "oom.lived" in found[3]


def test_a_bad_value_hides_no_other_of_its_entry(tmp_path):
    """Direction, metric, floor, server and unit of one entry are looked at together."""
    text = SUITE.replace(
        "long.c1.prefill_tok_s, worse: lower, floor: 10%", "long.c9.prefill_tok_s, worse: slow, floor: x"
    )
    text = text.replace("deadline: 20m", "deadline: soon, reps: 0").replace("long: {on: bt4096", "long: {on: bt1")
    found = [problem.partition(": ")[2].partition(":")[0] for problem in problems(tmp_path, text)]

    assert found == [
        "scenarios.long.on",
        "scenarios.long.deadline",
        "scenarios.long.reps",
        "targets.long.metric",
        "targets.long.worse",
        "targets.long.floor",
    ]


def test_a_kind_that_is_none_hides_not_the_server(tmp_path):
    """What can be looked at without the kind is."""
    found = problems(tmp_path, SUITE.replace("{on: bt4096, kind: decode", "{on: bt7, kind: speed"))

    assert "found 'bt7'" in found[0]
    assert "found 'speed'" in found[1]


def test_a_variable_that_is_not_set_is_the_only_problem(tmp_path):
    """A number, a flag and a variant that use it are not judged by what stands in for it."""
    text = SUITE.replace('LONG: {default: "176425"}', "LONG: {required: true}").replace(
        "scenarios:\n",
        "variants:\n  less: {of: bt4096, set_args: {--kv-cache-memory-bytes: {add: -64MiB}}}\nscenarios:\n",
    )
    found = problems(tmp_path, text, sets={})

    assert [problem.partition(": ")[2].partition(":")[0] for problem in found] == [
        "vars.MODEL",
        "vars.PIN",
        "vars.LONG",
    ]


@pytest.mark.parametrize(
    ("args", "word"),
    [("[serve, --only]", "serve"), ('["${model}", --only]', "${model}"), ("[--only=1, /models/m]", "/models/m")],
)
def test_environments_take_flags_only(tmp_path, args, word):
    """With an environment, `vllm serve` stands before the args; a container's entrypoint, or one of one's own, is one's own."""
    builds = tmp_path / "images.yaml"
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE.replace("[--only]", args))
    builds.write_text("schema: 1\nbuilds: [{name: a, venv: x}, {name: b, venv: y}]\n")
    sets = {"MODEL": str(tmp_path), "PIN": "1"}

    with pytest.raises(
        ConfigError, match="started with `vllm serve` by bisect itself, and args are flags only"
    ) as caught:
        config.load_plan(builds, path, sets=sets)

    (problem,) = caught.value.problems
    assert (problem.location.line, problem.key) == (15, "servers.bt8192.args")
    assert repr(word) in problem.message
    path.write_text(SUITE.replace("[--only]", f"{args}, entrypoint: [vllm]"))
    assert config.load_plan(builds, path, sets=sets).suite.server("bt8192").entrypoint == ("vllm",)


def test_a_suite_that_only_watches_is_refused(tmp_path):
    """Nothing would be started and the exit code would say that all is well."""
    text = SUITE.replace("role: bisect", "role: watch").replace("floor: 256}", "floor: 256, role: watch}")
    found = problems(tmp_path, text)

    assert "at least one target needs `role: bisect`" in found[0]


def test_unset_variables_say_how_to_set_them(tmp_path):
    """Each of the ways, and what the variable is."""
    found = problems(tmp_path, SUITE, sets={})

    assert len(found) == 2
    assert found[0].startswith(
        "3:3: vars.MODEL: is required and not set: the model's folder; set it by --set MODEL=..."
    )
    assert "TEST_CONFIG_MODEL" in found[0]


def test_undeclared_set_is_an_error(tmp_path):
    """A typo in --set does not go unnoticed."""
    found = problems(tmp_path, SUITE, sets={"MODEL": "x", "PIN": "1", "LONGER": "2"})

    assert "did you mean LONG?" in found[0]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(SUITE) - 1), st.text(max_size=6), st.integers(0, 12))
def test_no_change_of_a_suite_ends_in_a_traceback(tmp_path_factory, position, text, cut):
    """Whatever is typed into the middle of the file: a plan, or an error with its place."""
    folder = tmp_path_factory.mktemp("suite")
    path = folder / "suite.yaml"
    path.write_bytes((SUITE[:position] + text + SUITE[position + cut :]).encode("utf-8", "surrogatepass"))
    try:
        config.load_suite(path, sets={"MODEL": str(folder), "PIN": "1"})
    except UsageError as error:
        assert str(error)
