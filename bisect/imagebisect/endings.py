"""How a target ends, in numbers and in a sentence that claims no more than was seen. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from imagebisect.calibration import LARGE_ENOUGH, MOST_STARTS, Difference, detectable, quantile
from imagebisect.comparison import possible_rate
from imagebisect.domain import LevelSummary, Status, Step, TargetResult, Verdict
from imagebisect.evidence import Question
from imagebisect.inquiry import Contradiction, Found, Inquiry
from imagebisect.posterior import Fit
from imagebisect.scenario import MetricKind
from imagebisect.survival import Survival
from imagebisect.verdict import level, start_range


def summaries(inquiry: Inquiry, belief: Fit | Survival | None) -> tuple[LevelSummary, ...]:
    """Every build's values and verdict; without a posterior nothing but failures and marks is judged."""
    ask, evidence = inquiry.ask, inquiry.evidence
    found = []
    touched = {*evidence.observations, *inquiry.marks, ask.good, ask.bad}
    for build in range(len(ask.names)):
        if build not in touched:
            found.append(LevelSummary(build=build, values=(), value=None, verdict=Verdict.UNCLEAR))
            continue
        values = evidence.values(build)
        mark = inquiry.marks.get(build)
        if mark is not None:
            verdict = mark
        elif inquiry.untestable(build) or (evidence.failures(build) and not values):
            verdict = Verdict.SKIP
        elif belief is None or not ask.good <= build <= ask.bad or not values:
            verdict = Verdict.UNCLEAR
        elif build in (ask.good, ask.bad):
            verdict = Verdict.GOOD if build == ask.good else Verdict.BAD
        else:
            verdict = belief.verdict(build)
        causes = tuple(dict.fromkeys(o.cause for o in evidence.observations.get(build, ()) if o.cause))
        found.append(
            LevelSummary(
                build=build,
                values=values,
                value=level(values, evidence.target.metric.kind) if values else None,
                verdict=verdict,
                causes=causes,
                marked=mark is not None,
            )
        )
    return tuple(found)


def _between(one: LevelSummary, found: Sequence[Found]) -> LevelSummary:
    """A build between two steps is at a level of its own, whatever the levels of the ends make of it."""
    inside = found[0].first <= one.build <= found[-1].last
    if inside and one.verdict in (Verdict.GOOD, Verdict.BAD) and not one.marked:
        return replace(one, verdict=Verdict.OTHER)
    return one


def _verdict_steps(inquiry: Inquiry, builds: Sequence[LevelSummary]) -> tuple[Step, ...]:
    """Every change between neighbours that have a verdict of good, bad or other."""
    telling = (Verdict.GOOD, Verdict.BAD, Verdict.OTHER)
    known = [b for b in range(inquiry.ask.good, inquiry.ask.bad + 1) if builds[b].verdict in telling]
    return tuple(
        _step(inquiry, last, first, builds[last].verdict, builds[first].verdict)
        for last, first in pairwise(known)
        if builds[last].verdict is not builds[first].verdict
    )


def _step(inquiry: Inquiry, last: int, first: int, before: Verdict, after: Verdict) -> Step:
    change = None
    values = [inquiry.evidence.values(build) for build in (last, first)]
    if not inquiry.event and all(values):
        kind = inquiry.target.metric.kind
        low, high = level(values[0], kind), level(values[1], kind)
        change = (high / low - 1) * 100 if low else None
    return Step(
        last=last,
        first=first,
        before=before,
        after=after,
        suspects=tuple(range(last + 1, first + 1)),
        change_percent=change,
    )


def _found_steps(inquiry: Inquiry, found: Sequence[Found]) -> tuple[Step, ...]:
    """The steps of a range: good first, bad last, levels of their own between."""
    steps = []
    for number, one in enumerate(found):
        before = Verdict.GOOD if number == 0 else Verdict.OTHER
        after = Verdict.BAD if number == len(found) - 1 else Verdict.OTHER
        steps.append(_step(inquiry, one.last, one.first, before, after))
    return tuple(steps)


def _interval_percent(
    inquiry: Inquiry, belief: Fit | Survival | None, pair: tuple[int, int] | None, good_value: float | None
) -> tuple[float, float] | None:
    """The 95 % interval of the change between the two builds of a pair, as measured."""
    if pair is None or not isinstance(belief, Fit) or not good_value or any(b not in inquiry.starts for b in pair):
        return None
    step = inquiry.between(*pair, belief)
    half, scale = step.half_width(), inquiry.scale
    unit = 1.0 if scale.kind is MetricKind.RATIO else abs(good_value)
    low, high = sorted(scale.change(drop) / unit * 100 for drop in (step.drop - half, step.drop + half))
    return low, high


