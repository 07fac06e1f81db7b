"""`bisect status`, `bisect report` and `bisect mark`: looking at a run, and overruling it by hand."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebisect.cli import common, going
from imagebisect.errors import UsageError

if TYPE_CHECKING:
    from imagebisect.ledger import RunFolder
    from imagebisect.search import Probe
    from imagebisect.state import RunState


class Format(StrEnum):
    """What a report can be."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


ENDINGS = {".json": Format.JSON, ".md": Format.MARKDOWN, ".csv": Format.CSV, ".txt": Format.TERMINAL}
"""What a file is to hold, by its ending, where no format is named."""

BY_HAND = ("good", "bad", "skip")
"""Verdicts that can be set by hand."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("status")(status)
    app.command("report")(report)
    app.command("mark")(mark)


def status(
    *,
    run_name: common.RunName = None,
    results: common.Results = common.DEFAULT_RESULTS,
    why: Annotated[
        bool, typer.Option("--why", help="Why each start was made and each end was said, from the run's events.")
    ] = False,
    build: Annotated[
        str | None, typer.Option("--build", help="With --why: one build's whole story, the build by name.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="With --why: also what each start was chosen from.")
    ] = False,
    as_json: common.Json = False,
) -> None:
    """Where a run stands, what comes next, how to go on.

    `status --why BUILD` is short for `status --why --build BUILD` of the newest run.
    """
    with common.handled(as_json=as_json):
        from imagebisect import ledger

        if why or build is not None or verbose:
            folder, build = _run_or_build(results, run_name, build)
            _why(folder, build, verbose=verbose, as_json=as_json)
            return
        from imagebisect.evidence import question
        from imagebisect.report import build_report, terminal
        from imagebisect.search import decide, starts_left
        from imagebisect.session import scenarios_of

        folder = ledger.find(results, run_name)
        state = folder.load()
        if state.created.compare is not None:
            _status_of_comparison(folder, state, as_json=as_json)
            return
        report = build_report(state)
        if state.created.purpose == "probe":
            if as_json:
                common.print_json(report)
                return
            typer.echo(terminal.render_probe(report) if state.starts else "nothing was measured")
            typer.echo(f"this is a probe of {folder.path}: it judges nothing and is not resumed")
            return
        ask = question(state)
        probe = decide(ask, scenarios_of(state.plan)) if state.finished is None else None
        if as_json:
            report["next"] = (
                {"build": ask.names[probe.build], "server": probe.server, "why": probe.why} if probe else None
            )
            report["starts_left"] = starts_left(ask)
            common.print_json(report)
            return
        typer.echo(terminal.render(report, where=str(folder.path)))
        if state.finished is not None:
            typer.echo(f"finished {state.finished.at}")
            return
        _how_to_go_on(folder, state, probe, left=starts_left(ask))


def _run_or_build(results: Path, name: str | None, build: str | None) -> tuple[RunFolder, str | None]:
    """The run and the build that are meant: a name that is no run's may be a build's of the newest one."""
    from imagebisect import ledger

    try:
        return ledger.find(results, name), build
    except UsageError:
        if name is None or build is not None:
            raise
        newest = ledger.find(results, None)
        if name not in {entry.name for entry in newest.load().plan.builds}:
            raise
        return newest, name


def _why(folder: RunFolder, build: str | None, *, verbose: bool, as_json: bool) -> None:
    """The reasons of a search, or of one build in it; UsageError for runs that decide nothing."""
    from pydantic import TypeAdapter

    from imagebisect import why
    from imagebisect.report import why_text
    from imagebisect.report.model import scrubber_of
    from imagebisect.stories import Explanation

    state = folder.load()
    if state.created.purpose != "search":
        raise UsageError(
            f"{folder.run_id} is no search ({state.created.purpose}): its starts were fixed beforehand",
            next_step=f"`bisect status {folder.run_id}` says where it stands",
        )
    names = [entry.name for entry in state.plan.builds]
    if build is not None and build not in names:
        raise UsageError(f"there is no build {build!r} in this run", next_step=f"its builds: {', '.join(names)}")
    explained = TypeAdapter(Explanation).dump_python(why.explain(folder.events()), mode="json")
    told = scrubber_of(state.plan).value(explained)
    if as_json:
        report = going.report_of(state)
        if build is not None:
            told["builds"] = [story for story in told["builds"] if story["build"] == build]
            told["starts"] = [start for start in told["starts"] if start["build"] == build]
        common.print_json({"schema": 1, "exit_code": report["exit_code"], "reason": report["reason"], "why": told})
        return
    common.say(why_text.render(told, verbose=verbose) if build is None else why_text.render_build(told, build))


def _status_of_comparison(folder: RunFolder, state: RunState, *, as_json: bool) -> None:
    """Where a comparison stands: the words so far, the next start in its order, how to go on."""
    from imagebisect import abba

    report = going.report_of(state)
    probe = abba.next_start(state) if state.finished is None else None
    left = abba.starts_left(state) if state.finished is None else 0
    if as_json:
        name = state.plan.builds[probe.build].name if probe else None
        report["next"] = {"build": name, "server": probe.server, "why": probe.why} if probe else None
        report["starts_left"] = left
        common.print_json(report)
        return
    typer.echo(going.as_text(report, where=str(folder.path)))
    if state.finished is not None:
        typer.echo(f"finished {state.finished.at}")
        return
    _how_to_go_on(folder, state, probe, left=left)


def _how_to_go_on(folder: RunFolder, state: RunState, probe: Probe | None, *, left: int) -> None:
    """What a run without its answer does next, and the command to type."""
    from imagebisect.report.wording import count

    if _is_going(folder):
        typer.echo("a process is working in this results folder now")
        return
    if state.stopped is None and state.starts:
        typer.echo("its process ended without a word (killed, or the power went)")
    if probe is not None:
        name = state.plan.builds[probe.build].name
        typer.echo(f"next: {name} on {probe.server} ({probe.why}); at most {count(left, 'start')} left")
    typer.echo(f"to go on: {going.resume_command(folder)}")


def _is_going(folder: RunFolder) -> bool:
    try:
        with folder.lock():
            return False
    except UsageError:
        return True


def report(
    *,
    run_name: common.RunName = None,
    results: common.Results = common.DEFAULT_RESULTS,
    form: Annotated[
        Format | None,
        typer.Option("--format", "-f", help="What to print (default: by the ending of --output, or terminal)."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file instead of stdout.")] = None,
) -> None:
    """Print a run's report."""
    form = form or ENDINGS.get(output.suffix.lower() if output else "", Format.TERMINAL)
    with common.handled(as_json=form is Format.JSON and output is None):
        import json

        from imagebisect import ledger
        from imagebisect.report import table

        folder = ledger.find(results, run_name)
        value = going.report_of(folder.load())
        match form:
            case Format.TERMINAL:
                text = going.as_text(value, where=str(folder.path)) + "\n"
            case Format.MARKDOWN:
                text = going.as_markdown(value)
            case Format.JSON:
                text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
            case Format.CSV:
                text = table.render(value)
        if output is None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"{output} cannot be written: {error.strerror}", next_step="choose another --output"
            ) from error


