"""A comparison of two builds as a JSON value, and its sentences: what is claimed, and how sure that is."""

from __future__ import annotations

from typing import Any

from imagebisect import abba
from imagebisect.comparison import EQUIVALENCE_STARTS, NOT_MEASURED, Compared, Word, died, possible_rate
from imagebisect.report.model import build_report
from imagebisect.report.wording import number
from imagebisect.scenario import MetricKind
from imagebisect.state import RunState

SIDES = ("A", "B")


def build(state: RunState) -> dict[str, Any]:
    """The report of a comparison as it stands: the ordinary one without targets, and a `comparison` section."""
    report = build_report(state)
    code, reason = abba.exit_code(state)
    report["exit_code"], report["reason"] = int(code), reason
    report["targets"] = []
    for entry in report["builds"]:
        entry["verdicts"] = {}
    report["comparison"] = _comparison(state, report)
    return report


def _comparison(state: RunState, report: dict[str, Any]) -> dict[str, Any]:
    spec = abba.spec_of(state)
    a, b = report["builds"][spec.a], report["builds"][spec.b]
    servers = {server.name: _server(state, report, server.name) for server in state.plan.suite.servers}
    found, absent = abba.compared(state)
    comparison = {
        "a": a["name"],
        "b": b["name"],
        "same_build": _is_same(a, b),
        "order": " ".join(abba.order(spec.starts)),
        "starts": spec.starts,
        "starts_left": abba.starts_left(state) if state.finished is None else 0,
        "servers": servers,
        "metrics": [_metric(state, one) for one in found],
        "not_measured": list(absent),
    }
    for entry in comparison["metrics"]:
        entry["sentence"] = sentence(entry, comparison)
    return comparison


def _is_same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether both sides are one build, deviations included."""
    keys = ("config_digest", "rewrites", "overrides")
    return a["config_digest"] is not None and all(a[key] == b[key] for key in keys)


def _server(state: RunState, report: dict[str, Any], name: str) -> dict[str, Any]:
    """What proves one server's starts equal, what deviates by its build, and which starts count, in order."""
    spec = abba.spec_of(state)
    forms = {start.intended.rendered.canonical_sha256 for start in state.starts if start.intended.server == name}
    vain = abba.hopeless(state, name)
    return {
        "canonical_sha256": forms.pop() if len(forms) == 1 else None,
        "deviations": _deviations(report, name),
        "starts": [start.intended.start_id for start in abba.counted(state, name)],
        "order": " ".join("A" if s.intended.build == spec.a else "B" for s in abba.counted(state, name)),
        "ended_early": vain.cause if vain is not None else None,
    }


def _deviations(report: dict[str, Any], server: str) -> list[str]:
    """How the builds' rewrites and overrides change this server, in words."""
    given = {arg.partition("=")[0] for arg in report["run"]["suite"]["servers"][server]["args"]}
    found = []
    for build in report["builds"]:
        for rewrite in build["rewrites"]:
            if rewrite["from"].partition("=")[0] in given:
                became = rewrite["to"] if rewrite["to"] is not None else "left out"
                found.append(f"{build['name']}: {rewrite['from']} -> {became} ({rewrite['why']})")
        overrides = build["overrides"] or {"env": {}, "args": []}
        found += [f"{build['name']}: env {name}={value}" for name, value in overrides["env"].items()]
        if overrides["args"]:
            found.append(f"{build['name']}: args {' '.join(overrides['args'])}")
    return found


def _metric(state: RunState, one: Compared) -> dict[str, Any]:
    asked, metric = one.asked, one.asked.metric
    factor = 100.0 if metric.kind is not MetricKind.LEVEL else 1.0
    change = one.change * factor if one.change is not None else None
    is_ratio = metric.kind is MetricKind.RATIO
    return {
        "scenario": asked.scenario,
        "metric": metric.name,
        "server": state.plan.suite.scenario(asked.scenario).on,
        "unit": metric.unit,
        "kind": metric.kind.value,
        "target": asked.target,
        "worse": asked.worse.value,
        "floor": asked.floor.value,
        "floor_relative": asked.floor.relative,
        "a_values": list(one.a_side.values),
        "b_values": list(one.b_side.values),
        "a_causes": list(one.a_side.causes),
        "b_causes": list(one.b_side.causes),
        "a": one.a,
        "b": one.b,
        "change_percent": change if is_ratio else None,
        "change": None if is_ratio else change,
        "interval": [bound * factor for bound in one.interval] if one.interval is not None else None,
        "word": one.word.value,
        "sentence": "",
        "detectable": one.detectable * factor if one.detectable is not None else None,
        "died": [died(asked, one.a_side), died(asked, one.b_side)] if metric.kind is MetricKind.EVENT else None,
    }


# -------------------------------------------------------------------------- sentences


def label(entry: dict[str, Any]) -> str:
    """The target's name, or the metric's path where no target names it."""
    return str(entry["target"] or f"{entry['scenario']}.{entry['metric']}")


def sentence(entry: dict[str, Any], comparison: dict[str, Any]) -> str:
    """The claim on one metric: the word, the change with its interval, and what it rests on."""
    order = comparison["servers"][entry["server"]]["order"]
    parts = [entry["word"], *_seen(entry), *_limits(entry)]
    if comparison["same_build"]:
        parts.append("both sides are the same build")
    parts.append(counts(entry) + (f", {order}" if order else ""))
    return f"{label(entry)}: " + ", ".join(parts)


