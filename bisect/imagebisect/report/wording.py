"""The sentences of a report, shared by all renderers. They claim what the status says and nothing more."""

from __future__ import annotations

from typing import Any

SIMULATED = "Simulated builds: this shows how the tool works, it is no measurement of any vLLM."

HEADLINES = {
    "confirmed": "first bad build located",
    "narrowed": "regressed, narrowed to suspects",
    "inconsistent": "the order contradicts itself",
    "not_reproduced": "does not reproduce here",
    "improved": "the bad end is better",
    "inconclusive": "cannot be said here",
    "untestable_anchor": "an anchor cannot be tested",
    None: "open",
}

FIX_HEADLINES = {"confirmed": "first good build located", "narrowed": "it got better, narrowed to suspects"}
"""What is said otherwise where a fix was looked for."""

REASONS = {
    "untestable": "builds in between cannot be tested",
    "budget": "the budget is spent",
    "off_line": "the two builds are not on one line of history",
    "noise": "starts of one build differ too much to say more",
    "marked": "a verdict was set by hand",
    "watched": "watched, not searched",
    "too_few_starts": "too few starts to tell the ends apart, or to exclude a difference",
}

LARGE_PERCENT = 20.0
"""From this change on a factor reads better than a percentage."""


def number(value: float | None, unit: str = "") -> str:
    """A measured number at the precision it deserves, with its unit."""
    if value is None:
        return "-"
    size = abs(value)
    text = f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def hardware(host: dict[str, Any]) -> str:
    """The host in one line: cards first, as they decide."""
    cards: dict[str, int] = {}
    for card in host.get("gpus") or ():
        text = f"{card['name']} ({card['total_mib']:,.0f} MiB)"
        cards[text] = cards.get(text, 0) + 1
    parts = [f"{count} x {text}" for text, count in cards.items()] or ["no GPU"]
    if host.get("cpu"):
        parts.append(f"{host['cpu']}, {host.get('cpus')} CPUs")
    return "; ".join(parts)


def started(report: dict[str, Any]) -> str:
    """How builds were started, in the words of their kind."""
    first: dict[str, Any] = next(iter(report["builds"]), {})
    if "image" in first:
        return "Each start was a fresh container of an image by digest"
    if "venv" in first:
        return "Each start was a fresh process group of a Python environment's own vllm"
    return "Each start was a fresh process of the stand-in server"


def count(number: int, noun: str) -> str:
    """`1 start`, `5 starts`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def effort(run: dict[str, Any]) -> str:
    """What the answer cost."""
    return (
        f"{count(run['starts'], 'start')}, {count(run['reps'], 'timed rep')} ({run['invalid_reps']} invalid), "
        f"{count(run['builds_started'], 'build')}, "
        f"{size(run['pulled_bytes'])} pulled, {duration(run['start_seconds'])} in starts"
    )


def search(run: dict[str, Any]) -> list[str]:
    """How the search was told to go, where that is not the usual way: fix, sentinels, budget."""
    found = run["search"]
    if found is None:
        return []
    lines = []
    if found["find"] == "fix":
        lines.append(f"the first good build was looked for, after {run['bad']} (bad) and up to {run['good']} (good)")
    if found["scan"]:
        names = ", ".join(one["name"] + ("" if one["started"] else " (not started)") for one in found["scan"])
        lines.append(f"looked at whatever else was known: {names}")
    if found["budget"]["words"]:
        used, given = found["budget"]["used"], found["budget"]["given"]
        parts = [count(used["starts"], "start")]
        parts += [f"{used['hours']:.2g} h"] if given["hours"] is not None else []
        parts += [f"{used['gpu_hours']:.2g} GPU hours"] if given["gpu_hours"] is not None else []
        spent = " (spent)" if found["budget"]["spent"] else ""
        lines.append(f"budget {found['budget']['words']}: used {', '.join(parts)}{spent}")
    return lines


def headline(target: dict[str, Any]) -> str:
    """A target's status in words, with its reason."""
    text = HEADLINES.get(target["status"], str(target["status"]))
    if target["find"] == "fix":
        text = FIX_HEADLINES.get(target["status"], text)
    if target["status"] is None:
        return "not decided yet"
    reason = target["reason"]
    return f"{text} ({REASONS.get(reason, reason)})" if reason else text


