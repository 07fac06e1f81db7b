"""The answer as a person reads it on a terminal: plain text, no more than is known."""

from __future__ import annotations

from typing import Any

from imagebisect.report import wording

SHOWN_FACTS = (
    "version",
    "commit",
    "commit_contradiction",
    "torch",
    "cuda",
    "flashinfer",
    "transformers",
    "triton",
    "nccl",
    "driver",
    "architecture",
    "attention_backend",
    "gdn_prefill_kernel",
    "model_runner",
    "block_size",
    "weights_mib",
    "compile_s",
    "graph_mib",
    "init_engine_s",
    "skipped_memory_profiling",
)
"""Facts that a probe prints, in this order; the JSON has all of them."""


def render(report: dict[str, Any], *, where: str | None = None) -> str:
    """The whole answer; `where` is the run's folder."""
    run = report["run"]
    lines: list[str] = []
    if report["simulated"]:
        lines.append("Simulated builds: this shows how the tool works, it is no measurement of any vLLM.")
        lines.append("")
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
    lines += [f"delta from the published suite: {delta}" for delta in run["deltas"]]
    if where:
        lines.append(f"run folder: {where}")
    return "\n".join(lines)


def _target(target: dict[str, Any]) -> list[str]:
    watch = "  [watch]" if target["role"] == "watch" else ""
    lines = [f"{target['name']}: {(target['status'] or 'open').upper()} - {wording.headline(target)}{watch}"]
    if target["first_bad"] is not None:
        ended = target["status"] is not None
        lines.append(f"  {'last good' if ended else 'good so far'}  {_named(target['last_good'])}")
        lines.append(f"  {'first bad' if ended else 'bad so far '}  {_named(target['first_bad'])}")
    lines.append(f"  {target['metric']}: {wording.change(target)}")
    if target["status"] in ("narrowed", "inconsistent") and len(target["suspects"]) > 1:
        lines.append("  suspects   " + ", ".join(build["name"] for build in target["suspects"]))
    if target["sentence"]:
        lines.append(f"  {target['sentence']}")
    missing = wording.untestable(target)
    if missing:
        lines.append(f"  could not be tested: {missing}")
    if target["status"] == "inconsistent":
        lines += [f"  {step['last']} {step['before']} -> {step['first']} {step['after']}" for step in target["steps"]]
    if target["first_bad"] is not None:
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


def render_probe(report: dict[str, Any]) -> str:
    """What a probe saw: facts, metrics and every rep with both clocks. It judges nothing."""
    lines: list[str] = []
    for build in report["builds"]:
        for start in build["starts"]:
            facts = start["facts"]
            lines.append(
                f"{build['name']} on {start['server']}: {start['outcome']}"
                + (f" ({start['cause']})" if start["cause"] else "")
            )
            if start["message"]:
                lines.append(f"  {start['message']}")
            pool = _pool(facts)
            if pool:
                lines.append(f"  KV pool: {pool}")
            lines += [f"  {name}: {facts[name]}" for name in SHOWN_FACTS if name in facts]
            if start["headroom"]:
                lines.append(f"  {start['headroom']}")
            if start["boot_s"] is not None:
                lines.append(f"  ready after {start['boot_s']:.1f} s")
            for measurement in start["measurements"]:
                lines += _measurement(measurement)
        if build["pull_failure"]:
            lines.append(f"{build['name']}: {build['pull_failure']}")
    for variant in report["variants"]:
        lines += ["", *_variant(variant)]
    return "\n".join(lines)


def _variant(variant: dict[str, Any]) -> list[str]:
    """What a variant moved, metric by metric."""
    lines = [f"{variant['name']} is {variant['of']} with {', '.join(variant['changes'])}"]
    if variant["failures"]:
        lines.append(f"  it failed: {', '.join(variant['failures'])}")
    rows = [["metric", variant["of"], variant["name"], "change"]]
    for row in variant["metrics"]:
        percent, change = row["change_percent"], row["change"]
        moved = f"{percent:+.1f} %" if percent is not None else "" if change is None else f"{change:+,.6g}"
        values = ["-" if row[key] is None else wording.number(row[key]) for key in ("value", "with_variant")]
        rows.append([row["metric"], *values, moved])
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return lines + [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _pool(facts: dict[str, Any]) -> str:
    """The KV pool as far as it is known, e.g. `4,096 MiB, 2,621 blocks, 2,037,881 tokens`."""
    parts = []
    if "kv_pool_bytes" in facts:
        parts.append(f"{facts['kv_pool_bytes'] / 2**20:,.0f} MiB")
    parts += [f"{facts[f'kv_pool_{unit}']:,} {unit}" for unit in ("blocks", "tokens") if f"kv_pool_{unit}" in facts]
    return ", ".join(parts)


def _measurement(measurement: dict[str, Any]) -> list[str]:
    failure = measurement["failure"]
    lines = [f"  {measurement['scenario']}:" + (f" {failure['cause']}: {failure['message']}" if failure else "")]
    lines += [f"    {name} = {wording.number(value)}" for name, value in measurement["metrics"].items()]
    for rep in measurement["reps"]:
        kind = "warm-up" if rep["warmup"] else f"rep {rep['index'] + 1}"
        server = rep["server_prefill_s"]
        lines.append(
            f"    C={rep['concurrency']} {kind}: {rep['prompt_tokens']} tokens in, {rep['output_tokens']} out, client {rep['seconds']:.3f} s, "
            f"server prefill {'-' if server is None else f'{server:.3f} s'}, "
            f"counted {rep['usage_prompt_tokens']}, cache hits {rep['cache_hit_tokens']}"
            + (f", invalid: {rep['invalid']}" if rep["invalid"] else "")
        )
    return lines
