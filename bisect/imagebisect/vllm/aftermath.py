"""Giving a dying server the time to finish dying, so that its exit state and its whole log can be read."""

from __future__ import annotations

import time
from pathlib import Path

from imagebisect.interrupt import StopFlag
from imagebisect.runtime.base import ExitState, Running

DYING_S = 10.0
"""A server whose engine died ends within this; its own watchdog takes about 5 s."""

_QUIET_S = 0.15
_QUIET_LIMIT_S = 2.0
_POLL_S = 0.05


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def wait_for_end(running: Running, log: Path, stop: StopFlag, *, limit_s: float = DYING_S) -> ExitState | None:
    """Wait until the server has ended and its log stands still; its exit state, None if it lives on after `limit_s`."""
    deadline = time.monotonic() + limit_s
    state = running.exit_state()
    while state is None and time.monotonic() < deadline:
        stop.wait(_POLL_S)
        state = running.exit_state()
    size, since = _size(log), time.monotonic()
    deadline = since + _QUIET_LIMIT_S
    while time.monotonic() < min(deadline, since + _QUIET_S):
        stop.wait(_POLL_S)
        now = _size(log)
        if now != size:
            size, since = now, time.monotonic()
    return state
