"""`bisect run`, and `bisect resume` of a search or a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebisect.cli import common, going
from imagebisect.errors import UsageError

if TYPE_CHECKING:
    from imagebisect.ledger import RunFolder


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("run")(run)
    app.command("resume")(resume)


def _is_probe(folder: RunFolder) -> bool:
    return folder.load().created.purpose == "probe"


def _unfinished(results: Path) -> list[RunFolder]:
    """Searches and comparisons without their answer, oldest first; a ledger that cannot be read is passed over and named."""
    from imagebisect import ledger

    found = []
    for folder in ledger.runs(results):
        try:
            if folder.load().finished is None and not _is_probe(folder):
                found.append(folder)
        except UsageError as error:
            typer.echo(f"passed over: {error.what} ({error.where})", err=True)
    return found


def run(
    *,
    images: common.Images = common.DEFAULT_IMAGES,
    suite: common.SuiteFile = common.DEFAULT_SUITE,
    results: common.Results = common.DEFAULT_RESULTS,
    good: common.Good = None,
    bad: common.Bad = None,
    sets: common.Sets = None,
    vars_file: common.VarsFile = None,
    add_args: common.AddArgs = None,
    envs: common.Envs = None,
    find_fix: common.FindFix = False,
    scan: Annotated[
        int,
        typer.Option("--scan", min=0, help="Also start so many evenly spaced builds: for ranges that break twice."),
    ] = 0,
    budgets: common.Budgets = None,
    name: Annotated[str | None, typer.Option("--name", help="The run's name (default: date and time).")] = None,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Find the first bad build of every target."""
    with common.handled(as_json=as_json):
        from imagebisect import budget, config, session
        from imagebisect.state import SearchOptions

        limits = budget.parse(budgets or ())
        plan = common.load_plan(
            images,
            suite,
            good=good,
            bad=bad,
            sets=sets,
            vars_file=vars_file,
            add_args=add_args,
            envs=envs,
            find_fix=find_fix,
        )
        config.require_startable(plan)
        options = SearchOptions(find="fix" if find_fix else "regression", scan=scan, budget=limits)
        folder = session.create(plan, results, name=name, options=options)
        state = going.go(folder, as_json=as_json, quiet=quiet)
        raise typer.Exit(going.answer(folder, state, as_json=as_json))


def resume(
    *,
    run_name: common.RunName = None,
    results: common.Results = common.DEFAULT_RESULTS,
    if_unfinished: Annotated[
        bool, typer.Option("--if-unfinished", help="Do nothing (exit 0) when there is no unfinished run: for @reboot.")
    ] = False,
    budgets: common.Budgets = None,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Go on with a run that was stopped or killed, or whose budget was spent.

    No finished measurement is repeated. --budget replaces the one that the run had, counted from its beginning.
    """
    with common.handled(as_json=as_json):
        from imagebisect import budget, ledger, session

        if if_unfinished and run_name is None:
            unfinished = _unfinished(results)
            if not unfinished:
                if as_json:
                    common.print_json({"schema": 1, "exit_code": 0, "reason": "nothing_to_resume"})
                else:
                    typer.echo(f"no unfinished run in {results}", err=True)
                raise typer.Exit(0)
            folder = unfinished[-1]
        else:
            folder = ledger.find(results, run_name)
            if _is_probe(folder):
                raise UsageError(f"{folder.run_id} is a probe: it is not resumed", next_step="`bisect probe` it again")
        if budgets:
            session.set_budget(folder, budget.parse(budgets))
        state = going.go(folder, as_json=as_json, quiet=quiet)
        raise typer.Exit(going.answer(folder, state, as_json=as_json))