def result(
    inquiry: Inquiry,
    status: Status | None,
    reason: str | None,
    *,
    belief: Fit | Survival | None = None,
    pair: tuple[int, int] | None = None,
    sentence: str = "",
    found: Sequence[Found] | None = None,
) -> TargetResult:
    """The result with the numbers of the final pair, or of the anchors where there is none."""
    ask, event = inquiry.ask, inquiry.event
    builds = summaries(inquiry, belief)
    if found and len(found) > 1:
        builds = tuple(_between(one, found) for one in builds)
    low, high = builds[pair[0] if pair else ask.good], builds[pair[1] if pair else ask.bad]
    change = spread = threshold = None
    if not event and low.value is not None and high.value is not None and low.value != 0:
        change = (high.value / low.value - 1) * 100
        spread = max(start_range(s.values) / abs(s.value) * 100 for s in (low, high) if s.value) if high.value else None
    if isinstance(belief, Fit):
        threshold = inquiry.scale.value((belief.good + belief.bad) / 2)
    suspects = tuple(range(pair[0] + 1, pair[1] + 1)) if pair else ()
    steps = _found_steps(inquiry, found) if found else _verdict_steps(inquiry, builds) if belief else ()
    return TargetResult(
        target=inquiry.target.name,
        status=status,
        reason=reason,
        sentence=sentence,
        last_good=pair[0] if pair else None,
        first_bad=pair[1] if pair else None,
        suspects=suspects,
        untestable=tuple(s.build for s in builds if s.verdict is Verdict.SKIP and s.build in suspects),
        steps=steps,
        builds=builds,
        good_value=None if event else low.value,
        bad_value=None if event else high.value,
        change_percent=change,
        spread_percent=spread,
        good_rate=low.value if event else None,
        bad_rate=high.value if event else None,
        anchor_good=builds[ask.good].value,
        anchor_bad=builds[ask.bad].value,
        threshold=threshold,
        confidence=found[0].chance if found else None,
        interval_percent=_interval_percent(inquiry, belief, pair, low.value),
    )


# ---------------------------------------------------------------------------- sentences


def _interval(inquiry: Inquiry, found: Difference, confidence: float = 0.95) -> str:
    half = found.half_width(confidence)
    unit = inquiry.target.metric.unit
    ends = sorted((found.drop - half, found.drop + half), key=inquiry.scale.change)
    low, high = (inquiry.scale.words(end, unit) for end in ends)
    return f"{inquiry.scale.words(found.drop, unit)} (95 % {low} to {high})"


def _starts(inquiry: Inquiry, pair: tuple[int, int]) -> str:
    return "+".join(str(len(inquiry.evidence.values(build))) for build in pair)


def _spread_words(inquiry: Inquiry, spread: float) -> str:
    return inquiry.scale.words(spread, inquiry.target.metric.unit).lstrip("+-")


def _claim_words(inquiry: Inquiry, found: Difference) -> str:
    """Whether the change that somebody claimed is excluded; empty where nobody did."""
    claimed = inquiry.target.claimed
    if claimed is None:
        return ""
    values = inquiry.evidence.values(inquiry.ask.good)
    amount = claimed.amount(level(values, inquiry.target.metric.kind)) if values else claimed.value
    scale = inquiry.scale
    if scale.kind is MetricKind.RATIO and values:
        share = amount / abs(level(values, inquiry.target.metric.kind))
        drop = -math.log1p(-min(share, 0.999)) if scale.sign > 0 else math.log1p(share)
    else:
        drop = amount
    said = "excluded" if found.drop + found.half_width() < drop else "not excluded"
    return f"; the claimed change of {_spread_words(inquiry, drop)} is {said}"


def not_reproduced(inquiry: Inquiry, found: Difference) -> str:
    """The largest effect still possible is below the floor."""
    floor = inquiry.scale.words(inquiry.scale.floor, inquiry.target.metric.unit).lstrip("+-")
    pair = (inquiry.ask.good, inquiry.ask.bad)
    possible = found.drop + found.half_width()
    most = f"at most {_spread_words(inquiry, possible)} worse" if possible > 0 else "not worse at all"
    return (
        f"the bad end differs by {_interval(inquiry, found)}, {most}: a change of {floor} is excluded here"
        f"{_claim_words(inquiry, found)}; starts of one build differ by {_spread_words(inquiry, found.spread)} (sd), "
        f"{_starts(inquiry, pair)} starts"
    )


