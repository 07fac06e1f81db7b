"""`bisect doctor`: what it sees on a host, and what it says to do."""

from __future__ import annotations

import json
import resource
from dataclasses import replace

import pytest

import run_events
import worlds
from imagebisect import doctor
from imagebisect.doctor import Level
from imagebisect.domain import ModelSpec, Server, VenvSource


def with_model(path, **changes):
    """The small plan with a model folder."""
    plan = run_events.plan()
    return replace(plan, suite=replace(plan.suite, model=ModelSpec(path=str(path), at="/models/m", **changes)))


def seen(plan, tmp_path, name):
    """The checks of that name."""
    return [check for check in doctor.checks(plan, tmp_path) if check.name.startswith(name)]


def test_simulated_builds_need_nothing(tmp_path):
    """Every check of a simulated plan passes and docker is not asked."""
    found = doctor.checks(run_events.plan(), tmp_path)

    assert {check.level for check in found} == {Level.OK}
    assert not [check for check in found if check.name == "docker"]


def test_a_whole_model_folder_is_fine(tmp_path):
    """A folder with config.json and files, links inside it included."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "link.json").symlink_to("config.json")

    assert [check.level for check in seen(with_model(tmp_path), tmp_path, "model")] == [Level.OK]


def test_a_missing_model_folder_fails_with_advice(tmp_path):
    """The folder is named and what to set."""
    (check,) = seen(with_model(tmp_path / "gone"), tmp_path, "model")

    assert check.level is Level.FAIL
    assert "gone" in check.what
    assert "model.path" in check.next_step


def test_a_dangling_link_fails(tmp_path):
    """A weight that leads nowhere is found before a GPU hour is spent."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "nowhere")

    checks = seen(with_model(tmp_path), tmp_path, "model")

    assert [check.level for check in checks] == [Level.FAIL]
    assert "model.safetensors" in checks[0].what


def test_a_mounted_snapshot_whose_blobs_stay_outside_fails(tmp_path):
    """A Hugging Face snapshot mounted alone: its links are good here and broken in the container."""
    cache = tmp_path / "hub" / "models--o--m"
    (cache / "blobs").mkdir(parents=True)
    (cache / "blobs" / "1").write_text("{}")
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/1")

    alone = seen(with_model(snapshot), tmp_path, "model")
    whole = seen(with_model(tmp_path, repo="o/m", revision="abc"), tmp_path, "model")

    assert [check.level for check in alone] == [Level.FAIL]
    assert "hf_cache" in alone[0].next_step
    assert [check.level for check in whole] == [Level.OK]


def test_a_cache_without_the_repo_fails(tmp_path):
    """A cache that lacks the model says so, instead of an offline error from inside a container."""
    (check,) = seen(with_model(tmp_path, repo="o/m"), tmp_path, "model")

    assert check.level is Level.FAIL
    assert "o/m" in check.what


def test_a_venv_without_vllm_fails(tmp_path):
    """An environment is checked for its program."""
    plan = run_events.plan()
    builds = tuple(replace(build, source=VenvSource(path=str(tmp_path))) for build in plan.builds)

    found = seen(replace(plan, builds=builds), tmp_path, "environment")

    assert {check.level for check in found} == {Level.FAIL}


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] == resource.RLIM_INFINITY, reason="this host has no limit"
)
def test_a_limit_above_the_hosts_own_is_a_warning(tmp_path):
    """An ulimit that the engine may refuse is announced."""
    plan = run_events.plan()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    servers = (Server(name="s", ulimits={"nofile": hard + 1}),)

    (check,) = seen(replace(plan, suite=replace(plan.suite, servers=servers)), tmp_path, "ulimit")

    assert check.level is Level.WARN
    assert str(hard) in check.what


def test_no_docker_is_exit_20_with_advice(tmp_path):
    """A daemon that does not answer: one line that fails, what to do, exit 20; in JSON too."""
    done = worlds.bisect("doctor", cwd=tmp_path, DOCKER_HOST="unix:///nowhere/docker.sock")
    asked = worlds.bisect("doctor", "--json", cwd=tmp_path, DOCKER_HOST="unix:///nowhere/docker.sock")

    assert done.returncode == asked.returncode == 20
    assert "fail  docker" in done.stdout
    assert "systemctl start docker" in done.stdout
    document = json.loads(asked.stdout)
    assert (document["exit_code"], document["reason"]) == (20, "not_ready")


def test_clean_without_docker_still_looks_at_processes(tmp_path):
    """`clean` says what it could not look at, removes the rest, and does not claim that all is clean."""
    done = worlds.bisect("clean", cwd=tmp_path, DOCKER_HOST="unix:///nowhere/docker.sock")

    assert done.returncode == 20, done.stderr
    assert "docker" in done.stderr
    assert "among what could be looked at" in done.stdout
