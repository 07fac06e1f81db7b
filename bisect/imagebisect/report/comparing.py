"""A comparison of two builds as a JSON value, and its sentences: what is claimed, and how sure that is."""

from __future__ import annotations

from typing import Any

from imagebisect import abba
from imagebisect.comparison import (
    CHANCE,
    CLAIMS,
    EQUIVALENCE_STARTS,
    NOT_MEASURED,
    SPREAD_STARTS,
    Compared,
    Word,
    died,
    possible_rate,
)
from imagebisect.outcome import Cause
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
        "order": abba.in_words(state),
        "starts": spec.starts,
        "starts_left": abba.starts_left(state) if state.finished is None else 0,
        "servers": servers,
        "metrics": [_metric(state, one) for one in found],
        "not_measured": list(absent),
        "commands": _commands(report),
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


def _commands(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What became of commands that did not pass: why, and in which starts of which build, with their output's files."""
    kinds = {name: scenario["kind"] for name, scenario in report["run"]["suite"]["scenarios"].items()}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for build in report["builds"]:
        for start in build["starts"]:
            for measurement in start["measurements"]:
                scenario = measurement["scenario"]
                if kinds.get(scenario) != "command" or start["outcome"] == "void":
                    continue
                why = _not_passed(measurement)
                if not why:
                    continue
                entry = found.setdefault(
                    (build["name"], why),
                    {"build": build["name"], "scenario": scenario, "why": why, "starts": [], "outputs": []},
                )
                entry["starts"].append(start["id"])
                if measurement["samples"].get("output"):
                    entry["outputs"].append(f"starts/{start['id']}/{measurement['samples']['output']}")
    return list(found.values())


def _not_passed(measurement: dict[str, Any]) -> str:
    """Why a command's measurement is no success: its exit code and the last line it printed; empty for one that is."""
    failure, samples = measurement["failure"], measurement["samples"]
    if failure is not None:
        return str(failure["message"]) if failure["cause"] == Cause.COMMAND_FAILED else ""
    code = samples.get("exit_code")
    if not code:
        return ""
    lines = [line.strip() for line in str(samples.get("tail") or "").splitlines() if line.strip()]
    said = f"; its last line: {lines[-1][:300]!r}" if lines else "; it printed nothing"
    return f"{measurement['scenario']}: exit code {code}{said}"


def _metric(state: RunState, one: Compared) -> dict[str, Any]:
    asked, metric = one.asked, one.asked.metric
    factor = 100.0 if metric.kind is not MetricKind.LEVEL else 1.0
    change = one.change * factor if one.change is not None else None
    is_ratio = metric.kind is MetricKind.RATIO
    of_level = 100 * one.change / abs(one.a) if one.change is not None and one.a else None
    return {
        "scenario": asked.scenario,
        "metric": metric.name,
        "server": state.plan.suite.scenario(asked.scenario).on,
        "unit": metric.unit,
        "kind": metric.kind.value,
        "target": asked.target,
        "worse": asked.worse.value if asked.worse is not None else None,
        "floor": asked.floor.value,
        "floor_relative": asked.floor.relative,
        "a_values": list(one.a_side.values),
        "b_values": list(one.b_side.values),
        "a_causes": list(one.a_side.causes),
        "b_causes": list(one.b_side.causes),
        "a": one.a,
        "b": one.b,
        "change_percent": change if is_ratio else of_level,
        "change": None if is_ratio else change,
        "interval": [bound * factor for bound in one.interval] if one.interval is not None else None,
        "p": one.p,
        "moved": one.moved,
        "by_chance": one.by_chance,
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
    parts = [entry["word"], *_seen(entry), *_limits(entry)]
    if comparison["same_build"] and entry["word"] in CLAIMS:
        parts.append("but both sides are the same build, so this is the host's noise")
    return f"{label(entry)}: " + ", ".join([*parts, counts(entry)])


def _seen(entry: dict[str, Any]) -> list[str]:
    if entry["kind"] == MetricKind.EVENT.value:
        if not entry["a_values"] and not entry["b_values"]:
            return []
        return [f"{entry['metric']} in {rate(entry, 0)} starts of A and {rate(entry, 1)} of B"]
    text = change(entry)
    if not text:
        return []
    return [f"{text}, 95 % interval {interval(entry)}" if entry["interval"] is not None else text]


def _limits(entry: dict[str, Any]) -> list[str]:
    """Why a claim is no stronger: what is missing, what is excluded and what is not, what could have been shown."""
    found = []
    for side, causes in zip(SIDES, (entry["a_causes"], entry["b_causes"]), strict=True):
        if causes:
            named = ", ".join(dict.fromkeys(cause.replace("_", " ") for cause in causes))
            found.append(f"{_starts(len(causes))} of {side} without a value ({named})")
    match entry["word"]:
        case Word.NOT_REPRODUCED | Word.NO_DIFFERENCE:
            found += _excluded(entry)
        case Word.CANNOT_TELL if not found and entry["a_values"] and entry["b_values"]:
            found += _undecided_event(entry) if entry["kind"] == MetricKind.EVENT.value else _undecided(entry)
    return found


def _excluded(entry: dict[str, Any]) -> list[str]:
    rate_left = f"up to {100 * possible_rate(len(entry['b_values'])):.0f} %"
    if entry["kind"] == MetricKind.EVENT.value:
        return [f"a build that {_fails(entry)} in {rate_left} of its starts would look the same"]
    if floor_is_zero(entry):
        excluded = "every start of both sides has the same value"
    else:
        what = {"lower": "a loss", "higher": "a rise", None: "a change either way"}[entry["worse"]]
        excluded = f"{what} of {floor(entry)} is excluded"
    return [excluded, f"an effect that comes in only some starts ({rate_left} of them) could have been missed"]


def _undecided(entry: dict[str, Any]) -> list[str]:
    """Why a number with values on both sides cannot be told."""
    if entry["change"] is None and entry["change_percent"] is None:
        sides = " and ".join(
            f"{_starts(count)} of {side}"
            for side, count in zip(SIDES, (_not_above_zero(entry, 0), _not_above_zero(entry, 1)), strict=True)
            if count
        )
        return [f"{sides} with a value of 0 or less, and those have no ratio (a `command` can say `compare: level`)"]
    fewest = min(len(entry["a_values"]), len(entry["b_values"]))
    if fewest < SPREAD_STARTS:
        return ["one start a side shows nothing of this host's spread between starts"]
    least = f"`{Word.NO_DIFFERENCE if entry['worse'] is None else Word.NOT_REPRODUCED}` needs {EQUIVALENCE_STARTS}"
    needs = [f"{least} starts a side"] if fewest < EQUIVALENCE_STARTS else []
    if entry["by_chance"]:
        return ["among so many metrics without a target some leave 0 by chance", *needs]
    if floor_is_zero(entry):
        return [f"a floor of {floor(entry)} is nothing where A is 0 (give it as an amount)", *needs]
    if entry["moved"] and needs:
        return [f"a change is there, but {_starts(fewest)} a side can only claim one of {_few(entry)}", *needs]
    if entry["moved"]:
        return [f"a change is there, but these starts leave open whether it reaches the floor of {floor(entry)}"]
    return [f"the smallest change these starts could show is {size(entry, entry['detectable'])}", *needs]


def _few(entry: dict[str, Any]) -> str:
    return f"twice the floor of {floor(entry)} that parts all their values"


def _undecided_event(entry: dict[str, Any]) -> list[str]:
    """Why survivals and deaths cannot be told apart."""
    if any(entry["died"]):
        return [f"so many differ by chance with p = {entry['p']:.2g} (Fisher's exact test; {CHANCE:g} is asked for)"]
    return [
        f"a build that {_fails(entry)} in up to {entry['detectable']:.0f} % of its starts would look the same",
        f"`{Word.NOT_REPRODUCED}` needs {EQUIVALENCE_STARTS} starts a side",
    ]


def _fails(entry: dict[str, Any]) -> str:
    return "dies" if entry["metric"] == "survived" else "fails"


def _not_above_zero(entry: dict[str, Any], side: int) -> int:
    return sum(value <= 0 for value in (entry["b_values"] if side else entry["a_values"]))


def floor_is_zero(entry: dict[str, Any]) -> bool:
    """Whether a floor is a share of a level of 0, which is no floor."""
    return bool(entry["kind"] == MetricKind.LEVEL.value and entry["floor_relative"] and entry["a"] == 0)


def noise(comparison: dict[str, Any]) -> str:
    """What an A/A says of the host: which metrics moved although nothing changed; empty for two builds."""
    judged = [entry for entry in comparison["metrics"] if entry["interval"] is not None]
    if not comparison["same_build"]:
        return ""
    if not judged:
        return "A/A: one start a side shows nothing of this host's noise"
    moved = [f"{label(entry)} ({change(entry)})" for entry in judged if entry["moved"]]
    text = f"A/A: {len(moved)} of {len(judged)} metrics moved"
    if not moved:
        return f"{text}: equal builds look equal here"
    return f"{text} (95 % interval without 0), which is this host's noise: {', '.join(moved)}"


def _starts(count: int) -> str:
    return f"{count} start{'' if count == 1 else 's'}"


def rate(entry: dict[str, Any], side: int) -> str:
    """`2 of 3`: the starts of a side (0 A, 1 B) in which an event's better outcome came."""
    values = entry["b_values"] if side else entry["a_values"]
    return f"{len(values) - entry['died'][side]} of {len(values)}"


def counts(entry: dict[str, Any]) -> str:
    """How many starts of each side have a value."""
    a, b = len(entry["a_values"]), len(entry["b_values"])
    return f"{_starts(a)} a side" if a == b else f"{a}+{b} starts"


def floor(entry: dict[str, Any]) -> str:
    """The smallest change that matters."""
    if entry["kind"] == MetricKind.EVENT.value:
        return "-"
    if entry["floor_relative"]:
        return f"{100 * entry['floor']:g} %" + (" of A" if entry["unit"] == "%" else "")
    return number(entry["floor"], _unit(entry))


def size(entry: dict[str, Any], value: float | None) -> str:
    """An amount of change without a sign: percent for ratios, else in the metric's unit."""
    if value is None:
        return "-"
    if entry["kind"] == MetricKind.LEVEL.value:
        return number(value, _unit(entry))
    return f"{value:.0f} %" if entry["kind"] == MetricKind.EVENT.value else f"{value:.1f} %"


def _unit(entry: dict[str, Any]) -> str:
    """The unit of a change: percentages differ by points, since `-20 %` of one would be read as a share of it."""
    return "points" if entry["unit"] == "%" else str(entry["unit"])


def change(entry: dict[str, Any]) -> str:
    """The change from A to B with its sign, a level's also as a share of A; empty where there is none."""
    share = f"{round(entry['change_percent'], 1) + 0.0:+.1f} %" if entry["change_percent"] is not None else ""
    if entry["change"] is None:
        return share + (" of A" if share and entry["unit"] == "%" else "")
    text = f"{_signed(entry, entry['change'])} {_unit(entry)}".strip()
    return f"{text} ({share})" if share and entry["change"] else text


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
