"""What every command shares: options, how errors are shown, how a JSON document is printed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from imagebisect.errors import BisectError, EnvironmentFault, ExitCode, Interrupted, UsageError

if TYPE_CHECKING:
    from imagebisect.domain import Plan

Images = Annotated[Path, typer.Option("--images", "-i", help="The builds file, oldest build first.")]
SuiteFile = Annotated[Path, typer.Option("--suite", "-s", help="The suite: model, servers, scenarios, targets.")]
Results = Annotated[Path, typer.Option("--results", help="The folder that holds the runs.")]
Json = Annotated[bool, typer.Option("--json", help="Exactly one JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Good = Annotated[str | None, typer.Option("--good", help="The good end, a build's name (default: role, or the first).")]
Bad = Annotated[str | None, typer.Option("--bad", help="The bad end, a build's name (default: role, or the last).")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="A variable of the suite, NAME=VALUE. Repeatable.")]
VarsFile = Annotated[Path | None, typer.Option("--vars", help="A YAML file of variables.")]
AddArgs = Annotated[
    list[str] | None, typer.Option("--add-arg", help="An argument for every server; the report says so. Repeatable.")
]
Envs = Annotated[
    list[str] | None, typer.Option("--env", help="An env variable for every server, NAME=VALUE; reported. Repeatable.")
]
FindFix = Annotated[
    bool, typer.Option("--find-fix", help="Find the first good build after a bad one: the bad end is the older one.")
]
Budgets = Annotated[
    list[str] | None,
    typer.Option(
        "--budget", help="End with what is known after so many '12 starts', '2h' or '4 gpu-hours'. Repeatable."
    ),
]
RunName = Annotated[str | None, typer.Argument(metavar="RUN", help="The run's name or folder (default: the newest).")]

BROKEN_PIPE = 141
"""What the shell reports of a program whose reader went away (128 + SIGPIPE)."""

_HOSTS_FAULT = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
)

DEFAULT_IMAGES = Path("images.yaml")
DEFAULT_SUITE = Path("scenarios/qwen35-gdn.yaml")
DEFAULT_RESULTS = Path("results")


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """NAME=VALUE options as a mapping. UsageError for anything else."""
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {text}: expected NAME=VALUE", next_step=f"write {option} NAME=VALUE")
        found[name] = value
    return found


def load_plan(
    images: Path,
    suite: Path,
    *,
    good: str | None,
    bad: str | None,
    sets: Sequence[str] | None,
    vars_file: Path | None,
    add_args: Sequence[str] | None,
    envs: Sequence[str] | None,
    find_fix: bool = False,
) -> Plan:
    """Both files and the overlays as a plan."""
    from imagebisect import config

    given, overlays = pairs("--set", sets), pairs("--env", envs)
    _require_files(images, suite, vars_file)
    return config.load_plan(
        images,
        suite,
        good=good,
        bad=bad,
        sets=given,
        vars_file=vars_file,
        add_args=tuple(add_args or ()),
        envs=overlays,
        find_fix=find_fix,
    )


def _require_files(images: Path, suite: Path, vars_file: Path | None) -> None:
    """UsageError that names the files that are not there, and for each the option that names another."""
    given = [(images, "your builds file with --images"), (suite, "your suite with --suite")]
    if vars_file is not None:
        given.append((vars_file, "your variables with --vars"))
    missing = [(path, advice) for path, advice in given if not path.exists()]
    if missing:
        raise UsageError(
            f"there is no file {' and no file '.join(str(path) for path, _ in missing)}",
            next_step=f"name {' and '.join(advice for _, advice in missing)}",
        )


def print_json(document: dict[str, Any]) -> None:
    """The one JSON document of this call, on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A piece of the answer on stdout, out at once, so that a closed pipe is noticed here."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show_error(error: BisectError, *, as_json: bool, **more: Any) -> None:
    """An error on stderr in three parts; in JSON on stdout too when that was asked for."""
    lines = [error.what if isinstance(error, Interrupted) else f"error: {error.what}"]
    if error.where:
        lines.append(f"  at: {error.where}")
    if error.next_step:
        lines.append(f"  next: {error.next_step}")
    sys.stderr.write("\n".join(lines) + "\n")
    if as_json:
        print_json(
            {
                "schema": 1,
                "exit_code": int(error.exit_code),
                "reason": error.reason,
                "message": error.what,
                "where": error.where,
                "next_step": error.next_step,
                **more,
            }
        )


@contextlib.contextmanager
def handled(*, as_json: bool = False) -> Iterator[None]:
    """Turn whatever a command raises into a message and an exit code; no traceback but for our own bugs' file."""
    try:
        yield
        sys.stdout.flush()
    except (typer.Exit, typer.Abort):
        raise
    except BisectError as error:
        show_error(error, as_json=as_json)
        raise typer.Exit(int(error.exit_code)) from error
    except BrokenPipeError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from error
    except KeyboardInterrupt as error:
        show_error(Interrupted("interrupted"), as_json=as_json)
        raise typer.Exit(int(ExitCode.INTERRUPTED)) from error
    except OSError as error:
        if error.errno not in _HOSTS_FAULT:
            _bug(error, as_json=as_json)
        text = f"the host refuses: {error.strerror}"
        fault = EnvironmentFault(text, where=error.filename or "", next_step="free disk space or fix the permissions")
        show_error(fault, as_json=as_json)
        raise typer.Exit(int(ExitCode.ENVIRONMENT)) from error
    except Exception as error:  # noqa: BLE001
        _bug(error, as_json=as_json)


def _bug(error: Exception, *, as_json: bool) -> NoReturn:
    """Say that it is ours, keep the traceback in a file, exit 1."""
    where = "(no traceback could be kept)"
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile(
            "w", prefix="bisect-bug-", suffix=".txt", delete=False, encoding="utf-8"
        ) as sink:
            traceback.print_exception(error, file=sink)
        where = sink.name
    bug = BisectError(
        f"this is a bug in bisect: {type(error).__name__}: {error}",
        where=where,
        next_step="report it with that file; a run that was going can be resumed",
    )
    bug.reason = "bug"
    show_error(bug, as_json=as_json)
    raise typer.Exit(int(ExitCode.OUR_BUG)) from error
