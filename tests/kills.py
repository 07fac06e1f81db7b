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
from imagebisect.domain import Target, TargetRole
from imagebisect.evidence import question
from imagebisect.ledger import RunFolder
from imagebisect.state import Measured, RunState

PATHS = 2
"""Measurements by which two runs may differ: a start's seconds have a say in which build is asked next."""


def searched(state: RunState) -> list[Target]:
    """The targets that are searched. A watch target takes its few values from starts that happen anyway."""
    return [target for target in state.plan.suite.targets if target.role is TargetRole.BISECT]


def finished(state: RunState) -> Counter[tuple[str, int]]:
    """How often each target's metric was measured on each build."""
    return Counter(
        (target.name, start.intended.build)
        for target in searched(state)
        for start in state.starts
        for measurement in start.measurements
        if measurement.scenario == target.scenario and target.metric.name in measurement.metrics
    )


def known(state: RunState) -> Counter[tuple[str, int]]:
    """How many values of each build the search has of each target."""
    return Counter(
        (evidence.target.name, build)
        for evidence in question(state).evidence
        if evidence.target.role is TargetRole.BISECT
        for build, observations in evidence.observations.items()
        for observation in observations
        if observation.value is not None
    )


def totals(state: RunState) -> Counter[str]:
    """How often each target's metric was measured in all."""
    return Counter(name for name, _ in finished(state).elements())


def kill_and_compare(
    cwd: Path, images: str, suite: str, *, kills: int, span_s: tuple[float, float], timeout: float = 280
) -> None:
    """Run once in peace and once with `kills` kill -9 at random moments, each followed by resume.

    Asserts: the same answer, every measurement that was finished before a kill still there and known
    to the search, so that none is repeated.
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
    torn, whole_state = folder.load(), RunFolder(cwd / "results" / "whole").load()
    assert any(start.outcome == "interrupted" for start in torn.starts), "no start was cut short: nothing was tested"
    assert known(torn) == finished(torn)
    most = {name: count + PATHS for name, count in totals(whole_state).items()}
    assert {name: count for name, count in totals(torn).items() if count > most[name]} == {}, (torn.starts, most)


def answer(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What a report says of each target that is searched, without the numbers: what is only watched is left to noise."""
    keys = ("name", "status", "reason", "last_good", "first_bad", "suspects")
    return [{key: target[key] for key in keys} for target in report["targets"] if target["role"] == "bisect"]
