"""`bisect demo`: the main job on simulated builds, checked against what was planted."""

from __future__ import annotations

import json
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

import typer

from imagebisect.cli import common, going
from imagebisect.errors import ExitCode

if TYPE_CHECKING:
    from imagebisect.domain import Plan

OOM = ("oom_at_start", "oom_at_request")
"""Ends that a hungry build may come to; the planted target judges them."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo_plan() -> tuple[Plan, dict[str, Any]]:
    """The embedded builds and suite, and what was planted: first bad build of each target, builds that cannot run."""
    from imagebisect import config

    folder = files("imagebisect.simulator") / "demo"
    with as_file(folder) as path:
        plan = config.load_plan(path / "images.yaml", path / "suite.yaml")
        planted: dict[str, Any] = json.loads((path / "planted.json").read_text(encoding="utf-8"))
    return plan, planted


def wrong(report: dict[str, Any], planted: dict[str, Any]) -> list[str]:
    """Where a report differs from what was planted, in words; empty when all was found."""
    found = {target["name"]: target for target in report["targets"]}
    problems = []
    for name, expected in planted["first_bad"].items():
        target = found.get(name)
        first = (target or {}).get("first_bad") or {}
        if target is None or target["status"] not in ("confirmed", "narrowed"):
            problems.append(f"{name}: planted at {expected}, ended {target['status'] if target else 'nowhere'}")
        elif first.get("name") != expected:
            problems.append(f"{name}: planted at {expected}, found {first.get('name')}")
    for build in report["builds"]:
        cause = planted["untestable"].get(build["name"])
        possible = (cause,) if cause else (None, *OOM)
        seen = {start["cause"] for start in build["starts"] if start["outcome"] != "interrupted"}
        problems += [f"{build['name']}: planted {cause}, ended {other}" for other in seen if other not in possible]
    return problems


def demo(
    *,
    results: common.Results = common.DEFAULT_RESULTS,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Search 16 simulated builds for two planted regressions. Exit 0 if and only if both were found."""
    with common.handled(as_json=as_json):
        from imagebisect import session
        from imagebisect.report import build_report, terminal

        plan, planted = demo_plan()
        folder = session.create(plan, results)
        state = going.go(folder, as_json=as_json, quiet=quiet)
        report = build_report(state)
        problems = wrong(report, planted)
        report["exit_code"] = int(ExitCode.OUR_BUG if problems else ExitCode.NOTHING_REGRESSED)
        report["reason"] = "not_found" if problems else "found_what_was_planted"
        report["planted"] = planted
        saved = going.save(folder, report)
        if as_json:
            common.print_json(report)
        else:
            typer.echo(terminal.render(report))
            typer.echo(saved)
            for name, build in planted["first_bad"].items():
                typer.echo(f"planted: {name} at {build}")
            for problem in problems:
                typer.echo(f"NOT FOUND: {problem}")
        raise typer.Exit(report["exit_code"])
