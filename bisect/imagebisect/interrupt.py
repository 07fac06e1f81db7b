"""Stopping: a flag that every wait looks at, set by Ctrl-C or SIGTERM.

Once: the current start is ended cleanly and the run can be resumed. Twice: stop now.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from imagebisect.errors import Interrupted


class StopFlag:
    """Set once to ask for a clean stop; waits poll `check()` or sleep by `wait()`."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Ask everything that waits to stop."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether a stop was asked for."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise Interrupted if a stop was asked for."""
        if self._event.is_set():
            msg = "stopped on request"
            raise Interrupted(msg)

    def wait(self, seconds: float) -> None:
        """Sleep, but raise Interrupted at once when a stop is asked for."""
        if self._event.wait(seconds):
            self.check()


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a run to stop; SIGHUP is an ssh connection that dropped."""


@contextmanager
def stop_on_signals(flag: StopFlag, *, on_first: Callable[[], None], on_second: Callable[[], None]) -> Iterator[None]:
    """Install the two-step handler for Ctrl-C, SIGTERM and a lost terminal; restores the old ones.

    `on_second` is expected not to return (it ends the process after freeing what it owns).
    """

    def handle(_signum: int, _frame: FrameType | None) -> None:
        if flag.is_set:
            on_second()
        else:
            flag.set()
            on_first()

    # under nohup a lost terminal is meant to be ignored
    wanted = [n for n in STOPPING if n is not signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    old = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
