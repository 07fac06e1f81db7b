"""`bisect doctor`: is this host ready?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imagebisect.cli import common
from imagebisect.errors import ExitCode


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    *,
    images: Annotated[Path | None, typer.Option("--images", "-i", help="The builds file.")] = None,
    suite: Annotated[Path | None, typer.Option("--suite", "-s", help="The suite.")] = None,
    results: common.Results = common.DEFAULT_RESULTS,
    sets: common.Sets = None,
    vars_file: common.VarsFile = None,
    as_json: common.Json = False,
) -> None:
    """Check docker, GPUs against TP, disk, the model folder, ports. Exit 0 ready, 20 not."""
    with common.handled(as_json=as_json):
        from imagebisect import doctor as checking

        plan = None
        if images is not None or suite is not None:
            plan = common.load_plan(
                images or common.DEFAULT_IMAGES,
                suite or common.DEFAULT_SUITE,
                good=None,
                bad=None,
                sets=sets,
                vars_file=vars_file,
                add_args=None,
                envs=None,
            )
        found = checking.checks(plan, results)
        failed = any(check.level is checking.Level.FAIL for check in found)
        code = ExitCode.ENVIRONMENT if failed else ExitCode.NOTHING_REGRESSED
        if as_json:
            common.print_json(
                {
                    "schema": 1,
                    "exit_code": int(code),
                    "reason": "not_ready" if failed else "ready",
                    "checks": [
                        {"name": c.name, "level": c.level.value, "what": c.what, "next_step": c.next_step}
                        for c in found
                    ],
                }
            )
        else:
            for check in found:
                typer.echo(f"{check.level.value:5} {check.name}: {check.what}")
                if check.next_step:
                    typer.echo(f"      next: {check.next_step}")
            if plan is None:
                typer.echo("give --images and --suite to check the builds, the GPUs and the model too")
        raise typer.Exit(int(code))
