"""`bisect clean`: remove what dead runs left on this host."""

from __future__ import annotations

import typer

from imagebisect.cli import common
from imagebisect.errors import EnvironmentFault


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("clean")(clean)


def clean(*, as_json: common.Json = False) -> None:
    """Remove containers, volumes and processes of ours that no living run owns. Images and results stay."""
    with common.handled(as_json=as_json):
        from imagebisect import runtime

        removed: list[str] = []
        notes: list[str] = []
        for one in runtime.every_runtime():
            try:
                removed += one.reap(None)
            except EnvironmentFault as fault:
                notes.append(f"{one.kind}: {fault.what}")
        if as_json:
            common.print_json({"schema": 1, "exit_code": 0, "reason": "cleaned", "removed": removed, "notes": notes})
            return
        for text in removed:
            typer.echo(f"removed {text}")
        for note in notes:
            typer.echo(f"not looked at: {note}", err=True)
        if not removed:
            typer.echo("nothing of ours was left")