def _seen(entry: dict[str, Any]) -> list[str]:
    if entry["kind"] == MetricKind.EVENT.value:
        if not entry["a_values"] and not entry["b_values"]:
            return []
        return [f"{entry['metric']} in {rate(entry, 0)} starts of A and {rate(entry, 1)} of B"]
    text = change(entry)
    return [f"{text} (95 % interval {interval(entry)})"] if text else []


def _limits(entry: dict[str, Any]) -> list[str]:
    """Why a claim is no stronger: what is excluded, what could have been shown, what is missing."""
    found = []
    for side, causes in zip(SIDES, (entry["a_causes"], entry["b_causes"]), strict=True):
        if causes:
            named = ", ".join(dict.fromkeys(cause.replace("_", " ") for cause in causes))
            found.append(f"{len(causes)} start{'' if len(causes) == 1 else 's'} of {side} without a value ({named})")
    fewest = min(len(entry["a_values"]), len(entry["b_values"]))
    is_event = entry["kind"] == MetricKind.EVENT.value
    if entry["word"] == Word.NOT_REPRODUCED.value:
        if is_event:
            found.append(
                f"a rate of up to {100 * possible_rate(len(entry['b_values'])):.0f} % is still possible at 95 %"
            )
        else:
            found.append(f"{'a loss' if entry['worse'] == 'lower' else 'a rise'} of {floor(entry)} is excluded")
    elif entry["word"] == Word.CANNOT_TELL.value and entry["detectable"] is not None:
        missing = bool(found)
        if is_event:
            found.append(f"a rate below {entry['detectable']:.0f} % could go unseen in so many starts")
        elif not missing and entry["interval"][0] * entry["interval"][1] > 0:
            found.append(
                f"a change is there, but these starts leave open whether it reaches the floor of {floor(entry)}"
            )
        else:
            found.append(f"the smallest change these starts could show is {size(entry, entry['detectable'])}")
        if fewest < EQUIVALENCE_STARTS and not missing:
            found.append(f"`not reproduced` needs {EQUIVALENCE_STARTS} starts a side")
    elif entry["word"] == Word.CANNOT_TELL.value and fewest and not is_event:
        found.append("a value of 0 or less has no ratio")
    return found


def rate(entry: dict[str, Any], side: int) -> str:
    """`2 of 3`: the starts of a side (0 A, 1 B) in which an event's better outcome came."""
    values = entry["b_values"] if side else entry["a_values"]
    return f"{len(values) - entry['died'][side]} of {len(values)}"


def counts(entry: dict[str, Any]) -> str:
    """How many starts of each side have a value."""
    a, b = len(entry["a_values"]), len(entry["b_values"])
    return f"{a} start{'' if a == 1 else 's'} a side" if a == b else f"{a}+{b} starts"


def floor(entry: dict[str, Any]) -> str:
    """The smallest change that matters."""
    if entry["kind"] == MetricKind.EVENT.value:
        return "-"
    return f"{100 * entry['floor']:g} %" if entry["floor_relative"] else number(entry["floor"], entry["unit"])


def size(entry: dict[str, Any], value: float | None) -> str:
    """An amount of change without a sign: percent for ratios, else in the metric's unit."""
    if value is None:
        return "-"
    if entry["kind"] == MetricKind.LEVEL.value:
        return number(value, entry["unit"])
    return f"{value:.0f} %" if entry["kind"] == MetricKind.EVENT.value else f"{value:.1f} %"


def change(entry: dict[str, Any]) -> str:
    """The change from A to B with its sign; empty where there is none."""
    if entry["change_percent"] is not None:
        return f"{_signed(entry, entry['change_percent'])} %"
    return f"{_signed(entry, entry['change'])} {entry['unit']}".strip() if entry["change"] is not None else ""


def interval(entry: dict[str, Any]) -> str:
    """The 95 % interval in the unit of the change, `-47.5 .. -45.9`."""
    if entry["interval"] is None:
        return ""
    low, high = entry["interval"]
    return f"{_signed(entry, low)} .. {_signed(entry, high)}"


def _signed(entry: dict[str, Any], value: float) -> str:
    if entry["kind"] == MetricKind.RATIO.value:
        return f"{round(value, 1) + 0.0:+.1f}"
    return f"+{number(value)}" if value >= 0 else number(value)


def values(entry: dict[str, Any], side: int) -> str:
    """The value of each start of a side, and the causes of those without one."""
    numbers = entry["b_values"] if side else entry["a_values"]
    causes = entry["b_causes"] if side else entry["a_causes"]
    shown = [number(value) for value in numbers] + [
        "-" if cause == NOT_MEASURED else cause.replace("_", " ") for cause in causes
    ]
    return "  ".join(shown) or "-"


def middle(entry: dict[str, Any], side: int) -> str:
    """A side's level: `1,415`, or `3 of 3` of an event."""
    if entry["kind"] == MetricKind.EVENT.value:
        return rate(entry, side) if (entry["b_values"] if side else entry["a_values"]) else "-"
    return number(entry["b"] if side else entry["a"])
