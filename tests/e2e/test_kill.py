"""A run killed at any moment goes on where it was."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import worlds
from imagebisect.ledger import RunFolder
from imagebisect.state import Measured

KILLS = 10


def finished(folder) -> Counter[tuple[int, str]]:
    """How often each scenario was finished on each build."""
    state = RunFolder(folder).load()
    counts: Counter[tuple[int, str]] = Counter()
    for start in state.starts:
        for measurement in start.measurements:
            counts[start.intended.build, measurement.scenario] += 1
    return counts


def test_ten_kills_change_nothing(tmp_path):
    """kill -9 at ten random moments, each followed by resume: same answer, nothing measured twice, nothing left."""
    images, suite = worlds.write(tmp_path, worlds.planted(8, slow_from=5, hungry_from=3))
    arguments = ["--images", str(images), "--suite", str(suite), "--results", "results"]
    whole = worlds.bisect("run", *arguments, "--name", "whole", "--json", cwd=tmp_path)
    assert whole.returncode == 10, whole.stderr
    dice = random.Random(20261201)
    command = ["run", *arguments, "--name", "torn"]
    kept: list[Measured] = []
    for _ in range(KILLS):
        with (tmp_path / "torn.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "imagebisect", *command], cwd=tmp_path, stdout=log, stderr=log, env=os.environ
            )
            time.sleep(dice.uniform(0.6, 3.5))
            process.send_signal(signal.SIGKILL)
            process.wait()
        folder = RunFolder(tmp_path / "results" / "torn")
        if not folder.exists():
            continue
        command = ["resume", "torn", "--results", "results"]
        events = [event for event in folder.events() if isinstance(event, Measured)]
        assert events[: len(kept)] == kept
        kept = events

    last = worlds.bisect("resume", "torn", "--results", "results", "--json", cwd=tmp_path)

    assert last.returncode == 10, last.stderr
    torn, clean = json.loads(last.stdout), json.loads(whole.stdout)
    for mine, theirs in zip(torn["targets"], clean["targets"], strict=True):
        for key in ("name", "status", "reason", "last_good", "first_bad", "suspects"):
            assert mine[key] == theirs[key]
    assert max(finished(tmp_path / "results" / "torn").values()) <= max(
        finished(tmp_path / "results" / "whole").values()
    )
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
