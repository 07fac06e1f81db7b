"""`bisect probe`: one build, every scenario once. It judges nothing."""

from __future__ import annotations

import datetime as dt
import secrets
from typing import Annotated

import typer

from imagebisect.cli import common, going
from imagebisect.errors import BisectError, ExitCode, UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("probe")(probe)


def probe(
    build: Annotated[str, typer.Argument(help="The build's name in the builds file.")],
    *,
    images: common.Images = common.DEFAULT_IMAGES,
    suite: common.SuiteFile = common.DEFAULT_SUITE,
    server: Annotated[list[str] | None, typer.Option("--server", help="Only this server. Repeatable.")] = None,
    with_variants: Annotated[
        bool, typer.Option("--variants", help="Also start every variant of these servers, and show what each moved.")
    ] = False,
    results: common.Results = common.DEFAULT_RESULTS,
    sets: common.Sets = None,
    vars_file: common.VarsFile = None,
    add_args: common.AddArgs = None,
    envs: common.Envs = None,
    name: Annotated[str | None, typer.Option("--name", help="The run's name (default: date and time).")] = None,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Start one build and measure every scenario of the suite. Exit 0 measured, 3 not measurable, 20."""
    with common.handled(as_json=as_json):
        from dataclasses import replace

        from imagebisect import config, runtime, session, variants
        from imagebisect.report import build_report, terminal
        from imagebisect.report.model import unmeasured

        plan = common.load_plan(
            images, suite, good=None, bad=None, sets=sets, vars_file=vars_file, add_args=add_args, envs=envs
        )
        entry = next((b for b in plan.builds if b.name == build), None)
        if entry is None:
            names = ", ".join(b.name for b in plan.builds)
            raise UsageError(f"there is no build {build!r} in {images}", next_step=f"builds: {names}")
        servers = tuple(dict.fromkeys(server or (s.name for s in plan.suite.servers)))
        known = [s.name for s in plan.suite.servers]
        for wanted in servers:
            if wanted not in known:
                raise UsageError(f"there is no server {wanted!r} in {suite}", next_step=f"servers: {', '.join(known)}")
        if with_variants:
            made, servers = variants.spread(plan.suite, servers)
            if len(made.servers) == len(plan.suite.servers):
                raise UsageError(
                    f"{suite} names no variants of {', '.join(servers)}", next_step="add `variants:` (docs/files.md)"
                )
            plan = replace(plan, suite=made)
        config.require_startable(replace(plan, builds=(entry,)))

        run_id = name or f"probe-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"

        def reap() -> None:
            runtime.for_builds((entry,)).reap(run_id)

        try:
            state = going.watched(
                lambda stop, progress: session.probe(
                    plan, entry.index, servers, results, stop=stop, progress=progress, name=run_id
                ),
                quiet=quiet,
                folder=None,
                kind=reap,
                as_json=as_json,
            )
        except BisectError as error:
            # a probe is begun anew, not resumed
            error.next_step = error.next_step.replace("then `bisect resume`", f"then `bisect probe {build}` again")
            raise
        report = build_report(state)
        starts = [start for b in report["builds"] for start in b["starts"]]
        missing = unmeasured(report)
        measured = bool(starts) and not missing
        code = ExitCode.NOTHING_REGRESSED if measured else ExitCode.NOT_MEASURABLE
        report["exit_code"], report["reason"] = int(code), "measured" if measured else "not_measurable"
        if as_json:
            common.print_json(report)
        else:
            common.say(terminal.render_probe(report))
            if missing:
                common.say(f"could not be measured: {', '.join(missing)}")
            common.say(f"report: {results / run_id}")
        raise typer.Exit(int(code))
