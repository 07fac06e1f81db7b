"""The two files as shipped: what they claim of the bug report, and that they can be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebisect.config import load_builds, load_plan, load_suite, require_pinned, unpinned
from imagebisect.domain import BuildRole, ImageSource, TargetRole
from imagebisect.errors import ConfigError
from imagebisect.scenario import MetricKind, OomProbe

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "images.yaml"
SUITE = ROOT / "scenarios" / "qwen35-gdn.yaml"
SETS = {"MODEL": "/weights", "PIN_4096": "4000000000", "PIN_8192": "4100000000"}

FLAGS = (
    "--model=${model}",
    "--tensor-parallel-size=2",
    "--kv-cache-dtype=fp8",
    "--max-model-len=188160",
    "--gpu-memory-utilization=0.95",
    "--kv-cache-memory-bytes=<pin>",
    "--max-num-seqs=4",
    "--max-num-batched-tokens=<bt>",
    "--mamba-cache-dtype=bfloat16",
    "--mamba-ssm-cache-dtype=bfloat16",
    '--compilation-config={"cudagraph_mode":"PIECEWISE","cudagraph_capture_sizes":[1,2,4]}',
    "--enable-prefix-caching",
    "--language-model-only",
    "--trust-remote-code",
)


def test_the_builds_file_knows_what_the_report_says_and_no_more() -> None:
    """One full digest, one prefix with its tag; the good end is off the line of nightlies."""
    ship, nightly = load_builds(IMAGES)
    assert ship.source == ImageSource(
        repository="vllm/vllm-openai", tag="qwen38-x86_64-cu130", digest_prefix="sha256:d392f621bb3e"
    )
    assert (ship.role, ship.line) == (BuildRole.GOOD, "off-main")
    assert nightly.source == ImageSource(
        repository="vllm/vllm-openai",
        digest="sha256:3578c1fa6a9676e1de068b9d75c777cc865d251fadfbe6175ae82278739c6674",
    )
    assert (nightly.role, nightly.line) == (BuildRole.BAD, "main")


def test_a_run_refuses_the_unpinned_build_and_names_the_command() -> None:
    """Nobody starts a tag by accident: the entry's place, and what pins it."""
    builds = load_builds(IMAGES)
    assert [build.name for build in unpinned(builds)] == ["ship"]
    with pytest.raises(ConfigError, match=r"images\.yaml:\d+:\d+: .*ship is known by") as caught:
        require_pinned(builds, str(IMAGES))
    assert "bisect images resolve" in caught.value.next_step


@pytest.mark.parametrize(("server", "bt", "pin"), [("bt4096", "4096", "PIN_4096"), ("bt8192", "8192", "PIN_8192")])
def test_the_servers_have_the_reports_flags_in_its_order(server: str, bt: str, pin: str) -> None:
    """All of them, as one list; pin and batched tokens are what differs between the two."""
    found = load_suite(SUITE, sets=SETS).server(server)
    assert found.args == tuple(flag.replace("<bt>", bt).replace("<pin>", SETS[pin]) for flag in FLAGS)
    assert found.env == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert (found.gpus, found.ipc, found.tensor_parallel_size) == ((0, 1), "host", 2)


def test_the_suite_measures_what_the_report_complains_of() -> None:
    """Three complaints are bisected, what was found unchanged is watched, each with a floor."""
    suite = load_suite(SUITE, sets=SETS)
    assert suite.model is not None
    assert (suite.model.path, suite.model.at) == ("/weights", "/models/m")
    roles = {target.name: target.role for target in suite.targets}
    assert [name for name, role in roles.items() if role is TargetRole.BISECT] == [
        "long-prefill",
        "memory",
        "survives-8192",
    ]
    assert {"short-prefill", "decode"} <= {name for name, role in roles.items() if role is TargetRole.WATCH}
    assert all(t.floor.value > 0 for t in suite.targets if t.metric.kind is not MetricKind.EVENT)
    probe = suite.scenario("oom")
    assert isinstance(probe, OomProbe)
    assert (probe.on, probe.ladder) == ("bt8192", ((16000, 1), (16000, 4)))
    assert suite.deltas == tuple(f"--set {name}={value}" for name, value in SETS.items())


def test_what_the_report_does_not_say_has_to_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Model folder and both pins are named at once, each with what it is and how to set it."""
    monkeypatch.delenv("BISECT_MODEL", raising=False)
    with pytest.raises(ConfigError) as caught:
        load_plan(IMAGES, SUITE)
    messages = {problem.key: problem.message for problem in caught.value.problems}
    assert set(messages) == {"vars.MODEL", "vars.PIN_4096", "vars.PIN_8192"}
    assert "BISECT_MODEL" in messages["vars.MODEL"]
    assert all(f"--set {key.removeprefix('vars.')}=" in message for key, message in messages.items())
    assert "--kv-cache-memory-bytes" in messages["vars.PIN_8192"]