def mark(
    build: Annotated[str, typer.Argument(help="The build's name.")],
    verdict: Annotated[str | None, typer.Argument(help="good, bad or skip (leave out with --undo).")] = None,
    run_name: common.RunName = None,
    *,
    target: Annotated[str, typer.Option("--target", "-t", help="The target it is for.")],
    undo: Annotated[bool, typer.Option("--undo", help="Take a verdict set by hand back.")] = False,
    results: common.Results = common.DEFAULT_RESULTS,
    as_json: common.Json = False,
) -> None:
    """Overrule one build's verdict for one target by hand.

    A target whose final pair holds such a verdict never ends as confirmed.
    """
    with common.handled(as_json=as_json):
        from imagebisect import ledger, session
        from imagebisect.domain import Verdict

        if undo and verdict is not None and run_name is None:
            verdict, run_name = None, verdict
        if undo == (verdict is not None) or verdict not in (None, *BY_HAND):
            raise UsageError(
                f"{verdict} is no verdict to set by hand" if verdict and not undo else "give a verdict, or --undo",
                next_step="bisect mark BUILD good|bad|skip --target T, or bisect mark BUILD --undo --target T",
            )
        folder = ledger.find(results, run_name)
        session.mark(folder, build, target, Verdict(verdict) if verdict is not None else None)
        if as_json:
            document = {"build": build, "target": target, "verdict": verdict, "run": folder.run_id}
            common.print_json({"schema": 1, "exit_code": 0, "reason": "marked", **document})
        done = "taken back" if undo else f"is {verdict} by hand now"
        typer.echo(f"{build} for {target}: {done}; to go on: {going.resume_command(folder)}", err=True)
