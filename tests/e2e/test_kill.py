"""A run killed at any moment goes on where it was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

import worlds
from kills import kill_and_compare


def test_ten_kills_change_nothing(tmp_path):
    """Kill -9 at ten random moments, each followed by resume: same answer, nothing measured twice, nothing left."""
    images, suite = worlds.write(tmp_path, worlds.planted(8, slow_from=5, hungry_from=3))

    kill_and_compare(tmp_path, str(images), str(suite), kills=10, span_s=(0.6, 3.5))

    assert worlds.group_members(str(tmp_path)) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_stop_once_is_clean_and_names_the_resume_command(tmp_path, number):
    """SIGTERM, or a dropped ssh, during a start: exit 130, the server is gone, resume finishes the job."""
    images, suite = worlds.write(tmp_path, worlds.planted(4, slow_from=2, hungry_from=9), worlds.ONE_TARGET)
    process = subprocess.Popen(
        [sys.executable, "-m", "imagebisect", "run", "--images", str(images), "--suite", str(suite), "--name", "s"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509  under nohup it is ignored
    )
    worlds.wait_for_member(str(tmp_path / "results"))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)

    assert process.returncode == 130, stderr
    assert "bisect resume s" in stderr
    assert worlds.group_members(str(tmp_path)) == []
    resumed = worlds.bisect("resume", "s", "--json", cwd=tmp_path)
    assert resumed.returncode == 10, resumed.stderr


def test_a_new_run_removes_what_a_dead_one_left(tmp_path):
    """Kill -9 leaves a server; the next run, of another folder, ends it before it measures."""
    images, suite = worlds.write(tmp_path, worlds.planted(2, slow_from=1, hungry_from=9), worlds.ONE_TARGET)
    command = ["run", "--images", str(images), "--suite", str(suite), "--results"]
    with (tmp_path / "dead.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "imagebisect", *command, "dead"], cwd=tmp_path, stdout=log, stderr=log
        )
        worlds.wait_for_member(str(tmp_path / "dead"))
        time.sleep(0.2)
        process.kill()
        process.wait()
    left = worlds.group_members(str(tmp_path / "dead"))

    after = worlds.bisect(*command, "after", cwd=tmp_path)

    assert left, "the killed run left no server: nothing was tested"
    assert after.returncode == 10, after.stderr
    assert "removed a leftover of a dead run" in after.stderr
    assert worlds.group_members(str(tmp_path)) == []


def test_nobody_reading_the_progress_is_no_reason_to_stop(tmp_path):
    """`2> >(head -2)`: the answer comes all the same."""
    images, suite = worlds.write(tmp_path, worlds.planted(2, slow_from=1, hungry_from=9), worlds.ONE_TARGET)
    process = subprocess.Popen(
        [sys.executable, "-m", "imagebisect", "run", "--images", str(images), "--suite", str(suite), "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stderr.readline()
    process.stderr.close()
    answer = process.stdout.read()
    process.stdout.close()

    assert process.wait(60) == 10
    assert json.loads(answer)["exit_code"] == 10
