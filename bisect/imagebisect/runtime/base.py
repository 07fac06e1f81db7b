"""The seam between the session and whatever runs a build.

A runtime makes a build present, renders a start, starts it and hands back a `Running`
that owns the container or process group until it is stopped. A new runtime implements
these two protocols and is added to `imagebisect.runtime.for_builds`; nothing else changes.

Errors: `EnvironmentFault` when the host or the engine is at fault (its `cause` is a
`Cause` value; transient ones are retried by the session), `StartFailed` when the build is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from imagebisect.domain import Build, Identity, ModelSpec, Rendered, Server
from imagebisect.interrupt import StopFlag

PullProgress = Callable[[int, int | None], None]
"""Called with (bytes so far, total bytes or None)."""


@dataclass(frozen=True, kw_only=True)
class StartSpec:
    """All that one start is made of. `start_id` is unique in the run; names derive from it."""

    run_id: str
    start_id: str
    build: Build
    identity: Identity
    server: Server
    model: ModelSpec | None
    run_folder: Path
    stop_s: float

    @property
    def container_name(self) -> str:
        """The container's (or process group's) name, recorded before it is created."""
        return f"bisect-{self.run_id}-{self.start_id}"

    @property
    def start_folder(self) -> Path:
        """Where this start keeps its log and state: `<run>/starts/<start_id>/`."""
        return self.run_folder / "starts" / self.start_id

    @property
    def log_path(self) -> Path:
        """The server's whole output, stdout and stderr in one file."""
        return self.start_folder / "server.log"


@dataclass(frozen=True, kw_only=True)
class ExitState:
    """How a server ended. `exit_code` is negative for a signal, as subprocess has it."""

    exit_code: int
    oom_killed: bool = False


class Running(Protocol):
    """A started server. Leaving the `with` block stops and removes it, whatever happened."""

    spec: StartSpec
    url: str
    log_lag_s: float
    """A line that the server wrote is in our log file this much later, at most."""

    def __enter__(self) -> Running: ...

    def __exit__(self, *exc: object) -> None: ...

    def exit_state(self) -> ExitState | None:
        """None while it runs; does not block."""

    def exec(self, argv: tuple[str, ...], timeout_s: float) -> tuple[int, str]:
        """Run a command where the server runs; (exit code, output). Never raises for a dead server."""

    def run_python(self, code: str, timeout_s: float) -> tuple[int, str]:
        """Run code by the interpreter that the server runs on; (exit code, output). 127 where there is none to be had."""

    def pids(self) -> frozenset[int]:
        """The server's processes as this host numbers them; empty where that is not known."""

    def stop(self) -> ExitState:
        """End it within `spec.stop_s` (then by force), wait until nothing of it is left, finish the log. Idempotent."""


class Runtime(Protocol):
    """Starts builds of one kind."""

    kind: str

    def check(self, server: Server) -> None:
        """Raise EnvironmentFault if this host cannot run such a server at all."""

    def version(self) -> str | None:
        """The engine's version, part of what makes measurements comparable; None where there is no engine."""

    def prepare(self, build: Build, *, progress: PullProgress, stop: StopFlag, idle_s: float) -> Identity:
        """Make the build present (pull by digest) and say what it is. `idle_s`: no bytes for so long is a failure."""

    def render(self, spec: StartSpec) -> Rendered:
        """Render without touching anything; the port shows as a placeholder until it is started."""

    def start(self, spec: StartSpec, rendered: Rendered) -> Running:
        """Start it. On any error nothing is left behind."""

    def reap(self, run_id: str | None) -> tuple[str, ...]:
        """Remove leftovers of ours (of one run, or of all runs that no living process owns); what was removed."""
