"""Why each start was made and each end was said, as a person reads it on a terminal."""

from __future__ import annotations

import textwrap
from typing import Any

from imagebisect.report import wording

WIDTH = 100
"""Columns of a line."""

TOGETHER = "\u00a0"
"""A space at which no line is broken."""

SHORT = 90
"""Characters of a failure's message, but for `verbose`."""

PER_MINUTE_BELOW_S = 60.0
"""Starts shorter than this have their worth told per minute, longer ones per ten minutes."""


def render(told: dict[str, Any], *, verbose: bool = False) -> str:
    """The whole story of a search; `verbose` adds what each choice was made from."""
    lines = [f"{told['run']}: from {told['good']} (good) to {told['bad']} (bad)" + _options(told), ""]
    if told["find"] == "fix":
        lines[1:1] = ["pairs are written good|bad, the newer build first"]
    notes = list(told["notes"])
    for number in range(len(told["starts"]) + 1):
        if number:
            lines += _start(told["starts"][number - 1], verbose=verbose)
            lines += [f"    => {_settled(end)}" for end in told["ends"] if end["settled_after"] == number]
        while notes and notes[0]["after"] <= number:
            lines += _wrapped(f"-- {notes.pop(0)['text']}", 4)
    lines += ["", *_ends(told)]
    return "\n".join([*lines, *_next(told, verbose=verbose)]).rstrip()


def render_build(told: dict[str, Any], build: str) -> str:
    """One build's whole story: its starts, what each says, its verdicts and their rules."""
    stories = [story for story in told["builds"] if story["build"] == build]
    starts = [start for start in told["starts"] if start["build"] == build]
    lines: list[str] = []
    for story in stories:
        lines += _wrapped(
            f"{build} for {story['target']}: {story['verdict'].upper()}"
            f"{' (by hand)' if story['marked'] else ''} - {story['rule']}",
            0,
        )
        for one in story["starts"]:
            said = _value(one["value"], story["unit"]) if one["value"] is not None else one["cause"] or "no value"
            weight = f"  {one['weight_words']}" if one["weight_words"] else ""
            fresh = f"  fresh, for {one['confirms'][0]}|{one['confirms'][1]}" if one["confirms"] else ""
            lines.append(f"  {'start ' + str(one['number']) if one['number'] else 'pull':<9} {said}{weight}{fresh}")
        lines.append("")
    if not stories and not starts:
        return f"{build} was never started: nothing is known of it but what its neighbours say"
    for start in starts:
        lines += _start(start, verbose=True)
    lines += [
        f"    -- {note['text']}" for note in told["notes"] if note["kind"] == "marked" and f" {build} " in note["text"]
    ]
    return "\n".join(lines).rstrip()


# -------------------------------------------------------------------------- pieces


def _wrapped(text: str, indent: int, hang: int | None = None) -> list[str]:
    lines = textwrap.wrap(
        text,
        width=WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2 if hang is None else hang),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(TOGETHER, " ") for line in lines]


def _options(told: dict[str, Any]) -> str:
    parts = ["looking for the fix"] if told["find"] == "fix" else []
    if told["scan"]:
        parts.append(f"to be looked at in any case: {', '.join(told['scan'])}")
    if told["budget_given"]:
        parts.append(f"budget {told['budget_given']}")
    return "".join(f", {part}" for part in parts)


def _value(value: float, unit: str) -> str:
    return (
        wording.number(value, unit)
        if unit
        else ("survived" if value == 1.0 else "died" if value == 0 else f"{value:g}")
    )


def _percent(chance: float) -> str:
    if chance >= 0.995:
        return f"{chance * 100:.2f} %"
    return f"{chance * 100:.0f} %" if chance >= 0.01 else "under 1 %"


def _start(start: dict[str, Any], *, verbose: bool) -> list[str]:
    again = f", try {start['attempt'] + 1} after a transient failure" if start["attempt"] else ""
    lines = _wrapped(
        f"#{start['number']:<3}{start['build']} on {start['server']}: {start['purpose'].replace('_', ' ')}{again} - "
        f"{start['why']}",
        0,
        4,
    )
    ended = _ended(start, verbose=verbose)
    if ended:
        lines += _wrapped(ended, 4)
    if verbose and start["choice"]:
        lines += _choice(start["choice"])
    watched = [] if verbose else [served for served in start["targets"] if served["purpose"] == "watch"]
    for served in start["targets"]:
        if served in watched:
            continue
        lines += _wrapped(f"{served['target']}: {_served(start, served)}", 4)
        if verbose:
            lines += _details(served)
    seen = [f"{one['target']} {_value(one['value'], one['unit'])}" for one in watched if one["value"] is not None]
    if seen:
        lines += _wrapped(f"watched: {', '.join(part.replace(' ', TOGETHER) for part in seen)}", 4)
    return lines