def inconclusive(inquiry: Inquiry, found: Difference) -> str:
    """Neither can be said, and what could be."""
    pair = (inquiry.ask.good, inquiry.ask.bad)
    smallest = _spread_words(inquiry, detectable(found))
    return (
        f"the ends differ by {_interval(inquiry, found)} over {_starts(inquiry, pair)} starts: neither a regression nor "
        f"its absence; the smallest effect this host can show with {MOST_STARTS}+{MOST_STARTS} starts is {smallest}"
        f"{_claim_words(inquiry, found)}"
    )


def improved(inquiry: Inquiry, found: Difference) -> str:
    """The bad end is better."""
    return f"the bad end is better than the good end: {_interval(inquiry, found)}"


def events_not_reproduced(inquiry: Inquiry, starts: int) -> str:
    """No start of either end died; what death rate that leaves possible."""
    pair = (inquiry.ask.good, inquiry.ask.bad)
    return (
        f"none of {_starts(inquiry, pair)} starts of the two ends failed: a failure in more than "
        f"{possible_rate(starts):.0%} of the bad end's starts is excluded, a rarer one is not"
    )


def range_words(inquiry: Inquiry) -> str:
    """What was looked at, so that nobody takes one step for the only one."""
    ask = inquiry.ask
    probed = [ask.good, *(b for b in range(ask.good + 1, ask.bad) if inquiry.tested(b)), ask.bad]
    longest = max((b - a - 1 for a, b in pairwise(probed)), default=0)
    return f"in a range probed at {len(probed)} of {ask.bad - ask.good + 1} builds, longest unprobed stretch {longest}"


def bracket_words(inquiry: Inquiry, pair: tuple[int, int]) -> str:
    """Between which two builds the answer lies."""
    good, bad = (inquiry.ask.names[build] for build in pair)
    if inquiry.ask.fix:
        return f"the first good build lies after {bad} and not after {good}"
    return f"the first bad build lies after {good} and not after {bad}"


def _pair_words(inquiry: Inquiry, one: Found, belief: Fit | Survival) -> str:
    names, pair = inquiry.ask.names, (one.last, one.first)
    text = f"{names[one.last]} is the last good build and {names[one.first]} the first bad one"
    if inquiry.ask.fix:
        text = f"{names[one.first]} is the last bad build and {names[one.last]} the first good one"
    if one.reason == "noise":
        return f"{bracket_words(inquiry, pair)} ({one.detail})"
    if inquiry.event or not isinstance(belief, Fit):
        rates = [
            level(inquiry.evidence.values(b), inquiry.target.metric.kind) for b in pair if inquiry.evidence.values(b)
        ]
        return f"{text}: {' against '.join(f'{rate:.0%}' for rate in rates)} over {_starts(inquiry, pair)} starts"
    if any(build not in inquiry.starts for build in pair):
        return text
    step = inquiry.between(one.last, one.first, belief)
    total = inquiry.between(inquiry.ask.good, inquiry.ask.bad, belief)
    share = f", {step.drop / total.drop:.0%} of the ends' difference" if total.drop else ""
    fresh = "+".join(
        str(sum(o.confirming == pair for o in inquiry.evidence.observations.get(build, ()))) for build in pair
    )
    return (
        f"{text}: {_interval(inquiry, step)}{share}; {_starts(inquiry, pair)} starts, {fresh} of them fresh; starts of "
        f"one build differ by {_spread_words(inquiry, belief.between)} (sd); chance of this pair {one.chance:.4f}"
    )


def _rest_words(inquiry: Inquiry, found: Sequence[Found], belief: Fit | Survival) -> str:
    """What of the ends' difference no step explains, where that is more than noise."""
    ask = inquiry.ask
    if not isinstance(belief, Fit) or any(b not in inquiry.starts for one in found for b in (one.last, one.first)):
        return ""
    total = inquiry.between(ask.good, ask.bad, belief)
    parts = [inquiry.between(one.last, one.first, belief) for one in found]
    rest = total.drop - sum(part.drop for part in parts)
    error = math.sqrt(total.error**2 + sum(part.error**2 for part in parts))
    if abs(rest) < LARGE_ENOUGH * inquiry.scale.floor or abs(rest) < quantile(0.975, total.df) * error:
        return ""
    return (
        f"; {inquiry.scale.words(rest, inquiry.target.metric.unit)} of the ends' difference lie elsewhere in the range"
    )


