"""`bisect images`: what the registry knows of the builds file."""

from __future__ import annotations

from typing import Annotated

import typer

from imagebisect.cli import common
from imagebisect.errors import ExitCode

images_app = typer.Typer(help="Work on the builds file.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(images_app, name="images")


@images_app.callback()
def _images() -> None:
    """Work on the builds file."""


@images_app.command("resolve")
def resolve(
    *,
    images: common.Images = common.DEFAULT_IMAGES,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be written.")] = False,
    as_json: common.Json = False,
) -> None:
    """Pin every build that is known by tag or digest prefix to its full digest, in the file."""
    with common.handled(as_json=as_json):
        from imagebisect import registry

        rows = registry.resolve_file(images, write=not dry_run)
        failed = [row for row in rows if row.error is not None]
        code = int(failed[0].exit_code) if failed else int(ExitCode.NOTHING_REGRESSED)
        if as_json:
            common.print_json(
                {
                    "schema": 1,
                    "exit_code": code,
                    "reason": "unresolved" if failed else "resolved",
                    "builds": [{"name": row.name, "digest": row.digest, "error": row.error} for row in rows],
                }
            )
        else:
            for row in rows:
                if row.error is None:
                    common.say(f"{row.name:20} {row.digest}")
                else:
                    typer.echo(f"error: {row.name}: {row.error}", err=True)
            if not rows:
                typer.echo("every build has its full digest already")
        raise typer.Exit(code)
