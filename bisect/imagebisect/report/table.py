"""Every rep as one row, for a spreadsheet or a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "build",
    "digest",
    "start",
    "server",
    "purpose",
    "outcome",
    "cause",
    "scenario",
    "metric",
    "concurrency",
    "rep",
    "warmup",
    "prompt_tokens",
    "client_s",
    "server_prefill_s",
    "server_queue_s",
    "server_ttft_s",
    "server_e2e_s",
    "counted_prompt_tokens",
    "cache_hit_tokens",
    "marks",
    "min_free_mib",
    "min_sm_clock_mhz",
    "max_temperature_c",
    "max_power_w",
    "value",
    "invalid",
)


def frame(report: dict[str, Any]) -> pd.DataFrame:
    """One row a rep (its value on it), one a metric of a start, one a start that measured nothing."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for build in report["builds"]:
        for start in build["starts"]:
            head = {
                "build": build["name"],
                "digest": build["digest"],
                "start": start["id"],
                "server": start["server"],
                "purpose": start["purpose"],
                "outcome": start["outcome"],
                "cause": start["cause"],
            }
            if not start["measurements"]:
                rows.append(head)
            for measurement in start["measurements"]:
                scenario = {**head, "scenario": measurement["scenario"]}
                rows += [{**scenario, "metric": n, "value": v} for n, v in measurement["metrics"].items()]
                rows += [_rep(scenario, rep) for rep in measurement["reps"]]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rep(scenario: dict[str, Any], rep: dict[str, Any]) -> dict[str, Any]:
    return {
        **scenario,
        "concurrency": rep["concurrency"],
        "rep": rep["index"],
        "warmup": rep["warmup"],
        "prompt_tokens": rep["prompt_tokens"],
        "client_s": rep["seconds"],
        "server_prefill_s": rep["server_prefill_s"],
        "server_queue_s": rep["server_queue_s"],
        "server_ttft_s": rep["server_ttft_s"],
        "server_e2e_s": rep["server_e2e_s"],
        "counted_prompt_tokens": _sum(rep["usage_prompt_tokens"]),
        "cache_hit_tokens": rep["cache_hit_tokens"],
        "marks": "; ".join(rep["marks"]) or None,
        "min_free_mib": rep["min_free_mib"],
        "min_sm_clock_mhz": rep["min_sm_clock_mhz"],
        "max_temperature_c": rep["max_temperature_c"],
        "max_power_w": rep["max_power_w"],
        "value": rep["value"],
        "invalid": rep["invalid"],
    }


def _sum(counts: list[int | None]) -> int | None:
    """Tokens that the server counted in all requests of a round; None where it did not count one of them."""
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


def render(report: dict[str, Any]) -> str:
    """The rows as CSV."""
    text: str = frame(report).to_csv(index=False, lineterminator="\n")
    return text
