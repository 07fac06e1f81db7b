"""A command of the suite does not outlive the run, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import worlds

CHILD, PARENT = f"sleep 986{os.getpid()}", f"sleep 985{os.getpid()}"
"""Seconds that no other worker's processes sleep."""

SUITE = worlds.SUITE.replace(
    "  oom:   {on: bt8192, kind: oom-probe, ladder: [[8000, 1], [8000, 2]]}",
    "  oom:   {on: bt8192, kind: oom-probe, ladder: [[8000, 1], [8000, 2]]}\n"
    f"  hold:  {{on: bt4096, kind: command, run: \"trap '' TERM; setsid {CHILD} & {PARENT}\"}}",
)


def wait_for(what, *, there=True, within_s=60.0):
    """Wait until a process is there, or gone."""
    deadline = time.monotonic() + within_s
    while bool(worlds.group_members(what)) != there:
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def holding(tmp_path):
    """A probe in the middle of a command that ignores SIGTERM and has a child outside its group."""
    worlds.write(tmp_path, [worlds.profile()] * 2, SUITE)
    running = subprocess.Popen(
        [sys.executable, "-m", "imagebisect", "probe", "b00", "--images", "images.yaml", "--suite", "suite.yaml", "--server", "bt4096"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(CHILD)
    yield running
    if running.poll() is None:
        running.kill()
    running.wait()


def test_after_a_kill_clean_ends_the_command_with_all_it_started(tmp_path, holding):
    """`kill -9` of bisect leaves the program running; `bisect clean` ends it and its child outside the group."""
    holding.kill()
    holding.wait()
    assert worlds.group_members(CHILD)

    # without an engine: containers of the tests beside this one are no business of its, and not every machine has one
    done = worlds.bisect("clean", cwd=tmp_path, DOCKER_HOST="unix:///nowhere/docker.sock")

    assert done.returncode == 20, done.stderr
    assert "removed process group" in done.stdout
    wait_for(CHILD, there=False, within_s=5)
    wait_for(PARENT, there=False, within_s=5)


def test_stopping_twice_ends_the_command_at_once(holding):
    """Ctrl-C twice: nothing of the program is left."""
    holding.send_signal(signal.SIGINT)
    time.sleep(0.3)
    holding.send_signal(signal.SIGINT)

    assert holding.wait(timeout=30) == 130
    wait_for(CHILD, there=False, within_s=5)
    wait_for(PARENT, there=False, within_s=5)
