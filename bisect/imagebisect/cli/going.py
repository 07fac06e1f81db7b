"""A run with everything around it: signals, progress, the answer, the exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from imagebisect.cli import common
from imagebisect.cli import progress as showing
from imagebisect.errors import BisectError, ExitCode, Interrupted
from imagebisect.interrupt import StopFlag, stop_on_signals
from imagebisect.progress import Progress

if TYPE_CHECKING:
    from imagebisect.ledger import RunFolder
    from imagebisect.state import RunState


def resume_command(folder: RunFolder) -> str:
    """What to type to go on with a run."""
    results = folder.path.parent
    place = "" if results.resolve() == common.DEFAULT_RESULTS.resolve() else f" --results {results}"
    return f"bisect resume {folder.run_id}{place}"


def watched(
    work: Callable[[StopFlag, Progress], RunState],
    *,
    quiet: bool,
    folder: RunFolder | None,
    kind: Callable[[], None],
    as_json: bool = False,
) -> RunState:
    """Do the work under the two-step Ctrl-C and with progress on stderr.

    `kind` ends what the run started, at once; it is called before a second Ctrl-C ends the process.
    """
    stop = StopFlag()
    progress = showing.choose(quiet=quiet)

    def first() -> None:
        sys.stderr.write("\nstopping cleanly; press Ctrl-C again to stop at once\n")

    def second() -> None:
        try:
            kind()
        finally:
            showing.close(progress)
            if folder is not None:
                sys.stderr.write(f"stopped at once; to go on: {resume_command(folder)}\n")
            if as_json:
                common.print_json(
                    {"schema": 1, "exit_code": 130, "reason": "interrupted", "message": "stopped at once"}
                )
            os._exit(int(ExitCode.INTERRUPTED))

    with stop_on_signals(stop, on_first=first, on_second=second):
        try:
            return work(stop, progress)
        finally:
            showing.close(progress)


def go(folder: RunFolder, *, as_json: bool, quiet: bool) -> RunState:
    """Run or resume a run. Shows errors with the resume command and raises typer.Exit for them."""
    from imagebisect import runtime, session

    builds = folder.load().plan.builds

    def reap() -> None:
        runtime.for_builds(builds).reap(folder.run_id)

    try:
        return watched(
            lambda stop, progress: session.run(folder, stop=stop, progress=progress),
            quiet=quiet,
            folder=folder,
            kind=reap,
            as_json=as_json,
        )
    except BisectError as error:
        if isinstance(error, Interrupted):
            error.next_step = f"to go on: {resume_command(folder)}"
        elif error.exit_code is ExitCode.ENVIRONMENT:
            error.next_step = f"{error.next_step or 'put it right'} (this run: {resume_command(folder)})"
        common.show_error(error, as_json=as_json, run=folder.run_id, folder=str(folder.path))
        raise typer.Exit(int(error.exit_code)) from error


def report_of(state: RunState) -> dict[str, Any]:
    """The report of a run, whatever its purpose."""
    if state.created.purpose == "profile":
        from imagebisect.report import profiling

        return profiling.build(state)
    if state.created.compare is not None:
        from imagebisect.report import comparing

        return comparing.build(state)
    from imagebisect.report import build_report

    return build_report(state)


def as_text(report: dict[str, Any], *, where: str | None = None) -> str:
    """A report for a terminal; `where` is the run's folder."""
    if "profile" in report:
        from imagebisect.report import profiling

        return profiling.render(report, where=where)
    if "comparison" in report:
        from imagebisect.report import comparing_text

        return comparing_text.render_terminal(report, where=where)
    from imagebisect.report import terminal

    draw = terminal.render_probe if report["run"]["purpose"] == "probe" else terminal.render
    return draw(report, where=where)


def as_markdown(report: dict[str, Any]) -> str:
    """A report for a GitHub issue."""
    if "profile" in report:
        from imagebisect.report import profiling

        return f"```text\n{profiling.render(report)}\n```\n"
    if "comparison" in report:
        from imagebisect.report import comparing_text

        return comparing_text.render_markdown(report)
    from imagebisect.report import markdown

    return markdown.render(report)


def save(folder: RunFolder, report: dict[str, Any]) -> str:
    """Write report.md and report.json into the run's folder; a line that says where they are."""
    try:
        (folder.path / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
        path = folder.path / "report.md"
        path.write_text(as_markdown(report), "utf-8")
    except OSError as error:
        return f"report: could not be written ({error.strerror}); bisect report {folder.run_id} prints it"
    here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"report: {here}   (and report.json; `bisect report {folder.run_id} --format csv` has every rep)"


def answer(folder: RunFolder, state: RunState, *, as_json: bool) -> int:
    """Print the answer of a finished run; its exit code."""
    report = report_of(state)
    if state.created.purpose == "profile" and state.finished is not None and report["profile"]["metrics"]:
        from imagebisect import hostfiles

        hostfiles.save(folder.path.parent, state)
    saved = save(folder, report)
    if as_json:
        common.print_json(report)
    else:
        common.say(as_text(report, where=str(folder.path)) if "profile" in report else as_text(report))
        common.say(saved)
    return int(report["exit_code"])
