"""The whole job over real containers, started by digest from a registry on loopback."""

from __future__ import annotations

import json
import subprocess

import pytest

import worlds
from kills import kill_and_compare

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

FIRST_SLOW, FIRST_HUNGRY, COUNT = 6, 3, 9


def ours() -> tuple[str, str]:
    """Containers and volumes with our label."""
    label = "label=org.imagebisect.owner"
    containers = subprocess.run(
        ["docker", "ps", "-aq", "--filter", label], capture_output=True, text=True, check=True
    ).stdout
    volumes = subprocess.run(
        ["docker", "volume", "ls", "-q", "--filter", label], capture_output=True, text=True, check=True
    ).stdout
    return containers, volumes


def write(folder, digests, suite):
    """An images.yaml of image builds and a suite beside it."""
    lines = ["schema: 1", f"repository: {digests[0].partition('@')[0]}", "builds:"]
    lines += [f"  - {{name: n{n:02d}, digest: {d.partition('@')[2]}}}" for n, d in enumerate(digests)]
    (folder / "images.yaml").write_text("\n".join(lines) + "\n")
    (folder / "suite.yaml").write_text(suite)
    return "images.yaml", "suite.yaml"


def suite(**base: str) -> str:
    """The small worlds' suite for containers: no GPU request, memory read where the server runs."""
    extra = "".join(f"  {key}: {value}\n" for key, value in base.items())
    text = worlds.SUITE.replace("  gpus: [0, 1]\n", extra or "  gpus: none\n")
    return text.replace("schema: 1", "schema: 1\ngpu_probe: exec")


def test_both_planted_builds_are_found_in_containers(tmp_path, stand_in_images):
    """Nine images by digest: two first bad builds, equal canonical forms, nothing of ours left."""
    profiles = worlds.planted(COUNT, slow_from=FIRST_SLOW, hungry_from=FIRST_HUNGRY)
    images, path = write(tmp_path, stand_in_images(profiles), suite())

    done = worlds.bisect("run", "--images", images, "--suite", path, "--name", "d", "--json", cwd=tmp_path, timeout=550)

    assert done.returncode == 10, done.stderr
    report = json.loads(done.stdout)
    found = {entry["name"]: entry for entry in report["targets"]}
    assert found["long-prefill"]["first_bad"]["name"] == f"n{FIRST_SLOW:02d}"
    assert found["memory"]["first_bad"]["name"] == f"n{FIRST_HUNGRY:02d}"
    assert found["survives-8192"]["first_bad"]["name"] == f"n{FIRST_HUNGRY:02d}"
    assert ours() == ("", "")
    events = [json.loads(line) for line in (tmp_path / "results" / "d" / "events.jsonl").read_text().splitlines()]
    forms: dict[str, set[str]] = {}
    for event in events:
        if event["event"] == "start_intended":
            forms.setdefault(event["server"], set()).add(event["rendered"]["canonical_sha256"])
    assert {server: len(found) for server, found in forms.items()} == {"bt4096": 1, "bt8192": 1}


def test_gpus_without_an_nvidia_runtime_is_the_hosts_fault(tmp_path, stand_in_images):
    """`--gpus all` on a host without the driver: exit 20, one clear paragraph, nothing left behind."""
    profiles = worlds.planted(2, slow_from=1, hungry_from=1)
    text = suite(gpus="all").replace("gpu_probe: exec", "gpu_probe: none")
    images, path = write(tmp_path, stand_in_images(profiles), text)

    done = worlds.bisect("run", "--images", images, "--suite", path, cwd=tmp_path)

    assert done.returncode == 20, done.stdout + done.stderr
    assert "GPU" in done.stderr
    assert "Traceback" not in done.stderr
    assert ours() == ("", "")


def test_a_missing_digest_is_a_skip_and_not_bad(tmp_path, stand_in_images):
    """An image that the registry no longer has stays a suspect with its reason."""
    profiles = worlds.planted(5, slow_from=3, hungry_from=9)
    digests = list(stand_in_images(profiles))
    digests[2] = digests[2].partition("@")[0] + "@sha256:" + "0" * 64
    images, path = write(tmp_path, digests, suite())

    done = worlds.bisect("run", "--images", images, "--suite", path, "--json", cwd=tmp_path, timeout=400)

    assert done.returncode == 11, done.stderr
    long = next(entry for entry in json.loads(done.stdout)["targets"] if entry["name"] == "long-prefill")
    assert (long["status"], long["reason"]) == ("narrowed", "untestable")
    assert [suspect["name"] for suspect in long["suspects"]] == ["n02", "n03"]
    assert ours() == ("", "")


def test_ten_kills_leave_no_container_and_change_nothing(tmp_path, stand_in_images):
    """Kill -9 at ten random moments of a run over containers: same answer, nothing measured twice, nothing left."""
    profiles = worlds.planted(4, slow_from=2, hungry_from=3)
    images, path = write(tmp_path, stand_in_images(profiles), suite())

    kill_and_compare(tmp_path, images, path, kills=10, span_s=(0.8, 4.0), timeout=280)

    assert ours() == ("", "")
