"""Progress on stderr: a live panel on a terminal, plain timestamped lines elsewhere."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sys
import time
from typing import TYPE_CHECKING

from imagebisect.progress import (
    Decided,
    Noted,
    PhaseBegan,
    Progress,
    ProgressEvent,
    Pulling,
    RepEnded,
    RunBegan,
    Silent,
    StartEnded,
)
from imagebisect.report.wording import count, duration, number, size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

PULL_EVERY_S = 10.0
"""A pull says a line this often where there is no terminal."""


OWN_PHASES = ("create", "boot", "stop")
"""Phases of every start; any other phase is a scenario."""


def _phase(phase: str) -> str:
    """A phase in words: a scenario is called one, so that one named `boot` is not the boot."""
    return phase if phase in OWN_PHASES or phase.startswith("scenario ") else f"scenario {phase}"


def _rep(event: RepEnded) -> str:
    """Which round of which load, and what came of it."""
    tokens = f" {event.prompt_tokens:,} tokens" if event.prompt_tokens else ""
    load = f"{event.scenario}{tokens} C={event.concurrency}"
    if event.value is None and event.note in ("", "warm-up"):
        return f"{load} warm-up"
    what = number(event.value, event.unit) if event.value is not None else event.note
    return f"{load} rep {event.rep}/{event.reps}: {what}"


def line_of(event: ProgressEvent) -> str | None:
    """One line about an event, None for those that are no news."""
    match event:
        case RunBegan():
            return (
                f"run {event.run_id}: {count(event.builds, 'build')}, {'resumed' if event.resumed else 'new'}, "
                f"in {event.folder}"
            )
        case Decided():
            left = f", about {duration(event.seconds_left)}" if event.seconds_left is not None else ""
            starts = f"about {count(event.starts_left, 'start')} left{left}"
            return f"next: {event.build} on {event.server} ({event.why}); {starts}"
        case PhaseBegan():
            if event.phase in ("create", "stop") or (event.phase == "boot" and event.detail):
                return None
            return f"  {event.build} {event.server}: {_phase(event.phase)}"
        case RepEnded():
            return f"  {event.build} {_rep(event)}"
        case StartEnded():
            how = f"{event.cause}: {event.message}" if event.cause else event.message or "measured"
            return f"  {event.build} {event.server}: {how} ({duration(event.seconds)})"
        case Noted():
            return event.text
        case Pulling():
            total = f" of {size(event.total_bytes)}" if event.total_bytes else ""
            return f"  pulling {event.build}: {size(event.done_bytes)}{total}"


class Lines:
    """Plain lines with the time of day in UTC; safe in any log."""

    def __init__(self) -> None:
        self._pulled = 0.0

    def emit(self, event: ProgressEvent) -> None:
        """Print one line, if the event is worth one."""
        if isinstance(event, Pulling):
            now = time.monotonic()
            if now - self._pulled < PULL_EVERY_S:
                return
            self._pulled = now
        text = line_of(event)
        if text is not None:
            stamp = dt.datetime.now(dt.UTC).strftime("%H:%M:%SZ")
            with contextlib.suppress(OSError, ValueError):  # nobody listens any more: the run goes on
                sys.stderr.write(f"{stamp} {text}\n")
                sys.stderr.flush()


class Panel:
    """A live status of a few lines at the bottom, with the finished starts scrolling above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._decided = self._phase = self._rep = ""
        self._began = time.monotonic()
        self._live: Live = Live(
            console=Console(stderr=True), get_renderable=self._status, refresh_per_second=4, transient=True
        )
        self._live.start()

    def _status(self) -> Text:
        from rich.text import Text

        phase = f"{self._phase}, {duration(time.monotonic() - self._began)} so far" if self._phase else ""
        lines = "\n".join(text for text in (self._decided, phase, self._rep) if text)
        return Text(lines, style="dim", no_wrap=True, overflow="ellipsis")

    def close(self) -> None:
        """Take the panel away."""
        self._live.stop()

    def _enter(self, phase: str) -> None:
        """A new phase: its clock starts; the same phase said again keeps its clock."""
        if phase.partition(" - ")[0] != self._phase.partition(" - ")[0]:
            self._began = time.monotonic()
        self._phase = phase

    def emit(self, event: ProgressEvent) -> None:
        """Update the status, or print a lasting line above it."""
        from rich.text import Text

        match event:
            case RunBegan() | Noted() | StartEnded():
                style = "red" if isinstance(event, StartEnded) and event.cause not in (None, "interrupted") else ""
                self._live.console.print(Text(line_of(event) or "", style=style))
                self._phase = self._rep = ""
            case Decided():
                self._decided = line_of(event) or ""
                self._phase = self._rep = ""
            case PhaseBegan():
                detail = f" - {event.detail[-100:]}" if event.detail else ""
                self._enter(f"{event.build} {event.server}: {_phase(event.phase)}{detail}")
            case Pulling():
                left = f" - {size(event.done_bytes)}" + (f" of {size(event.total_bytes)}" if event.total_bytes else "")
                self._enter(f"pulling {event.build}{left}")
            case RepEnded():
                self._rep = (line_of(event) or "").strip()


def choose(*, quiet: bool) -> Progress:
    """The progress that fits where stderr goes."""
    if quiet:
        return Silent()
    if sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb"):
        return Panel()
    return Lines()


def close(progress: Progress) -> None:
    """End what a progress holds of the terminal."""
    if isinstance(progress, Panel):
        progress.close()