def _ended(start: dict[str, Any], *, verbose: bool) -> str:
    """How a start ended where it was not simply measured."""
    message = str(start["message"] or "")
    message = message if verbose else textwrap.shorten(message, SHORT, placeholder=" ...")
    failure = f" ({start['cause']}: {message})" if start["cause"] else ""
    match start["outcome"]:
        case "void":
            return f"VOID: the host is blamed for it, it says nothing{failure}"
        case "interrupted":
            return "cut short: what it had measured stands, the rest says nothing"
        case "running":
            return "running, or its process was killed"
        case "failed":
            return f"failed{failure}"
        case _:
            return ""


def _served(start: dict[str, Any], served: dict[str, Any]) -> str:
    """What a start did for one target, in a line."""
    if served["after"] is None:
        return "nothing yet"
    if served["says_nothing"]:
        return "says nothing"
    parts = []
    if served["value"] is None:
        parts.append(f"no value ({served['cause']})")
    else:
        reps = f" ({wording.count(served['reps'], 'rep')})" if served["reps"] else ""
        cause = f" ({served['cause']})" if served["cause"] else ""
        parts.append(f"{_value(served['value'], served['unit'])}{cause}{reps}")
    if served["weight_words"]:
        together = f"{start['build']} so far " if served["together"] else ""
        parts.append(f"{together}{served['weight_words']}")
    before, after = served["before"], served["after"]
    if served["then"] is None:
        parts.append(_ends_seen(after["ends"]))
    else:
        parts += _moved(before["belief"], served["then"], served["was"])
        parts += _elsewhere(served["then"], after["belief"]) if after["status"] is None else []
    return "; ".join(part.replace(" ", TOGETHER) if len(part) < WIDTH / 2 else part for part in parts)


def _ends_seen(ends: dict[str, Any]) -> str:
    text = f"ends {ends['good_starts']}+{ends['bad_starts']}: "
    if ends["change"]:
        t = f" (t {ends['t']:.1f}, needed {ends['needed']:.2f})" if ends["t"] is not None else ""
        text += f"{ends['change']}{t}, "
    return text + str(ends["says"])


def _elsewhere(then: dict[str, Any], now: dict[str, Any] | None) -> list[str]:
    """Which part of the range is looked into next, where that is another one."""
    if now is None or (now["low"], now["high"]) == (then["low"], then["high"]):
        return []
    return [f"next {now['low']}..{now['high']}, {now['bits']:.1f} bits open"]


def _moved(before: dict[str, Any] | None, after: dict[str, Any], was: float | None) -> list[str]:
    parts = []
    if before is None:
        parts.append(f"the ends differ, {wording.count(after['suspects'], 'suspect')}")
    elif before["suspects"] != after["suspects"]:
        parts.append(f"suspects {before['suspects']} -> {after['suspects']} ({after['good']}..{after['bad']})")
    if _stands_out(after["pairs"]):
        top = after["pairs"][0]
        from_ = f"{_percent(was)} -> " if was is not None else ""
        parts.append(f"{top['good']}|{top['bad']} {from_}{_percent(top['chance'])}")
    opened = f"{before['bits']:.1f} -> " if before is not None else ""
    parts.append(f"{opened}{after['bits']:.1f} bits open")
    return parts


def _stands_out(pairs: list[dict[str, Any]]) -> bool:
    """Whether one pair is likelier than all others."""
    return len(pairs) == 1 or (len(pairs) > 1 and pairs[0]["chance"] > pairs[1]["chance"] * 1.001)


def _details(served: dict[str, Any]) -> list[str]:
    """What a target knew when a start was chosen for it."""
    lines = []
    belief = served["before"]["belief"]
    if served["purpose"] in ("along", "watch", "host_check"):
        said = {"along": "it asked for nothing, its scenario ran along", "watch": "watched, not searched"}
        lines.append(f"asked: {said.get(served['purpose'], 'is it the host?')}")
    elif served["asked"]:
        lines.append(f"asked: {served['asked']}")
    else:
        lines.append(f"asked: {served['purpose']}, and this build would do")
    if served["confirms"]:
        lines.append(f"proof for {served['confirms'][0]}|{served['confirms'][1]}")
    lines.append(f"before: {_known(belief) if belief else _ends_seen(served['before']['ends'])}")
    if belief and belief["good_level"] is not None:
        drift = f", the host drifts by {belief['drift']} a start" if belief["drift"] else ""
        lines.append(
            f"levels: good {wording.number(belief['good_level'], served['unit'])}, bad "
            f"{wording.number(belief['bad_level'], served['unit'])}; noise (sd): reps of a start {belief['within']}, "
            f"starts {belief['between']}{drift}"
        )
    elif belief and belief["death_rate"] is not None:
        lines.append(f"a bad build dies in {belief['death_rate']:.0%} of its starts")
    lines.append(f"reps: {served['reps_rule']}")
    return [line for text in lines for line in _wrapped(text, 8)]


