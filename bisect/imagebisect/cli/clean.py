"""`bisect clean`: remove what dead runs left on this host."""

from __future__ import annotations

from typing import Annotated

import typer

from imagebisect.cli import common
from imagebisect.errors import EnvironmentFault, ExitCode


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("clean")(clean)


def clean(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: common.Json = False,
) -> None:
    """Remove what dead runs left: our containers, volumes, processes.

    What a living run owns stays, and so do images and results.
    """
    with common.handled(as_json=as_json):
        found, notes = _look() if dry_run else _remove()
        code = ExitCode.ENVIRONMENT if notes else ExitCode.NOTHING_REGRESSED
        if as_json:
            reason = "would_clean" if dry_run else "cleaned"
            common.print_json({"schema": 1, "exit_code": int(code), "reason": reason, "removed": found, "notes": notes})
            raise typer.Exit(int(code))
        for text in found:
            common.say(f"{'would remove' if dry_run else 'removed'} {text}")
        for note in notes:
            typer.echo(f"not looked at: {note}", err=True)
        if not found:
            common.say("nothing of ours is left" + (" among what could be looked at" if notes else ""))
        raise typer.Exit(int(code))


def _look() -> tuple[list[str], list[str]]:
    from imagebisect.runtime import survey

    found = list(survey.leftover_groups())
    try:
        found += survey.leftover_containers()
    except EnvironmentFault as fault:
        return found, [f"docker: {fault.what}"]
    return found, []


def _remove() -> tuple[list[str], list[str]]:
    from imagebisect import runtime

    removed: list[str] = []
    notes: list[str] = []
    for one in runtime.every_runtime():
        try:
            removed += one.reap(None)
        except EnvironmentFault as fault:
            notes.append(f"{one.kind}: {fault.what}")
    return removed, notes