_REASONS = {
    "untestable": "; {untestable} in between could not be tested",
    "off_line": "; they are not on one line of history ({lines}): the change may lie anywhere between the two lines",
    "marked": "; a verdict was set by hand",
}


def located(inquiry: Inquiry, found: Sequence[Found], belief: Fit | Survival) -> str:
    """Where the first bad build is, how sure that is, and what else lies in the range."""
    one, ask = found[0], inquiry.ask
    between = [ask.names[b] for b in range(one.last + 1, one.first) if inquiry.untestable(b)]
    text = _pair_words(inquiry, one, belief)
    if one.reason == "untestable" and not between:
        text += f", but {one.detail}"
    elif one.reason in _REASONS:
        lines = f"{ask.lines[one.last]}, {ask.lines[one.first]}"
        text += _REASONS[one.reason].format(untestable=", ".join(between), lines=lines)
    if len(found) > 1:
        more = ", ".join(
            " to ".join(ask.names[b] for b in sorted((f.last, f.first), key=ask.plan_index)) for f in found[1:]
        )
        text += f"; more steps: {more}"
    if isinstance(belief, Fit) and belief.drift:
        drift = inquiry.scale.words(-belief.drift, inquiry.target.metric.unit)
        text += f"; the host drifts by {drift} a start, taken out"
    return f"{text}{_rest_words(inquiry, found, belief)}; {range_words(inquiry)}"


def contradicted(inquiry: Inquiry, found: Contradiction) -> str:
    """The order contradicts itself."""
    names = inquiry.ask.names
    earlier, later = ("later", "earlier") if inquiry.ask.fix else ("earlier", "later")
    if found.build in (found.last, found.first):
        how = f"{names[found.first]} is better than the {earlier} {names[found.last]}"
    elif found.build < found.last:
        how = f"{names[found.build]} is bad and the {later} {names[found.last]} is good"
    else:
        how = f"{names[found.first]} is bad and the {later} {names[found.build]} is good"
    return f"{how}: every step found is listed, {range_words(inquiry)}"


def excursion(inquiry: Inquiry, builds: Sequence[int], what: str) -> str:
    """The ends are alike and builds between them are not."""
    names = ", ".join(inquiry.ask.names[b] for b in sorted(builds, key=inquiry.ask.plan_index))
    plural = "is" if len(builds) == 1 else "are"
    return (
        f"the two ends do not differ, but {names} between them {plural} bad ({what}): it broke and was mended; "
        f"search with --bad {inquiry.ask.names[builds[0]]} for the first bad build, {range_words(inquiry)}"
    )


def with_excursions(inquiry: Inquiry, found: TargetResult, bad: Sequence[int]) -> TargetResult:
    """A result whose ends are good and which says of each build between them that was looked at whether it is bad."""
    ends = (inquiry.ask.good, inquiry.ask.bad)
    builds = tuple(
        replace(one, verdict=Verdict.BAD if one.build in bad else Verdict.GOOD)
        if one.values and ends[0] <= one.build <= ends[1] and not one.marked
        else one
        for one in found.builds
    )
    return replace(found, builds=builds, steps=_verdict_steps(inquiry, builds))


def in_plan_order(found: TargetResult, ask: Question) -> TargetResult:
    """A result with the builds as the plan has them, oldest first."""
    if not ask.fix:
        return found
    at = ask.plan_index

    def turned(step: Step) -> Step:
        change = step.change_percent
        back = None if change is None or change == -100 else (100 / (100 + change) - 1) * 100
        older, newer = at(step.first), at(step.last)
        return Step(
            last=older,
            first=newer,
            before=step.after,
            after=step.before,
            suspects=tuple(range(older + 1, newer + 1)),
            change_percent=back,
        )

    pair = (None, None) if found.last_good is None or found.first_bad is None else (found.last_good, found.first_bad)
    older, newer = (None, None) if pair[0] is None or pair[1] is None else (at(pair[1]), at(pair[0]))
    return replace(
        found,
        find="fix",
        last_good=newer,
        first_bad=older,
        suspects=() if older is None or newer is None else tuple(range(older + 1, newer + 1)),
        untestable=tuple(sorted(at(b) for b in found.untestable)),
        steps=tuple(turned(step) for step in reversed(found.steps)),
        builds=tuple(replace(one, build=at(one.build)) for one in reversed(found.builds)),
    )