def sides(target: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The two builds of a target's step with what each is called, the older one first; none where there is no step."""
    names = ("last bad", "first good") if target["find"] == "fix" else ("last good", "first bad")
    builds = [target[name.replace(" ", "_")] for name in names]
    return list(zip(names, builds, strict=True)) if all(builds) else []


def by_role(target: dict[str, Any], end: str) -> dict[str, Any]:
    """The good or the bad build of a target's step, or that anchor where there is no step."""
    found: dict[str, Any] = next((build for name, build in sides(target) if name.endswith(end)), target["anchors"][end])
    return found


def sure(target: dict[str, Any]) -> str:
    """How sure a located change is: its interval, the chance of the pair, fresh starts; empty where none was located."""
    parts = []
    if target["change_low_percent"] is not None:
        parts.append(f"95 % interval {target['change_low_percent']:+.1f} to {target['change_high_percent']:+.1f} %")
    if target["confidence"] is not None:
        parts.append(f"confidence {target['confidence']:.4f}")
    fresh = target["fresh_starts"]
    if fresh and (fresh["good"] or fresh["bad"]):
        parts.append(f"{fresh['good']}+{fresh['bad']} fresh starts")
    return ", ".join(parts)


def step(found: dict[str, Any]) -> str:
    """One change of verdict between two builds."""
    percent = f" ({found['change_percent']:+.1f} %)" if found["change_percent"] is not None else ""
    return f"{found['last']} {found['before']} -> {found['first']} {found['after']}{percent}"


def change(target: dict[str, Any]) -> str:
    """What was measured on the two sides of a target: values with spread, or rates for events."""
    starts = target["values"]
    good, bad = by_role(target, "good")["name"], by_role(target, "bad")["name"]
    counts = f"{len(starts.get(good, []))}+{len(starts.get(bad, []))} starts"
    if target["kind"] == "event":
        sides = []
        done = "passed" if target["metric"].endswith(".passed") else "survived"
        for name, rate in ((good, target["good_rate"]), (bad, target["bad_rate"])):
            values = starts.get(name, [])
            sides.append(
                f"{name} {done} {sum(v == 1.0 for v in values)} of {len(values)}" if rate is not None else f"{name} -"
            )
        return ", ".join(sides)
    unit = target["unit"]
    low, high = target["good_value"], target["bad_value"]
    text = f"{number(low)} -> {number(high, unit)}"
    if target["find"] == "fix":
        text = f"good {number(low)}, bad {number(high, unit)}"
    if target["change_percent"] is not None:
        difference = f"{high - low:+,.0f} {unit}, " if target["kind"] == "level" else ""
        spread = f"spread between starts {target['spread_percent']:.1f} %"
        text += f" ({difference}{target['change_percent']:+.1f} %{_factor(target)}, {spread}, {counts})"
    return text


def _factor(target: dict[str, Any]) -> str:
    """`, 1.87x slower`: how people say a large change of a rate; empty for small ones."""
    low, high = target["good_value"], target["bad_value"]
    if target["kind"] != "ratio" or min(low, high) <= 0 or abs(target["change_percent"]) < LARGE_PERCENT:
        return ""
    worse = (high < low) == (target["worse"] == "lower")
    return f", {max(low, high) / min(low, high):.2f}x {'slower' if worse else 'faster'}"


def untestable(target: dict[str, Any]) -> str:
    """What could not be tested and why; empty when all could."""
    return ", ".join(f"{entry['name']} ({', '.join(entry['causes']) or 'by hand'})" for entry in target["untestable"])


def coverage(target: dict[str, Any]) -> str:
    """How much of the range was looked at; empty where the target's sentence says it."""
    if "in a range probed at" in target["sentence"]:
        return ""
    return (
        f"in a range probed at {target['probed']} of {target['in_range']} builds, "
        f"longest unprobed stretch {target['longest_unprobed']}"
    )


def headroom(report: dict[str, Any]) -> list[str]:
    """What a full batch needs for a moment against what was free: of every build that ran out, and of both ends."""
    ends = {report["run"]["good"], report["run"]["bad"]}
    found: dict[str, None] = {}
    for build in report["builds"]:
        for start in build["starts"]:
            ran_out = str(start["cause"] or "").startswith("oom_")
            if start["headroom"] and (ran_out or build["name"] in ends):
                found[f"{build['name']} on {start['server']}: {start['headroom']}"] = None
    return list(found)


def leftovers(report: dict[str, Any]) -> list[str]:
    """Cards that did not come back to where they were after a start, with what is on them."""
    return [
        f"after start {start['id']} of {build['name']}: {said}"
        for build in report["builds"]
        for start in build["starts"]
        for said in start["facts"].get("memory_not_back", [])
    ]