def _known(belief: dict[str, Any]) -> str:
    told = [f"{pair['good']}|{pair['bad']} {_percent(pair['chance'])}" for pair in belief["pairs"]]
    pairs = ", ".join(pair.replace(" ", TOGETHER) for pair in told)
    which = "likeliest" if _stands_out(belief["pairs"]) else "among the likeliest"
    return (
        f"{wording.count(belief['suspects'], 'suspect')} in {belief['good']}..{belief['bad']}, "
        f"{belief['bits']:.1f} bits open; {which} {pairs}"
    )


def _worth(candidate: dict[str, Any]) -> str:
    gain = sum(candidate["gain"].values())
    text = f"{candidate['build']} on {candidate['server']}: "
    cost = candidate["cost_s"]
    if not candidate["estimated"]:
        turn = "asked for" if gain >= 1 else "asked for, not its turn"
        text += turn if cost is None else f"{turn}, counts as {gain:.1f} bits"
    else:
        text += f"{gain:.2f} bits"
    if cost is None:
        return text
    minutes = 1 if cost < PER_MINUTE_BELOW_S else 10
    return (
        f"{text} in {wording.duration(cost)}, "
        f"{candidate['score'] * 60 * minutes:.2f} a {'minute' if minutes == 1 else '10 min'}"
    )


def _choice(choice: dict[str, Any]) -> list[str]:
    lines = [f"chosen from {choice['count']}: {choice['because']}"]
    lines += [f"  {_worth(candidate)}" for candidate in choice["candidates"]]
    if choice["differs"]:
        lines.append(f"  {choice['differs']}")
    return [part for line in lines for part in _wrapped(line, 4)]


def _settled(end: dict[str, Any]) -> str:
    reason = f" ({end['reason']})" if end["reason"] else ""
    return f"{end['target']}: {(end['status'] or 'open').upper()}{reason}"


def _ends(told: dict[str, Any]) -> list[str]:
    """A block for each target: its status, what settled it, the sentence, the conditions."""
    lines: list[str] = []
    for end in told["ends"]:
        watched = "  [watch]" if end["role"] == "watch" else ""
        by = f", settled by {end['settled_by']}" if end["settled_by"] else ""
        lines += _wrapped(f"{_settled(end)}{by}{watched}", 0)
        lines += _wrapped(end["sentence"], 2, 2)
        if end["status"] is None and end["grounds"]["asks"]:
            belief = end["grounds"]["belief"]
            lines += _wrapped(_known(belief) if belief else _ends_seen(end["grounds"]["ends"]), 2)
        tests = end["tests"] if end["status"] is not None else []
        if tests:
            wide = max(len(test["what"]) for test in tests)
            lines += [
                f"  {'ok' if test['passed'] else 'NO':<4}{test['what']:<{wide}}  {test['got']}  (needed: {test['needed']})"
                for test in tests
            ]
        lines.append("")
    return lines


def _next(told: dict[str, Any], *, verbose: bool) -> list[str]:
    coming = told["next"]
    used = f"used so far: {told['budget_used']}" + (f" of {told['budget_given']}" if told["budget_given"] else "")
    if coming is None:
        return [used]
    left = coming["seconds_left"]
    time = f", about {wording.duration(left)}" if left is not None else ""
    under_way = next((start for start in told["starts"] if start["outcome"] == "running"), None)
    unless = f"unless start {under_way['number']} says otherwise, " if under_way else ""
    lines = _wrapped(
        f"{unless}next: {coming['build']} on {coming['server']}: {coming['purpose'].replace('_', ' ')} - {coming['why']}",
        0,
    )
    if coming["choice"]:
        lines += _choice(coming["choice"]) if verbose else _wrapped(coming["choice"]["because"], 4)
    return [*lines, f"expected: {wording.count(coming['starts_left'], 'more start')}{time}; {used}"]
