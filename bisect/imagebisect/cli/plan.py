"""`bisect plan`: what a run would do, without doing it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imagebisect.cli import common

if TYPE_CHECKING:
    from imagebisect.domain import Build, Plan, Server


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    *,
    images: common.Images = common.DEFAULT_IMAGES,
    suite: common.SuiteFile = common.DEFAULT_SUITE,
    good: common.Good = None,
    bad: common.Bad = None,
    sets: common.Sets = None,
    vars_file: common.VarsFile = None,
    add_args: common.AddArgs = None,
    envs: common.Envs = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print what each cause of failure leads to.")] = False,
    as_json: common.Json = False,
) -> None:
    """Dry run: order, digests, commands, worst-case starts."""
    with common.handled(as_json=as_json):
        if explain:
            _explain(as_json=as_json)
            return
        loaded = common.load_plan(
            images, suite, good=good, bad=bad, sets=sets, vars_file=vars_file, add_args=add_args, envs=envs
        )
        document = describe(loaded)
        if as_json:
            common.print_json(document)
        else:
            typer.echo(_text(document))


def _explain(*, as_json: bool) -> None:
    from imagebisect.outcome import POLICY

    rows = [
        {
            "cause": cause.value,
            "survival_targets": rule.event.value,
            "other_targets": rule.value.value,
            "builds_own": rule.own,
            "meaning": rule.meaning,
        }
        for cause, rule in POLICY.items()
    ]
    if as_json:
        common.print_json({"schema": 1, "exit_code": 0, "reason": "explained", "policy": rows})
        return
    typer.echo(f"{'cause':26}{'survival targets':18}{'other targets':15}{'own fault':11}meaning")
    for row in rows:
        own = "yes" if row["builds_own"] else "no"
        typer.echo(f"{row['cause']:26}{row['survival_targets']:18}{row['other_targets']:15}{own:11}{row['meaning']}")
    typer.echo(
        "\nbad: counts against survival.  skip: untestable for the target, stays a suspect, never bad.\n"
        "retry: tried twice more, then the run stops (exit 20).  stop: the host is at fault, the run stops (exit 20).\n"
        "After two failures in a row that are not plainly the build's own, the last good build is started again;\n"
        "if that fails too, the host is at fault, the run stops and those skips are taken back."
    )


def _unpinned_identity(build: Build) -> str:
    return f"unpinned: {build.name}"


def describe(plan: Plan) -> dict[str, Any]:
    """The plan as a value: builds, servers, the command of a first start of each, worst-case starts."""
    from imagebisect import runtime
    from imagebisect.config import unpinned
    from imagebisect.domain import Identity, ImageSource
    from imagebisect.runtime.base import StartSpec
    from imagebisect.runtime.render import shell_line
    from imagebisect.search import worst_case_starts
    from imagebisect.session import scenarios_of

    missing = {build.name for build in unpinned(plan.builds)}
    chosen = runtime.for_builds(plan.builds)

    def command(build: Build, server: Server) -> str:
        if build.name in missing:
            return "# not pinned to a digest yet: no start"
        spec = StartSpec(
            run_id="RUN",
            start_id="0001",
            build=build,
            identity=Identity(id=_unpinned_identity(build)),
            server=server,
            model=plan.suite.model,
            run_folder=Path("results") / "RUN",
            stop_s=plan.suite.deadlines.stop_s,
        )
        return shell_line(chosen.render(spec))

    starts = worst_case_starts(plan)
    first = plan.builds[plan.good]
    return {
        "schema": 1,
        "exit_code": 0,
        "reason": "planned",
        "builds": [
            {
                "name": build.name,
                "role": "good" if build.index == plan.good else "bad" if build.index == plan.bad else None,
                "line": build.line,
                "kind": build.source.kind,
                "digest": build.source.digest if isinstance(build.source, ImageSource) else None,
                "pinned": build.name not in missing,
            }
            for build in plan.builds
        ],
        "targets": [
            {"name": t.name, "role": t.role.value, "metric": t.metric_path, "server": plan.suite.server_of(t)}
            for t in plan.suite.targets
        ],
        "scenarios": {server: list(names) for server, names in scenarios_of(plan).items()},
        "worst_case_starts": starts,
        "worst_case_total": sum(starts.values()),
        "headroom": {server.name: _headroom(plan, server) for server in plan.suite.servers},
        "commands": {
            server.name: {build.name: command(build, server) for build in plan.builds[plan.good : plan.bad + 1]}
            for server in plan.suite.servers
        },
        "variants": [
            {
                "name": variant.server.name,
                "of": variant.of,
                "changes": list(variant.changes),
                "headroom": _headroom(plan, variant.server),
                "build": first.name,
                "command": command(first, variant.server),
            }
            for variant in plan.suite.variants
        ],
        "deltas": list(plan.suite.deltas),
        "images_file": plan.images_file,
    }


def _headroom(plan: Plan, server: Server) -> str | None:
    from imagebisect import headroom

    model = plan.suite.model
    return headroom.in_plan(headroom.buffer(model.linear_attention if model else None, server), server)


def _text(document: dict[str, Any]) -> str:
    from imagebisect.report.wording import count

    lines = [f"{count(len(document['builds']), 'build')}, oldest first:"]
    for build in document["builds"]:
        what = build["digest"] or (build["kind"] if build["pinned"] else "NOT PINNED")
        line = "" if build["line"] == "main" else f"  line {build['line']}"
        lines.append(f"  {build['name']:20} {what}{line}" + (f"  [{build['role']} end]" if build["role"] else ""))
    if any(not build["pinned"] for build in document["builds"]):
        lines.append(f"  a run needs full digests: bisect images resolve --images {document['images_file']}")
    lines.append("")
    lines += [f"target {t['name']} ({t['role']}): {t['metric']} on {t['server']}" for t in document["targets"]]
    lines.append("")
    for server, starts in document["worst_case_starts"].items():
        order = ", ".join(document["scenarios"][server])
        most = f"at most {count(starts, 'start')}"
        lines.append(f"{server}: {most} if all builds can be tested and no value is unclear; {order}")
    lines += [f"{server}: {said}" for server, said in document["headroom"].items() if said]
    lines += [f"delta from the published suite: {delta}" for delta in document["deltas"]]
    if document["variants"]:
        lines += ["", "variants, no part of a run (`bisect probe BUILD --variants`, or `--variant NAME` for one):"]
        lines += [f"  {v['name']} is {v['of']} with {', '.join(v['changes'])}" for v in document["variants"]]
        lines += [f"  {v['name']}: {v['headroom']}" for v in document["variants"] if v["headroom"]]
    for server, commands in document["commands"].items():
        lines += ["", f"each start of {server}, in a fresh container or process:"]
        lines += [f"# {name}\n{command}" for name, command in commands.items()]
    for variant in document["variants"]:
        lines += ["", f"a start of the variant {variant['name']}:", f"# {variant['build']}\n{variant['command']}"]
    return "\n".join(lines)
