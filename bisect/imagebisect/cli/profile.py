"""`bisect profile`: this host's noise, from starts of one build."""

from __future__ import annotations

from typing import Annotated

import typer

from imagebisect.cli import common, compare, going


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("profile")(profile)


def profile(
    build: Annotated[str, typer.Argument(metavar="BUILD", help="The build to start again and again.")],
    *,
    images: common.Images = common.DEFAULT_IMAGES,
    suite: common.SuiteFile = common.DEFAULT_SUITE,
    starts: Annotated[int, typer.Option("--starts", min=4, max=100, help="Starts on each server, an even number.")] = 6,
    server: Annotated[list[str] | None, typer.Option("--server", help="Only this server. Repeatable.")] = None,
    results: common.Results = common.DEFAULT_RESULTS,
    sets: common.Sets = None,
    vars_file: common.VarsFile = None,
    add_args: common.AddArgs = None,
    envs: common.Envs = None,
    name: Annotated[str | None, typer.Option("--name", help="The run's name (default: date and time).")] = None,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Measure this host's noise: starts of one build, every scenario.

    Reps inside a start, starts of one build and slow starts are told apart and kept in RESULTS/hosts, by the host's
    fingerprint. A later `bisect run` with the same server, scenario and model on the same host starts from them instead
    of a guess. A profile that was stopped goes on with `bisect resume`.
    Exit 0 profiled, 3 nothing could be measured, 20 environment, 130 interrupted, 2 usage.
    """
    with common.handled(as_json=as_json):
        from dataclasses import replace

        from imagebisect import config, session
        from imagebisect.state import CompareSpec

        whole = common.load_plan(
            images, suite, good=None, bad=None, sets=sets, vars_file=vars_file, add_args=add_args, envs=envs
        )
        plan = compare.only(whole, build, build, server)
        config.require_startable(replace(plan, builds=tuple(replace(one, same_as=None) for one in plan.builds)))
        folder = session.create(
            plan, results, name=name, purpose="profile", compare=CompareSpec(a=0, b=1, starts=(starts + 1) // 2)
        )
        state = going.go(folder, as_json=as_json, quiet=quiet)
        raise typer.Exit(going.answer(folder, state, as_json=as_json))
