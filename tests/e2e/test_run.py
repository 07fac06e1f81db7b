"""`bisect run` from a builds file to the first bad build, over real processes and real HTTP."""

from __future__ import annotations

import json

import pytest

import worlds
from imagebisect.ledger import RunFolder


def by_target(report):
    """The report's targets by name."""
    return {entry["name"]: entry for entry in report["targets"]}


@pytest.mark.alone
def test_every_complaint_gets_its_own_first_bad_build(tmp_path):
    """Two planted regressions, a build that refuses a flag: each target ends at its own build."""
    profiles = worlds.planted(8, slow_from=5, hungry_from=3, special={4: {"unknown_flags": ["--max-num-seqs"]}})
    images, suite = worlds.write(tmp_path, profiles)

    done = worlds.bisect("run", "--images", str(images), "--suite", str(suite), "--json", cwd=tmp_path)

    assert done.returncode == 10, done.stderr
    report = json.loads(done.stdout)
    found = by_target(report)
    assert report["exit_code"] == 10
    assert report["simulated"] is True
    memory, survival, long = found["memory"], found["survives-8192"], found["long-prefill"]
    for entry in (memory, survival):
        assert entry["status"] == "confirmed", entry
        assert (entry["last_good"]["name"], entry["first_bad"]["name"]) == ("b02", "b03")
    assert (long["status"], long["reason"]) == ("narrowed", "untestable")
    assert [suspect["name"] for suspect in long["suspects"]] == ["b04", "b05"]
    assert abs(memory["bad_value"] - memory["good_value"] - 1178) < 40
    assert -50 < long["change_percent"] < -43
    assert (survival["good_rate"], survival["bad_rate"]) == (1.0, 0.0)
    assert worlds.group_members(str(tmp_path)) == []


def test_nothing_planted_is_not_found(tmp_path):
    """Equal builds: it does not reproduce, no search start is spent, eight starts an end at most, and exit code 0."""
    images, suite = worlds.write(tmp_path, worlds.planted(5, slow_from=9, hungry_from=9))

    done = worlds.bisect("run", "--images", str(images), "--suite", str(suite), "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {t["status"] for t in report["targets"] if t["role"] == "bisect"} == {"not_reproduced"}
    for server in ("bt4096", "bt8192"):
        assert sum(start["server"] == server for build in report["builds"] for start in build["starts"]) <= 8
    assert all(not build["starts"] for build in report["builds"][1:-1])


def cut_in_half(run, *, change=("", "")):
    """Make a finished run one that was killed half-way; `change` replaces text of what it was told."""
    ledger = run / "events.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    half = lines[: len(lines) // 2]
    half[0] = half[0].replace(*change) if change[0] else half[0]
    ledger.write_text("".join(half))


def test_a_changed_model_is_not_measured_on(tmp_path):
    """A run whose model folder changed meanwhile is not gone on with."""
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text('{"vocab_size": 50000}')
    text = worlds.ONE_TARGET.replace("schema: 1\n", "schema: 1\nmodel: {path: m, at: /models/m}\n")
    images, suite = worlds.write(tmp_path, worlds.planted(2, slow_from=1, hungry_from=9), text)
    first = worlds.bisect("run", "--images", str(images), "--suite", str(suite), "--name", "r", cwd=tmp_path)
    assert first.returncode == 10, first.stderr
    cut_in_half(tmp_path / "results" / "r")
    (model / "config.json").write_text('{"vocab_size": 50001}')

    resumed = worlds.bisect("resume", "r", "--json", cwd=tmp_path)

    assert resumed.returncode == 2, resumed.stderr
    assert "the model folder is not what it was" in json.loads(resumed.stdout)["message"]


def test_a_changed_flag_within_a_run_stops_it(tmp_path):
    """A start that differs from the others by more than the build is refused before it is made."""
    images, suite = worlds.write(tmp_path, worlds.planted(4, slow_from=2, hungry_from=9), worlds.ONE_TARGET)
    arguments = ("run", "--images", str(images), "--suite", str(suite), "--name", "r", "--json")
    first = worlds.bisect(*arguments, "--results", "results", cwd=tmp_path)
    assert first.returncode == 10, first.stderr
    cut_in_half(tmp_path / "results" / "r", change=("--max-num-seqs=4", "--max-num-seqs=5"))

    resumed = worlds.bisect("resume", "r", "--results", "results", cwd=tmp_path)

    assert resumed.returncode == 2, resumed.stdout + resumed.stderr
    assert "--max-num-seqs=4" in resumed.stderr
    assert "--max-num-seqs=5" in resumed.stderr
    assert "Traceback" not in resumed.stderr


def test_a_refused_run_leaves_no_folder(tmp_path):
    """What cannot begin (results in use, no docker daemon) leaves nothing that a reboot would go on with."""
    images, suite = worlds.write(tmp_path, worlds.planted(2, slow_from=1, hungry_from=9), worlds.ONE_TARGET)
    (tmp_path / "docker.yaml").write_text(
        "schema: 1\nrepository: localhost:1/x\nbuilds:\n"
        f"  - {{name: a, digest: 'sha256:{'1' * 64}'}}\n  - {{name: b, digest: 'sha256:{'2' * 64}'}}\n"
    )
    arguments = ("run", "--suite", str(suite), "--images")
    (tmp_path / "results" / "held").mkdir(parents=True)
    with RunFolder(tmp_path / "results" / "held").lock():
        in_use = worlds.bisect(*arguments, str(images), "--name", "r", cwd=tmp_path)
    no_docker = worlds.bisect(
        *arguments, "docker.yaml", "--name", "d", cwd=tmp_path, DOCKER_HOST="unix:///nowhere/docker.sock"
    )

    assert (in_use.returncode, no_docker.returncode) == (2, 20)
    assert "another run is using" in in_use.stderr
    assert [path.name for path in (tmp_path / "results").iterdir() if path.is_dir()] == ["held"]
