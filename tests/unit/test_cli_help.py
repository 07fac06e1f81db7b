"""What a stranger sees first."""

from __future__ import annotations

import time

import pytest

import worlds
from imagebisect import __version__

COMMANDS = (
    "run",
    "resume",
    "plan",
    "probe",
    "compare",
    "status",
    "report",
    "mark",
    "doctor",
    "clean",
    "demo",
    "images",
)


def test_help_lists_the_commands_the_first_steps_and_the_exit_codes(tmp_path):
    """`bisect --help` is enough to begin and to write a script around the exit code."""
    done = worlds.bisect("--help", cwd=tmp_path)

    assert done.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout
    assert done.stdout.index("First steps") < done.stdout.index("Exit codes")
    for code in (" 130 ", " 1 ", " 2 ", " 20 ", " 10 ", " 11 ", " 12 ", " 13 ", " 0 "):
        assert code in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(tmp_path, command):
    """Each command has a help of its own."""
    done = worlds.bisect(command, "--help", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "Usage: bisect" in done.stdout


def test_help_comes_at_once(tmp_path):
    """Help loads no heavy library: the best of three takes less than half a second."""
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        worlds.bisect("--help", cwd=tmp_path)
        seconds.append(time.monotonic() - began)

    assert min(seconds) < 0.5


def test_version(tmp_path):
    """`--version` is one line."""
    assert worlds.bisect("--version", cwd=tmp_path).stdout == f"bisect {__version__}\n"
