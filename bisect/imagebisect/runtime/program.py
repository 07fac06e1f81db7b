"""A program of the suite's, run beside a server: everything it starts is found again and ended with it."""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from imagebisect.runtime import groups

GRACE_S = 5.0
"""How long a program that is asked to end may take, before it is killed."""

_WAIT_FOR_GO = 'read -r go && exec "$@"'


class Program:
    """A running program in a process group of its own, on record before it runs. Leaving the block ends it.

    Args:
        argv: the program and its arguments.
        folder: where it runs.
        env: its whole environment; a marker is added.
        output: where its stdout and stderr go.
        run_id: of the run, for the record.
        start_id: of the start, for the record.

    Raises OSError where no process can be started at all; a program that is not there ends with exit code 127.
    """

    def __init__(
        self, argv: tuple[str, ...], *, folder: str, env: Mapping[str, str], output: Path, run_id: str, start_id: str
    ) -> None:
        marker = secrets.token_hex(16)
        with output.open("wb") as sink:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WAIT_FOR_GO, "sh", *argv],
                cwd=folder,
                env={**env, groups.MARKER: marker},
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._group = groups.Group(
            run_id=run_id,
            start_id=start_id,
            pgid=self._process.pid,
            ticks=groups.start_ticks(self._process.pid) or 0,
            boot=groups.boot_id(),
            owner=str(groups.Owner.this()),
            cache="",
            marker=marker,
        )
        try:
            groups.put_on_record(self._group)
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError), self._process.stdin as go:
                go.write(b"go\n")
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def poll(self) -> int | None:
        """Its exit code (negative for a signal), None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait so long for its end; its exit code or None."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def end(self) -> int:
        """End it and everything it started, asked first, then by force; its exit code. Idempotent."""
        asked = self._process.poll() is None
        if asked or self._group.members():
            self._group.signal(signal.SIGTERM)
            deadline = time.monotonic() + GRACE_S
            while (self._process.poll() is None or self._group.members()) and time.monotonic() < deadline:
                time.sleep(0.05)
        if self._group.kill():
            groups.strike_off(self._group)
        code = self.wait(GRACE_S)
        return -signal.SIGKILL if code is None else code
