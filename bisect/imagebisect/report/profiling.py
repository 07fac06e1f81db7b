"""The report of a profile: a host's noise by metric, and what it means for a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imagebisect import hostprofile
from imagebisect.hostprofile import MetricNoise
from imagebisect.report import wording
from imagebisect.scenario import MetricKind
from imagebisect.state import RunState


def build(state: RunState) -> dict[str, Any]:
    """The report as a value."""
    from imagebisect.report import comparing

    whole = comparing.build(state)
    learnt = hostprofile.of_run(state)
    exit_code = 0 if learnt else 3
    if state.finished is None:
        exit_code = whole["exit_code"]
    return {
        "schema": 1,
        "exit_code": exit_code,
        "reason": whole["reason"] if state.finished is None else "profiled" if learnt else "not_measurable",
        "simulated": whole["simulated"],
        "run": whole["run"],
        "profile": {
            "build": state.plan.builds[0].name,
            "starts": sum(start.outcome == "measured" for start in state.starts),
            "failed": [
                {"start": start.intended.start_id, "cause": start.failure.cause, "message": start.failure.message}
                for start in state.starts
                if start.failure is not None
            ],
            "metrics": [_metric(one) for one in learnt.values()],
        },
        "builds": whole["builds"],
    }


def _metric(one: MetricNoise) -> dict[str, Any]:
    return {
        "metric": one.metric,
        "unit": one.unit,
        "kind": one.kind.value,
        "values": list(one.values),
        "within": one.seen_within,
        "between": one.seen_between,
        "slow_starts": one.slow_starts,
        "drift_a_start": one.drift,
        "drift_t": round(one.drift_t, 2),
        "smallest_effect_3_starts": one.smallest[0],
        "smallest_effect_6_starts": one.smallest[1],
        "assumed_from_now_on": vars(one.noise),
    }


def _amount(value: float | None, one: dict[str, Any]) -> str:
    if value is None:
        return "-"
    if one["kind"] == MetricKind.RATIO.value:
        return f"{abs(value) * 100:.2g} %"
    return wording.number(abs(value), one["unit"])


def render(report: dict[str, Any], *, where: str | None = None) -> str:
    """The report for a terminal or an issue: plain text."""
    found = report["profile"]
    lines = [wording.SIMULATED] if report["simulated"] else []
    lines.append(f"{found['build']}: {wording.count(found['starts'], 'start')} of one build, what this host's noise is")
    if not found["metrics"]:
        lines.append(f"nothing was measured in {hostprofile.FEWEST_STARTS} starts or more: nothing is kept")
    rows = [("metric", "in a start", "between starts", "slow starts", "smallest effect shown by 3+3, 6+6 starts")]
    for one in found["metrics"]:
        smallest = ", ".join(_amount(one[f"smallest_effect_{n}_starts"], one) for n in (3, 6))
        rows.append(
            (
                one["metric"],
                _amount(one["within"], one),
                _amount(one["between"], one),
                f"{one['slow_starts']} of {len(one['values'])}",
                smallest,
            )
        )
    if len(rows) > 1:
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines.append("")
        lines += ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.append("")
        lines.append("in a start, between starts: standard deviations of reps and of starts, slow starts left out")
    for one in found["metrics"]:
        if one["slow_starts"]:
            values = ", ".join(wording.number(v) for v in one["values"])
            lines.append(f"{one['metric']}: some starts are slow throughout ({values} {one['unit']})".rstrip())
        if abs(one["drift_t"]) > hostprofile.SHAKY_T:
            drift = _amount(one["drift_a_start"], one)
            lines.append(f"{one['metric']} drifts by {drift} a start: is something warming up, or a clock not locked?")
    lines += [f"start {one['start']} failed: {one['cause']}: {one['message']}" for one in found["failed"]]
    if found["metrics"] and where is not None:
        lines.append(
            f"searches on this host with the same servers and scenarios assume this now ({Path(where).parent / 'hosts'})"
        )
    return "\n".join(lines)
