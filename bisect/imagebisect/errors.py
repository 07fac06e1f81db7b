"""Every error the program raises on purpose, with its exit code and what to do next.

BisectError
├── UsageError            2    a bad file, a bad flag, a run that does not fit
│   └── ConfigError       2    carries every problem found, each with file:line:column
├── EnvironmentFault     20    docker, GPU, registry, disk: the host, not the build
├── Interrupted         130    Ctrl-C or SIGTERM
└── StartFailed           3    a start that ended in a typed failure (judged, rarely shown as such)

Anything else that escapes is our bug and exits 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagebisect.domain import Failure, Location


class ExitCode(IntEnum):
    """What the process says; `bisect --help` lists them (design: section 5)."""

    NOTHING_REGRESSED = 0
    OUR_BUG = 1
    USAGE = 2
    NOT_MEASURABLE = 3
    CONFIRMED = 10
    NARROWED = 11
    INCONCLUSIVE = 12
    UNTESTABLE_ANCHOR = 13
    ENVIRONMENT = 20
    INTERRUPTED = 130


class BisectError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: what happened, one sentence.
        where: file:line:column, a container, a path; empty when `what` says it.
        next_step: what the reader can do about it.
    """

    exit_code: ExitCode = ExitCode.OUR_BUG
    reason: str = "error"

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.next_step = next_step


class UsageError(BisectError):
    """The command, a file, or the folder does not fit."""

    exit_code = ExitCode.USAGE
    reason = "usage"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong in a file: where, which key, what was found and expected."""

    location: Location
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.location}: {self.key}: {self.message}" if self.key else f"{self.location}: {self.message}"


class ConfigError(UsageError):
    """One or more problems in the files that the user wrote."""

    reason = "config"

    def __init__(self, problems: tuple[Problem, ...], *, next_step: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in problems), next_step=next_step)
        self.problems = problems


class EnvironmentFault(BisectError):
    """The host is at fault: docker, a GPU, the registry, the disk."""

    exit_code = ExitCode.ENVIRONMENT
    reason = "environment"

    def __init__(self, what: str, *, where: str = "", next_step: str = "", cause: str = "") -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.cause = cause


class Interrupted(BisectError):
    """The user asked to stop."""

    exit_code = ExitCode.INTERRUPTED
    reason = "interrupted"


class StartFailed(BisectError):
    """A start ended in a typed failure; the session turns it into an outcome."""

    exit_code = ExitCode.NOT_MEASURABLE
    reason = "start_failed"

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.cause}: {failure.message}")
        self.failure = failure
