"""What a probe's report says, for whichever renderer: how each start ended, what is missing and why, what a variant moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from imagebisect.errors import ExitCode
from imagebisect.report.wording import number

if TYPE_CHECKING:
    from imagebisect.state import RunState

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
    "kv_pool_block_tokens",
    "weights_mib",
    "compile_s",
    "graph_mib",
    "init_engine_s",
    "skipped_memory_profiling",
)
"""Facts that a probe shows, in this order; the JSON has all of them."""

ONE_START = "one start each: see `bisect compare` for what the noise is"
"""What keeps a table of variants from being taken for a controlled comparison."""


def starts(report: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every start with its build."""
    for build in report["builds"]:
        for start in build["starts"]:
            yield build, start


def _last(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The start of each server that counts: the last one, since a transient failure is tried again."""
    return list({start["server"]: start for _, start in starts(report)}.values())


def unmeasured(report: dict[str, Any]) -> list[str]:
    """`server: scenario` of everything that was set out to be measured and was not; a variant's among them.

    Death in an OOM probe is its result.
    """
    kinds = {name: scenario["kind"] for name, scenario in report["run"]["suite"]["scenarios"].items()}
    missing = []
    for start in _last(report):
        found = {measurement["scenario"]: measurement for measurement in start["measurements"]}
        for name in start["scenarios"]:
            one = found.get(name)
            died = one is not None and kinds[name] == "oom-probe" and "survived" in one["metrics"]
            if one is None or not one["metrics"] or (one["failure"] is not None and not died):
                missing.append(f"{start['server']}: {name}")
    return missing


def unmeasured_plain(report: dict[str, Any]) -> list[str]:
    """The same without the variants: what decides whether a probe measured its build."""
    variants = {variant["name"] for variant in report["variants"]}
    return [entry for entry in unmeasured(report) if entry.partition(": ")[0] not in variants]


def answer(state: RunState, report: dict[str, Any]) -> tuple[ExitCode, str]:
    """What the process should say of a probe: 0 every plain server was measured, 3 not; or why it stopped."""
    if state.finished is None:
        if state.stopped is not None:
            return ExitCode(state.stopped.exit_code), state.stopped.reason
        return ExitCode.NOT_MEASURABLE, "unfinished"
    if any(True for _ in starts(report)) and not unmeasured_plain(report):
        return ExitCode.NOTHING_REGRESSED, "measured"
    return ExitCode.NOT_MEASURABLE, "not_measurable"


# ---------------------------------------------------------------------------- a start


def outcome(start: dict[str, Any]) -> str:
    """How a start ended, in words: what was measured, but for which scenarios, and why."""
    lost, died, whole = [], [], []
    for measurement in start["measurements"]:
        failure = measurement["failure"]
        if failure is None:
            whole.append(measurement["scenario"])
        elif "survived" in measurement["metrics"]:
            died.append(f"{measurement['scenario']} did not survive ({failure['cause']})")
        else:
            lost.append(f"{measurement['scenario']} ({failure['cause']})")
    state = start["outcome"]
    if state not in ("measured", "failed") or not (state == "measured" or in_scenario(start)):
        cause = f" ({start['cause']})" if start["cause"] else ""
        return f"{state}{cause}" + (f" after {', '.join(whole)}" if whole else "")
    done = {measurement["scenario"] for measurement in start["measurements"]}
    unreached = [name for name in start["scenarios"] if name not in done]
    lost += [f"{name} (not reached)" for name in unreached]
    if lost and not whole and not died:
        return f"failed in {', '.join(lost)}"
    return "; ".join(["measured" + (f", but for {', '.join(lost)}" if lost else ""), *died])


def in_scenario(start: dict[str, Any]) -> bool:
    """Whether a start's failure is one of its scenarios', which says it itself."""
    return any(m["failure"] is not None and m["failure"]["message"] == start["message"] for m in start["measurements"])


def facts(start: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and value of the facts that a reader asks for, the KV pool first."""
    known = start["facts"]
    pool = _pool(known)
    shown = [(name, str(known[name])) for name in SHOWN_FACTS if name in known]
    return [("KV pool", pool), *shown] if pool else shown


def _pool(known: dict[str, Any]) -> str:
    """The KV pool as far as it is known, e.g. `4,096 MiB, 2,621 blocks, 2,037,881 tokens`."""
    parts = []
    if "kv_pool_bytes" in known:
        parts.append(f"{known['kv_pool_bytes'] / 2**20:,.0f} MiB")
    parts += [f"{known[f'kv_pool_{unit}']:,} {unit}" for unit in ("blocks", "tokens") if f"kv_pool_{unit}" in known]
    return ", ".join(parts)


# ----------------------------------------------------------------------- a measurement


def failed(measurement: dict[str, Any]) -> str:
    """Cause, message and what masked it; empty where a scenario did not fail."""
    failure = measurement["failure"]
    if failure is None:
        return ""
    masked = f" (masked by {failure['masked_by']})" if failure["masked_by"] else ""
    return f"{failure['cause']}{masked}: {failure['message']}"


def values(report: dict[str, Any], measurement: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and value with its unit of every metric that was measured."""
    units = report["run"]["suite"]["scenarios"].get(measurement["scenario"], {}).get("units", {})
    return [(name, number(value, units.get(name, ""))) for name, value in measurement["metrics"].items()]


def notes(start: dict[str, Any], measurement: dict[str, Any]) -> list[str]:
    """What a scenario could not say and why, and what is left of a command that did not pass."""
    samples = measurement["samples"]
    found = []
    if samples.get("missing"):
        found.append(f"missing: {samples['missing']}")
    if samples.get("output") and (measurement["failure"] is not None or measurement["metrics"].get("passed") == 0.0):
        lines = [line.strip() for line in str(samples.get("tail", "")).splitlines() if line.strip()]
        said = "" if measurement["failure"] is not None else f"exit code {samples.get('exit_code')}; "
        if lines and not said:
            lines = []  # the failure quotes it
        said += f"last line: {lines[-1][:300]!r}; " if lines else ""
        found.append(f"{said}its output: starts/{start['id']}/{samples['output']}")
    return found


def rep_name(rep: dict[str, Any]) -> str:
    """`warm-up` or `rep 2`."""
    return "warm-up" if rep["warmup"] else f"rep {rep['index'] + 1}"


def prefill_s(rep: dict[str, Any]) -> str:
    """The server's prefill seconds; of several requests at once they are a sum, which may exceed the makespan."""
    seconds = rep["server_prefill_s"]
    if seconds is None:
        return "-"
    return f"{seconds:.3f} s" + (f" over {rep['concurrency']} requests" if rep["concurrency"] > 1 else "")


# --------------------------------------------------------------------------- variants


def variant_head(variant: dict[str, Any]) -> str:
    """What a variant is."""
    return f"{variant['name']} is {variant['of']} with {', '.join(variant['changes'])}"


def variant_failures(variant: dict[str, Any]) -> list[str]:
    """Why a variant, or a scenario of it, could not be measured; a line each."""
    return [" ".join(message.split())[:400] for message in variant["messages"]]


def variant_rows(variant: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Metric, the server's value, the variant's and the change; without what the variant has no value of."""
    rows = []
    for row in variant["metrics"]:
        if row["with_variant"] is None:
            continue
        percent, change = row["change_percent"], row["change"]
        moved = f"{percent:+.1f} %" if percent is not None else "" if change is None else f"{change:+,.6g}"
        unit = row["unit"]
        rows.append((row["metric"], number(row["value"], unit), number(row["with_variant"], unit), moved))
    return rows


def variant_lacks(variant: dict[str, Any]) -> list[str]:
    """Metrics of the server that the variant has no value of, where no failure explains it."""
    if variant["failures"]:
        return []
    return [row["metric"] for row in variant["metrics"] if row["with_variant"] is None]
