"""What a run tells whoever watches it. The session emits; `cli` renders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class RunBegan:
    """A run (or its resumption) begins."""

    run_id: str
    folder: str
    builds: int
    resumed: bool


@dataclass(frozen=True, kw_only=True)
class Pulling:
    """Bytes of an image's layers so far; `total` None while unknown."""

    build: str
    done_bytes: int
    total_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Decided:
    """The search chose the next start."""

    build: str
    server: str
    why: str
    starts_left: int
    seconds_left: float | None


@dataclass(frozen=True, kw_only=True)
class PhaseBegan:
    """A start enters a phase: `create`, `boot`, a scenario's name, `stop`."""

    build: str
    server: str
    phase: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class RepEnded:
    """One timed round is over. `value` in `unit`, None for a warm-up or an invalid rep."""

    build: str
    scenario: str
    concurrency: int
    rep: int
    reps: int
    value: float | None
    unit: str
    note: str = ""
    prompt_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class StartEnded:
    """A start is over. `cause` None: measured."""

    build: str
    server: str
    cause: str | None
    message: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Noted:
    """Anything else worth a line."""

    text: str


ProgressEvent = RunBegan | Pulling | Decided | PhaseBegan | RepEnded | StartEnded | Noted


class Progress(Protocol):
    """Receives events; must not raise and must return fast."""

    def emit(self, event: ProgressEvent) -> None:
        """Take one event."""


class Silent:
    """Drops everything."""

    def emit(self, event: ProgressEvent) -> None:
        """Drop it."""
