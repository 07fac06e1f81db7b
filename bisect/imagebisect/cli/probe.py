"""`bisect probe`: one build, every scenario once. It judges nothing."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebisect.cli import common, going
from imagebisect.errors import BisectError, UsageError

if TYPE_CHECKING:
    from imagebisect.domain import Suite
    from imagebisect.ledger import RunFolder


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
    variant: Annotated[
        list[str] | None, typer.Option("--variant", help="Only this variant, beside its server. Repeatable.")
    ] = None,
    results: common.Results = common.DEFAULT_RESULTS,
    sets: common.Sets = None,
    vars_file: common.VarsFile = None,
    add_args: common.AddArgs = None,
    envs: common.Envs = None,
    name: Annotated[str | None, typer.Option("--name", help="The run's name (default: date and time).")] = None,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Start one build and measure every scenario of the suite.

    Exit 0 every server was measured (a variant need not be), 3 not measurable, 20.
    """
    with common.handled(as_json=as_json):
        from dataclasses import replace

        from imagebisect import config, runtime, session
        from imagebisect.ledger import RunFolder

        plan = common.load_plan(
            images, suite, good=None, bad=None, sets=sets, vars_file=vars_file, add_args=add_args, envs=envs
        )
        entry = next((b for b in plan.builds if b.name == build), None)
        if entry is None:
            names = ", ".join(b.name for b in plan.builds)
            raise UsageError(f"there is no build {build!r} in {images}", next_step=f"builds: {names}")
        made, order = chosen(plan.suite, server or (), variant or (), everything=with_variants, build=build)
        plan = replace(plan, suite=made)
        config.require_startable(replace(plan, builds=(entry,)))

        run_id = name or f"probe-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        folder = RunFolder(results.resolve() / run_id)
        taken = folder.path.exists()

        def reap() -> None:
            runtime.for_builds((entry,)).reap(run_id)

        try:
            state = going.watched(
                lambda stop, progress: session.probe(
                    plan, entry.index, order, results, stop=stop, progress=progress, name=run_id
                ),
                quiet=quiet,
                folder=None,
                kind=reap,
                as_json=as_json,
            )
        except BisectError as error:
            # a probe is begun anew, not resumed
            error.next_step = error.next_step.replace("then `bisect resume`", f"then `bisect probe {build}` again")
            if taken or not folder.exists():
                raise
            _show_what_is_there(folder, error, as_json=as_json)
            raise typer.Exit(int(error.exit_code)) from error
        raise typer.Exit(going.answer(folder, state, as_json=as_json))


def _show_what_is_there(folder: RunFolder, error: BisectError, *, as_json: bool) -> None:
    """Before a probe ends with an error: what it measured until then, on the terminal or in the error's document."""
    report = going.report_of(folder.load())
    if not report["builds"]:
        common.show_error(error, as_json=as_json, run=folder.run_id)
        return
    saved = going.save(folder, report)
    if not as_json:
        common.say(going.as_text(report))
        common.say(saved)
    common.show_error(error, as_json=as_json, run=folder.run_id, builds=report["builds"], variants=report["variants"])


def chosen(
    suite: Suite, servers: Sequence[str], names: Sequence[str], *, everything: bool, build: str
) -> tuple[Suite, tuple[str, ...]]:
    """The suite with the servers and variants to start, and their order. UsageError for names that are not there.

    A named variant brings its server along, and without other names nothing else.
    """
    from imagebisect import variants

    known = [server.name for server in suite.servers]
    of = {variant.server.name: variant.of for variant in suite.variants}
    where = Path(suite.file)
    for wanted in servers:
        if wanted in of:
            raise UsageError(
                f"{wanted} is a variant of the server {of[wanted]}, not a server",
                where=str(where),
                next_step=f"bisect probe {build} --variant {wanted}",
            )
        if wanted not in known:
            raise UsageError(f"there is no server {wanted!r} in {where}", next_step=f"servers: {', '.join(known)}")
    if (everything or names) and not of:
        raise UsageError(f"{where} names no variants", next_step="add `variants:` (docs/files.md)")
    for wanted in names:
        if wanted not in of:
            raise UsageError(f"there is no variant {wanted!r} in {where}", next_step=f"variants: {', '.join(of)}")
    asked = tuple(servers) or (tuple(known) if everything or not names else ())
    order = tuple(dict.fromkeys((*asked, *(of[wanted] for wanted in names))))
    if not everything:
        return variants.spread(suite, order, names)
    if not any(base in asked for base in of.values()):
        listed = ", ".join(f"{name} of {base}" for name, base in of.items())
        raise UsageError(f"{where} names no variants of {', '.join(asked)}", next_step=f"variants: {listed}")
    wanted_variants = {*names, *(name for name, base in of.items() if base in asked)}
    return variants.spread(suite, order, wanted_variants)
