"""A run killed at any moment goes on where it was."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import worlds
from kills import kill_and_compare


def test_ten_kills_change_nothing(tmp_path):
    """Kill -9 at ten random moments, each followed by resume: same answer, nothing measured twice, nothing left."""
    images, suite = worlds.write(tmp_path, worlds.planted(8, slow_from=5, hungry_from=3))

    kill_and_compare(tmp_path, str(images), str(suite), kills=10, span_s=(0.6, 3.5))

    assert worlds.group_members(str(tmp_path)) == []


def test_stop_once_is_clean_and_names_the_resume_command(tmp_path):
    """SIGTERM during a start: exit 130, the server is gone, resume finishes the job."""
    images, suite = worlds.write(tmp_path, worlds.planted(4, slow_from=2, hungry_from=9))
    process = subprocess.Popen(
        [sys.executable, "-m", "imagebisect", "run", "--images", str(images), "--suite", str(suite), "--name", "s"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(2.5)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)

    assert process.returncode == 130, stderr
    assert "bisect resume s" in stderr
    assert worlds.group_members(str(tmp_path)) == []
    resumed = worlds.bisect("resume", "s", "--json", cwd=tmp_path)
    assert resumed.returncode == 10, resumed.stderr
