"""A comparison for a terminal and for a GitHub issue: the claims first, then every metric, then the proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imagebisect.outcome import Cause
from imagebisect.report import comparing, wording
from imagebisect.report.markdown import LIMIT, cell, commands_of, shell

SIMULATED = "Simulated builds: this shows how the tool works, it is no measurement of any vLLM."

HEAD = ("metric", "A", "B", "unit", "change", "95 % interval", "floor", "could show", "answer")

LEGEND = (
    "floor: the smallest change that matters; could show: the smallest that these starts would have told from noise "
    "(equal values still count as spread by 1 MiB or 0.05 %); words, columns and defaults: docs/compare.md"
)


def render_terminal(report: dict[str, Any], *, where: str | None = None) -> str:
    """The whole answer as plain text; `where` is the run's folder."""
    run, comparison = report["run"], report["comparison"]
    lines = [SIMULATED, ""] if report["simulated"] else []
    if run["finished"] is None:
        lines += [f"UNFINISHED{_stopped(run)}; what follows is where it stands", ""]
    lines += [f"A {_named(report, 0)}", f"B {_named(report, 1)}", _how(comparison), ""]
    noise = comparing.noise(comparison)
    targets = [entry for entry in comparison["metrics"] if entry["target"]]
    lines += [entry["sentence"] for entry in targets]
    lines += [""] if targets else []
    rows = [HEAD, *(_row(entry) for entry in comparison["metrics"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines += ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [
        LEGEND,
        "",
        *([noise, ""] if noise else []),
        *(f"not measured here: {text}" for text in _absent(comparison)),
    ]
    lines += _proof(comparison)
    lines += [*_failures(report), *wording.headroom(report), *wording.leftovers(report)]
    lines += [wording.hardware(run["host"]), wording.effort(run)]
    lines += [f"delta from the published suite: {delta}" for delta in run["deltas"]]
    if where:
        lines.append(f"run folder: {where}")
    return "\n".join(lines)


def _stopped(run: dict[str, Any]) -> str:
    return f", stopped {run['stopped']}" if run["stopped"] else ""


def _named(report: dict[str, Any], side: int) -> str:
    name = report["comparison"]["b" if side else "a"]
    build = next(build for build in report["builds"] if build["name"] == name)
    known = [build["digest"], build["version"], build["revision"]]
    return "  ".join([str(name), *(str(item) for item in known if item)])


def _how(comparison: dict[str, Any]) -> str:
    same = "; both are the same build, so every change is this host's" if comparison["same_build"] else ""
    return f"fresh starts in the order {comparison['order']} on {', '.join(comparison['servers'])}{same}"


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{entry['scenario']}.{entry['metric']}",
        comparing.middle(entry, 0),
        comparing.middle(entry, 1),
        entry["unit"],
        comparing.change(entry) or "-",
        comparing.interval(entry) or "-",
        comparing.floor(entry),
        comparing.size(entry, entry["detectable"]),
        entry["word"] + (f" [{entry['target']}]" if entry["target"] else " (no target)"),
    )


def _absent(comparison: dict[str, Any]) -> list[str]:
    return [", ".join(comparison["not_measured"])] if comparison["not_measured"] else []


def _proof(comparison: dict[str, Any]) -> list[str]:
    """One line a server: how many starts were equal but for the build, by which form, and the listed deviations."""
    lines = []
    for name, server in comparison["servers"].items():
        if server["canonical_sha256"] is None:
            lines.append(f"{name}: never started")
            continue
        count = len(server["starts"])
        equal = f"{count} start{'' if count == 1 else 's'} equal but for the build"
        lines.append(f"{name}: {equal}, canonical form {server['canonical_sha256']}")
        lines += [f"  deviation of {text}" for text in server["deviations"]]
        if server["ended_early"]:
            lines.append(f"  no more starts: {server['ended_early']} would come back each time")
    return lines


def _failures(report: dict[str, Any]) -> list[str]:
    """Starts of either build that ended in a failure, builds that could not be had, and commands that did not pass."""
    found = []
    for build in report["builds"]:
        if build["pull_failure"]:
            found.append(f"{build['name']} could not be had: {build['pull_failure']}")
        for start in build["starts"]:
            if start["cause"] and start["cause"] != Cause.COMMAND_FAILED:
                masked = f" (masked by {start['masked_by']})" if start["masked_by"] else ""
                message = (start["message"] or "")[:400]
                found.append(
                    f"{build['name']}, start {start['id']} on {start['server']}: {start['cause']}{masked}: {message}"
                )
    return found + [_command(entry) for entry in report["comparison"]["commands"]]


def _command(entry: dict[str, Any]) -> str:
    """A command that did not pass: in which starts, why, and where its whole output is."""
    starts = f"start{'' if len(entry['starts']) == 1 else 's'} {', '.join(entry['starts'])}"
    kept = f" (whole output: {', '.join(entry['outputs'])})" if entry["outputs"] else ""
    return f"{entry['build']}, {starts}: {entry['why']}{kept}"


# --------------------------------------------------------------------------- Markdown


def render_markdown(report: dict[str, Any]) -> str:
    """The whole report for an issue; sections are dropped from the end to stay within LIMIT, and that is said."""
    sections = [_claims(report), _metrics(report), _equal(report), _details(report)]
    for kept in range(len(sections), 0, -1):
        text = "\n".join("\n".join(section) for section in sections[:kept])
        if kept < len(sections):
            text += f"\n(Sections were left out to fit; `bisect report {report['run']['id']} --format json` has all.)"
        if len(text) < LIMIT:
            return text + "\n"
    return text[: LIMIT - 40] + "\n\n(cut here: too long for GitHub)\n"


def _claims(report: dict[str, Any]) -> list[str]:
    run, comparison = report["run"], report["comparison"]
    lines = [f"**{SIMULATED}**", ""] if report["simulated"] else []
    if run["finished"] is None:
        lines += [f"**Unfinished**{cell(_stopped(run))}. What follows is where it stood.", ""]
    lines += [f"A `{comparison['a']}` against B `{comparison['b']}`: {cell(_how(comparison))}.", ""]
    lines += [
        f"- **{cell(comparing.label(entry))}: {entry['word']}**{cell(_after_word(entry))}"
        for entry in comparison["metrics"]
        if entry["target"]
    ] or ["- no target was compared"]
    noise = comparing.noise(comparison)
    lines += ["", f"{cell(noise)}."] if noise else []
    flags = [
        f"{name}: {shell([*(f'{key}={value}' for key, value in server['env'].items()), *server['args']])}"
        for name, server in run["suite"]["servers"].items()
    ]
    model = cell(run["suite"]["model"] or "none")
    lines += ["", f"Measured on {cell(wording.hardware(run['host']))}. {wording.started(report)}. Model: {model}."]
    return [*lines, "", "```", *flags, "```", ""]


def _after_word(entry: dict[str, Any]) -> str:
    """A sentence without the name and the word it begins with."""
    return str(entry["sentence"]).removeprefix(f"{comparing.label(entry)}: {entry['word']}")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell(text) for text in cells) + " |"


def _metrics(report: dict[str, Any]) -> list[str]:
    comparison = report["comparison"]
    lines = ["### Every metric", "", _line(HEAD), "|" + "---|" * len(HEAD)]
    lines += [_line(_row(entry)) for entry in comparison["metrics"]]
    lines += [
        "",
        f"{cell(LEGEND)}. The values of each start:",
        "",
    ]
    lines += ["| metric | each start of A | each start of B |", "|---|---|---|"]
    lines += [
        _line((f"{entry['scenario']}.{entry['metric']}", comparing.values(entry, 0), comparing.values(entry, 1)))
        for entry in comparison["metrics"]
    ]
    lines += [f"\nNot measured here: {cell(text)}." for text in _absent(comparison)]
    return [*lines, ""]


def _equal(report: dict[str, Any]) -> list[str]:
    lines = [
        "### Equal but for the build",
        "",
        "| side | build | digest | version | revision |",
        "|---|---|---|---|---|",
    ]
    for side, name in zip(comparing.SIDES, (report["comparison"]["a"], report["comparison"]["b"]), strict=True):
        build = next(build for build in report["builds"] if build["name"] == name)
        lines.append(_line([side, *(str(build[key] or "") for key in ("name", "digest", "version", "revision"))]))
    lines += ["", *(f"- {cell(line.strip())}" for line in _proof(report["comparison"]))]
    lines += [f"- delta from the published suite: {cell(delta)}" for delta in report["run"]["deltas"]]
    lines += [f"- {cell(note)}" for note in (*wording.headroom(report), *wording.leftovers(report))]
    failures = _failures(report)
    if failures:
        lines += ["", "<details><summary>Failures in full</summary>", "", *(f"- {cell(text)}" for text in failures)]
        lines += ["", "</details>"]
    return [*lines, ""]


def _details(report: dict[str, Any]) -> list[str]:
    run = report["run"]
    lines = ["<details><summary>How it was started, host and run</summary>", ""]
    for server, argv in commands_of(report).items():
        lines += [f"`{server}`:", "", "```", shell(argv), "```", ""]
    lines += [
        f"- {cell(key)}: {cell(value)}" for key, value in run["host"].items() if key not in ("gpus", "cpu", "cpus")
    ]
    lines += [
        f"- model fingerprint: {run['model_fingerprint']}",
        f"- {wording.effort(run)}",
        f"- run {cell(run['id'])}, {run['started']} to {run['finished'] or 'unfinished'}, bisect {run['tool_version']}",
    ]
    return [*lines, "", "</details>"]
