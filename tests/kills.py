"""A run killed again and again, beside the same run left in peace."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import worlds
from imagebisect.ledger import RunFolder
from imagebisect.state import Measured


def finished(folder: Path) -> Counter[tuple[int, str]]:
    """How often each scenario was finished on each build."""
    counts: Counter[tuple[int, str]] = Counter()
    for start in RunFolder(folder).load().starts:
        for measurement in start.measurements:
            counts[start.intended.build, measurement.scenario] += 1
    return counts


def kill_and_compare(
    cwd: Path, images: str, suite: str, *, kills: int, span_s: tuple[float, float], timeout: float = 280
) -> None:
    """Run once in peace and once with `kills` kill -9 at random moments, each followed by resume.

    Asserts: the same answer, every measurement that was finished before a kill still there, none repeated.
    """
    arguments = ["--images", images, "--suite", suite, "--results", "results"]
    whole = worlds.bisect("run", *arguments, "--name", "whole", "--json", cwd=cwd, timeout=timeout)
    assert whole.returncode == 10, whole.stderr
    dice = random.Random(20261201)
    command = ["run", *arguments, "--name", "torn"]
    folder = RunFolder(cwd / "results" / "torn")
    kept: list[Measured] = []
    for _ in range(kills):
        with (cwd / "torn.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "imagebisect", *command], cwd=cwd, stdout=log, stderr=log, env=os.environ
            )
            time.sleep(dice.uniform(*span_s))
            process.send_signal(signal.SIGKILL)
            process.wait()
        if not folder.exists():
            continue
        command = ["resume", "torn", "--results", "results"]
        events = [event for event in folder.events() if isinstance(event, Measured)]
        assert events[: len(kept)] == kept
        kept = events

    last = worlds.bisect("resume", "torn", "--results", "results", "--json", cwd=cwd, timeout=timeout)

    assert last.returncode == 10, last.stderr
    assert answer(json.loads(last.stdout)) == answer(json.loads(whole.stdout))
    torn, clean = finished(folder.path), finished(cwd / "results" / "whole")
    extra = torn - Counter({key: clean.get(key, 0) + (key not in clean) for key in torn})
    assert not extra, extra


def answer(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What a report says of each target, without the numbers."""
    keys = ("name", "status", "reason", "last_good", "first_bad", "suspects")
    return [{key: target[key] for key in keys} for target in report["targets"]]
