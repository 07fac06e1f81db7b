"""`bisect compare`: two builds on interleaved fresh starts, every metric with its interval and a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from imagebisect.cli import common, going
from imagebisect.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebisect.domain import Plan


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The build to compare with, by its name in the builds file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The build that is compared; A again for an A/A.")],
    *,
    images: common.Images = common.DEFAULT_IMAGES,
    suite: common.SuiteFile = common.DEFAULT_SUITE,
    starts: Annotated[int, typer.Option("--starts", min=1, help="Starts of each build on each server.")] = 3,
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
    """Compare two builds on fresh interleaved starts.

    They come in the order A B B A A B, identical but for the build.

    Each metric gets its change with a 95 % interval and one of: reproduced, not reproduced, improved, cannot tell; a
    number of a command that nobody gave a direction: differs, no difference, cannot tell. One start a side can only say
    `cannot tell`; `not reproduced` needs 3. A run that was stopped goes on with `bisect resume`.
    Exit 0 compared (whatever the words), 3 no metric could be compared, 20 environment, 130 interrupted, 2 usage.
    """
    with common.handled(as_json=as_json):
        from dataclasses import replace

        from imagebisect import config, session
        from imagebisect.state import CompareSpec

        whole = common.load_plan(
            images, suite, good=None, bad=None, sets=sets, vars_file=vars_file, add_args=add_args, envs=envs
        )
        plan = only(whole, a, b, server)
        # an environment is looked for under every name here: the entry that `same_as` names may not be among the two
        config.require_startable(replace(plan, builds=tuple(replace(build, same_as=None) for build in plan.builds)))
        folder = session.create(
            plan, results, name=name, purpose="compare", compare=CompareSpec(a=0, b=1, starts=starts)
        )
        state = going.go(folder, as_json=as_json, quiet=quiet)
        raise typer.Exit(going.answer(folder, state, as_json=as_json))


def only(plan: Plan, a: str, b: str, servers: Sequence[str] | None) -> Plan:
    """The plan with nothing but the two builds, A first, and the named servers. UsageError for unknown names.

    One build under both names is an A/A: the second is called `NAME-again`.
    """
    from dataclasses import replace

    builds = {build.name: build for build in plan.builds}
    for wanted in (a, b):
        if wanted not in builds:
            raise UsageError(
                f"there is no build {wanted!r} in {plan.images_file}", next_step=f"builds: {', '.join(builds)}"
            )
    suite = plan.suite
    known = [server.name for server in suite.servers]
    for wanted in servers or ():
        if wanted not in known:
            raise UsageError(f"there is no server {wanted!r} in {suite.file}", next_step=f"servers: {', '.join(known)}")
    kept = set(servers or known)
    scenarios = tuple(scenario for scenario in suite.scenarios if scenario.on in kept)
    if not scenarios:
        raise UsageError(
            f"no scenario of {suite.file} runs on {', '.join(sorted(kept))}", next_step="choose another --server"
        )
    names = {scenario.name for scenario in scenarios}
    first, second = builds[a], builds[b]
    if a == b:
        second = replace(second, name=f"{b}-again", same_as=a)
    return replace(
        plan,
        builds=(replace(first, index=0), replace(second, index=1)),
        suite=replace(
            suite,
            servers=tuple(server for server in suite.servers if server.name in kept),
            scenarios=scenarios,
            targets=tuple(target for target in suite.targets if target.scenario in names),
        ),
        good=0,
        bad=1,
    )
