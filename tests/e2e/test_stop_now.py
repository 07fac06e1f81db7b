"""Ctrl-C twice: stop now, and still leave nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import worlds


def test_twice_stops_at_once_and_leaves_nothing(tmp_path):
    """The second Ctrl-C ends a start in the middle: exit 130, no process left, the resume command, and it resumes."""
    images, suite = worlds.write(tmp_path, worlds.planted(3, slow_from=1, hungry_from=9), worlds.ONE_TARGET)
    process = subprocess.Popen(
        [sys.executable, "-m", "imagebisect", "run", "--images", str(images), "--suite", str(suite), "--name", "now"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ledger = tmp_path / "results" / "now" / "events.jsonl"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (ledger.exists() and "start_ready" in ledger.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)

    assert process.returncode == 130, stderr
    assert "bisect resume now" in stderr
    assert "Traceback" not in stderr
    assert worlds.group_members(str(tmp_path)) == []
    resumed = worlds.bisect("resume", "now", "--json", cwd=tmp_path)
    assert resumed.returncode == 10, resumed.stderr
    assert json.loads(resumed.stdout)["run"]["resumed"] == 1
