"""The answer as a person reads it on a terminal: plain text, no more than is known."""

from __future__ import annotations

from typing import Any

from imagebisect.report import probing, wording


def render(report: dict[str, Any], *, where: str | None = None) -> str:
    """The whole answer; `where` is the run's folder."""
    run = report["run"]
    lines: list[str] = []
    if report["simulated"]:
        lines += [wording.SIMULATED, ""]
    if run["finished"] is None and run["purpose"] == "search":
        lines.append("UNFINISHED" + (f", stopped {run['stopped']}" if run["stopped"] else ""))
        lines.append("")
    for target in report["targets"]:
        lines += _target(target)
        lines.append("")
    if report["targets"]:
        lines += _table(report)
        lines.append("")
    notes = [*wording.headroom(report), *wording.leftovers(report)]
    if notes:
        lines += [*notes, ""]
    lines.append(f"{wording.hardware(run['host'])}")
    lines.append(wording.effort(run))
    lines += wording.search(run)
    lines += [f"delta from the published suite: {delta}" for delta in run["deltas"]]
    if where:
        lines.append(f"run folder: {where}")
    return "\n".join(lines)


def _target(target: dict[str, Any]) -> list[str]:
    watch = "  [watch]" if target["role"] == "watch" else ""
    lines = [f"{target['name']}: {(target['status'] or 'open').upper()} - {wording.headline(target)}{watch}"]
    sides = wording.sides(target)
    for side, build in sides:
        name = side if target["status"] is not None else f"{side.split()[1]} so far"
        lines.append(f"  {name:<{max(len(word) for word, _ in sides) if target['status'] else 11}}  {_named(build)}")
    lines.append(f"  {target['metric']}: {wording.change(target)}")
    if target["status"] in ("narrowed", "inconsistent") and len(target["suspects"]) > 1:
        lines.append("  suspects   " + ", ".join(build["name"] for build in target["suspects"]))
    if target["sentence"]:
        lines.append(f"  {target['sentence']}")
    missing = wording.untestable(target)
    if missing:
        lines.append(f"  could not be tested: {missing}")
    if target["status"] == "inconsistent" or len(target["steps"]) > 1:
        lines += [f"  step  {wording.step(step)}" for step in target["steps"]]
    if sides and wording.coverage(target):
        lines.append(f"  {wording.coverage(target)}")
    return lines


def _named(build: dict[str, Any]) -> str:
    known = [build["digest"], build["version"], build["revision"]]
    return "  ".join([str(build["name"]), *(str(item) for item in known if item)])


def _table(report: dict[str, Any]) -> list[str]:
    names = [target["name"] for target in report["targets"]]
    rows = [["build", *names, "starts", "not measured because"]]
    for build in report["builds"]:
        causes = list(dict.fromkeys(start["cause"] for start in build["starts"] if start["cause"]))
        if build["pull_failure"]:
            causes.append("pull_failed")
        verdicts = [
            (build["verdicts"].get(target["name"]) or ".") + ("*" if build["name"] in target["marked"] else "")
            for target in report["targets"]
        ]
        rows.append([build["name"], *verdicts, str(len(build["starts"])), ", ".join(causes)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    by_hand = any(target["marked"] for target in report["targets"])
    note = ["* set by hand, not measured"] if by_hand else []
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ] + note


def render_probe(report: dict[str, Any], *, where: str | None = None) -> str:
    """What a probe saw: facts, metrics and every rep with both clocks. It judges nothing."""
    run = report["run"]
    lines: list[str] = []
    if report["simulated"]:
        lines += [wording.SIMULATED, ""]
    if run["finished"] is None and run["purpose"] == "probe":
        lines += ["UNFINISHED" + (f", stopped {run['stopped']}" if run["stopped"] else ""), ""]
    for build in report["builds"]:
        for start in build["starts"]:
            lines += _start(report, build, start)
        if build["pull_failure"]:
            lines.append(f"{build['name']}: {build['pull_failure']}")
    for variant in report["variants"]:
        lines += ["", *_variant(variant)]
    missing = probing.unmeasured_plain(report)
    lines += ["", f"could not be measured: {', '.join(missing)}"] if missing else [""]
    lines += [*wording.leftovers(report), wording.hardware(run["host"]), wording.effort(run)]
    lines += [f"delta from the published suite: {delta}" for delta in run["deltas"]]
    if where:
        lines.append(f"run folder: {where}")
    return "\n".join(lines)


def _start(report: dict[str, Any], build: dict[str, Any], start: dict[str, Any]) -> list[str]:
    lines = [f"{build['name']} on {start['server']}: {probing.outcome(start)}"]
    if start["message"] and not probing.in_scenario(start):
        masked = f" (masked by {start['masked_by']})" if start["masked_by"] else ""
        lines.append(f"  {start['message']}{masked}")
    lines += [f"  {name}: {value}" for name, value in probing.facts(start)]
    if start["headroom"]:
        lines.append(f"  {start['headroom']}")
    if start["boot_s"] is not None:
        lines.append(f"  ready after {start['boot_s']:.1f} s")
    for measurement in start["measurements"]:
        lines.append(f"  {measurement['scenario']}: {probing.failed(measurement)}".rstrip())
        lines += [f"    {name} = {value}" for name, value in probing.values(report, measurement)]
        lines += [f"    {note}" for note in probing.notes(start, measurement)]
        lines += [f"    {_rep(rep)}" for rep in measurement["reps"]]
    return lines


def _rep(rep: dict[str, Any]) -> str:
    return (
        f"C={rep['concurrency']} {probing.rep_name(rep)}: {rep['prompt_tokens']} tokens in, "
        f"{rep['output_tokens']} out, client {rep['seconds']:.3f} s, server prefill {probing.prefill_s(rep)}, "
        f"counted {rep['usage_prompt_tokens']}, cache hits {rep['cache_hit_tokens']}"
        + (f", invalid: {rep['invalid']}" if rep["invalid"] else "")
    )


def _variant(variant: dict[str, Any]) -> list[str]:
    """What a variant moved, metric by metric."""
    lines = [probing.variant_head(variant)]
    lines += [f"  {said}" for said in probing.variant_failures(variant)]
    rows = probing.variant_rows(variant)
    if not rows:
        return lines
    rows = [("metric", variant["of"], variant["name"], "change"), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines += [
        "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lacks = probing.variant_lacks(variant)
    if lacks:
        lines.append(f"  no value with it: {', '.join(lacks)}")
    return [*lines, f"  {probing.ONE_START}"]
