"""The report as Markdown for a GitHub issue: the claim first, then what it rests on."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

import jinja2

from imagebisect.report import probing, wording

LIMIT = 60_000
"""GitHub refuses bodies above 65,536 characters; the rest is for whoever pastes it."""


def render(report: dict[str, Any]) -> str:
    """The whole report; sections are dropped from the end to stay within LIMIT, and that is said."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("imagebisect.report"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701  Markdown is escaped cell by cell
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "cell": cell,
        "number": wording.number,
        "duration": wording.duration,
        "shell": shell,
        "shellenv": lambda env: shell(f"{name}={value}" for name, value in env.items()),
    }
    of_probe = report["run"]["purpose"] == "probe"
    template = environment.get_template("probe.md.jinja" if of_probe else "report.md.jinja")
    for left_out in range(4):
        text = template.render(
            report=report,
            run=report["run"],
            probing=probing,
            count=wording.count,
            headline=wording.headline,
            change=wording.change,
            untestable=wording.untestable,
            coverage=wording.coverage,
            sides=wording.sides,
            sure=wording.sure,
            step_words=wording.step,
            search=wording.search(report["run"]),
            hardware=wording.hardware(report["run"]["host"]),
            effort=wording.effort(report["run"]),
            started=wording.started(report),
            headroom=wording.headroom(report),
            leftovers=wording.leftovers(report),
            left_out=left_out,
            commands=commands_of(report),
        )
        if len(text) <= LIMIT:
            return text
    return text[: LIMIT - 40] + "\n\n(cut here: too long for GitHub)\n"


def cell(value: object) -> str:
    """Text that cannot break out of a table cell or become markup."""
    text = "" if value is None else str(value)
    for mark in ("\\", "|", "<", "`"):
        text = text.replace(mark, {"\\": "\\\\", "|": "\\|", "<": "&lt;", "`": "'"}[mark])
    return " ".join(text.split())


def shell(words: Iterable[str]) -> str:
    """A command line that cannot end the code block it stands in."""
    return shlex.join(words).replace("```", "'''")


def commands_of(report: dict[str, Any]) -> dict[str, list[str]]:
    """One command of each server as it was started: of a first bad (or first good) build where there is one."""
    located = {sides[1][1]["name"] for target in report["targets"] if (sides := wording.sides(target))}
    found: dict[str, list[str]] = {}
    for build in sorted(report["builds"], key=lambda build: build["name"] not in located):
        for start in build["starts"]:
            found.setdefault(start["server"], start["command"])
    return found
