"""Verdicts in, next build or status out: the plain rule. Pure, no disk, no socket, no clock.

Both anchors are measured first; then each target halves its own bracket over shared measurements; builds
that cannot be tested stay suspects; the last good and the first bad build are measured once more at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from imagebisect.domain import LevelSummary, Plan, Status, Step, Target, TargetResult, TargetRole, Verdict
from imagebisect.evidence import Evidence, Question, question
from imagebisect.scenario import MetricKind
from imagebisect.state import RunState
from imagebisect.verdict import (
    ANCHOR_STARTS,
    EVENT_ANCHOR_STARTS,
    MAX_STARTS,
    SPREADS_APART,
    SURVIVED,
    Levels,
    Separation,
    exhausted,
    judge,
    level,
    separation,
    spread,
    start_range,
    survivals_needed,
)

ANCHOR_TRIES = 2
"""Failures of an anchor that are not plainly its own before it counts as untestable."""

RECHECK_STARTS = 2
"""Starts of each of two builds that contradict the order before the order is called inconsistent."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The next start: one server on one build, the scenarios to run in it and why."""

    build: int
    server: str
    scenarios: tuple[str, ...]
    targets: tuple[str, ...]
    purpose: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where one target stands: its result so far, and which builds it wants a value of.

    `need` is the build it wants first (None when it has its status), `wants` all it could use now.
    """

    evidence: Evidence
    result: TargetResult
    need: int | None
    purpose: str
    why: str
    wants: frozenset[int]
    width: int


# ------------------------------------------------------------------- one target's state


def _summary(evidence: Evidence, build: int, levels: Levels | None) -> LevelSummary:
    values = evidence.values(build)
    failures = evidence.failures(build)
    mark = evidence.marks.get(build)
    if mark is not None:
        verdict = mark
    elif values and levels is not None:
        verdict = judge(values, levels)
    elif failures and not values:
        verdict = Verdict.SKIP
    else:
        verdict = Verdict.UNCLEAR
    kind = evidence.target.metric.kind
    causes = tuple(dict.fromkeys(o.cause for o in evidence.observations.get(build, ()) if o.cause))
    return LevelSummary(
        build=build,
        values=values,
        value=level(values, kind) if values else None,
        verdict=verdict,
        causes=causes,
        marked=mark is not None,
    )


def _given_up(evidence: Evidence, build: int) -> bool:
    """Whether another start of a build is not worth it: it failed by its own doing, or twice."""
    failures = evidence.failures(build)
    return any(failure.own for failure in failures) or len(failures) >= ANCHOR_TRIES


def _untestable_anchor(evidence: Evidence, build: int) -> str | None:
    """The cause for which an anchor counts as untestable, or None."""
    failures = evidence.failures(build)
    if evidence.values(build) or not failures:
        return None
    return failures[-1].cause if _given_up(evidence, build) else None


def _anchor_wanted(evidence: Evidence, *, build: int, bad: int) -> int:
    """How many starts an anchor needs before the search."""
    if evidence.target.metric.kind is not MetricKind.EVENT:
        return ANCHOR_STARTS
    values = evidence.values(bad)
    mixed = any(value == SURVIVED for value in values) and any(value != SURVIVED for value in values)
    if build == bad:
        return EVENT_ANCHOR_STARTS if any(value == SURVIVED for value in values) else ANCHOR_STARTS
    if not mixed or any(value != SURVIVED for value in evidence.values(build)):
        return ANCHOR_STARTS
    # where the bad end survives now and then, so might the good one by luck
    return max(ANCHOR_STARTS, survivals_needed(level(values, MetricKind.EVENT)))


class _Target:
    """One target's evidence, judged. Built once for each decision."""

    def __init__(self, ask: Question, evidence: Evidence) -> None:
        self.ask = ask
        self.evidence = evidence
        self.target: Target = evidence.target
        self.kind = evidence.target.metric.kind
        good, bad = evidence.values(ask.good), evidence.values(ask.bad)
        self.levels: Levels | None = None
        if good and bad and separation(good, bad, self.target) is Separation.APART:
            self.levels = Levels(good=level(good, self.kind), bad=level(bad, self.kind), kind=self.kind)
        self.builds = tuple(_summary(evidence, build, self.levels) for build in range(len(ask.names)))

    # ---- facts

    def verdict(self, build: int) -> Verdict:
        """An anchor's verdict is its role; the others are judged."""
        if build == self.ask.good:
            return Verdict.GOOD
        if build == self.ask.bad:
            return Verdict.BAD
        return self.builds[build].verdict

    def inversion(self) -> tuple[int, int] | None:
        """The first bad build and the last good one, where the good one comes later."""
        inside = range(self.ask.good, self.ask.bad + 1)
        first_bad = min(b for b in inside if self.verdict(b) is Verdict.BAD)
        last_good = max(b for b in inside if self.verdict(b) is Verdict.GOOD)
        return (first_bad, last_good) if last_good > first_bad else None

    def bracket(self) -> tuple[int, int]:
        """The innermost (last good, first bad) seen from the bad end's first appearance."""
        inside = range(self.ask.good, self.ask.bad + 1)
        first_bad = min(b for b in inside if self.verdict(b) is Verdict.BAD)
        last_good = max(b for b in range(self.ask.good, first_bad) if self.verdict(b) is Verdict.GOOD)
        return last_good, first_bad

    def open_inside(self, low: int, high: int) -> list[int]:
        """Builds strictly inside a bracket that another start could still decide."""
        found = []
        for build in range(low + 1, high):
            summary = self.builds[build]
            if summary.verdict is not Verdict.UNCLEAR or summary.marked:
                continue
            if summary.values and self.levels is not None and exhausted(summary.values, self.levels):
                continue
            if summary.values and _given_up(self.evidence, build):
                continue
            found.append(build)
        return found

    def confirmations_wanted(self, build: int) -> int:
        """Starts the member of a final pair needs: what its verdict took, and one more."""
        if build in (self.ask.good, self.ask.bad):
            return _anchor_wanted(self.evidence, build=build, bad=self.ask.bad) + 1
        if self.levels is not None and self.verdict(build) is Verdict.GOOD:
            return self.levels.survivals_needed + 1
        return 2

    def unexplained(self, low: int, high: int) -> str | None:
        """What of the ends' difference lies outside the final pair, in words; None when all of it is between them."""
        ends = [self.builds[build] for build in (self.ask.good, low, high, self.ask.bad)]
        if self.kind is MetricKind.EVENT or any(end.value is None for end in ends):
            return None
        for outer, inner in ((ends[0], ends[1]), (ends[3], ends[2])):
            assert outer.value is not None
            assert inner.value is not None
            rest = abs(inner.value - outer.value)
            noise = SPREADS_APART * max(spread(outer.values), spread(inner.values))
            if rest >= max(self.target.floor.amount(outer.value), noise):
                names = f"{self.ask.names[outer.build]} and {self.ask.names[inner.build]}"
                return f"{names} differ by {rest:,.5g} {self.target.metric.unit}".strip()
        return None

    # ---- pieces of the result

    def steps(self) -> tuple[Step, ...]:
        """Every change between neighbours that have a verdict of good or bad."""
        known = [b for b in range(self.ask.good, self.ask.bad + 1) if self.verdict(b) in (Verdict.GOOD, Verdict.BAD)]
        return tuple(
            Step(
                last=last,
                first=first,
                before=self.verdict(last),
                after=self.verdict(first),
                suspects=tuple(range(last + 1, first + 1)),
            )
            for last, first in pairwise(known)
            if self.verdict(last) is not self.verdict(first)
        )

    def result(
        self,
        status: Status | None,
        reason: str | None,
        *,
        pair: tuple[int, int] | None = None,
        sentence: str = "",
    ) -> TargetResult:
        """The result with the numbers of the final pair, or of the anchors when there is none."""
        good, bad = pair or (self.ask.good, self.ask.bad)
        low, high = self.builds[good], self.builds[bad]
        event = self.kind is MetricKind.EVENT
        change = spread = None
        if not event and low.value is not None and high.value is not None and low.value != 0:
            change = (high.value / low.value - 1) * 100
            spread = max(start_range(s.values) / abs(s.value) * 100 for s in (low, high) if s.value)
        suspects = tuple(range(pair[0] + 1, pair[1] + 1)) if pair else ()
        return TargetResult(
            target=self.target.name,
            status=status,
            reason=reason,
            sentence=sentence,
            last_good=pair[0] if pair else None,
            first_bad=pair[1] if pair else None,
            suspects=suspects,
            untestable=tuple(s.build for s in self.builds if s.verdict is Verdict.SKIP and s.build in suspects),
            steps=self.steps() if self.levels is not None else (),
            builds=self.builds,
            good_value=None if event else low.value,
            bad_value=None if event else high.value,
            change_percent=change,
            spread_percent=spread,
            good_rate=low.value if event else None,
            bad_rate=high.value if event else None,
            anchor_good=self.builds[self.ask.good].value,
            anchor_bad=self.builds[self.ask.bad].value,
            threshold=self.levels.threshold if self.levels and not event else None,
        )


def _name(ask: Question, builds: tuple[int, ...]) -> str:
    return ", ".join(ask.names[build] for build in builds)


def _ended(t: _Target, result: TargetResult) -> Standing:
    return Standing(evidence=t.evidence, result=result, need=None, purpose="", why="", wants=frozenset(), width=0)


def _wanting(t: _Target, need: int, wants: set[int], *, purpose: str, why: str, pair: tuple[int, int]) -> Standing:
    known = pair if t.levels is not None else None
    return Standing(
        evidence=t.evidence,
        result=t.result(None, None, pair=known),
        need=need,
        purpose=purpose,
        why=why,
        wants=frozenset(wants | {need}),
        width=pair[1] - pair[0],
    )


def _anchors(t: _Target) -> Standing | None:
    """The standing while the anchors are not settled; None once the search may begin."""
    ask, evidence = t.ask, t.evidence
    for build, end in ((ask.good, "good"), (ask.bad, "bad")):
        cause = _untestable_anchor(evidence, build)
        if cause is not None:
            text = (
                f"the {end} anchor {ask.names[build]} gives no measurement: {cause}; choose another one with --{end}, "
                "or change the suite so that it can be measured"
            )
            return _ended(t, t.result(Status.UNTESTABLE_ANCHOR, cause, sentence=text))
    have = {build: len(evidence.values(build)) for build in (ask.good, ask.bad)}
    lacking = {
        build
        for build in have
        if have[build] < _anchor_wanted(evidence, build=build, bad=ask.bad) and not _given_up(evidence, build)
    }
    if lacking:
        # A Z Z A: a linear drift of the host then falls on both ends alike
        first_good = ask.good in lacking and (have[ask.good] == 0 or ask.bad not in lacking)
        need = ask.good if first_good else ask.bad
        end = "good" if need == ask.good else "bad"
        why = f"start {have[need] + 1} of the {end} anchor {ask.names[need]}"
        return _wanting(t, need, lacking, purpose="anchor", why=why, pair=(ask.good, ask.bad))
    good, bad = evidence.values(ask.good), evidence.values(ask.bad)
    if not good or not bad:
        short = ask.good if not good else ask.bad
        causes = t.builds[short].causes or ("unknown",)
        text = f"the anchor {ask.names[short]} gives no measurement: {causes[-1]}"
        return _ended(t, t.result(Status.UNTESTABLE_ANCHOR, causes[-1], sentence=text))
    match separation(good, bad, t.target):
        case Separation.IMPROVED:
            return _ended(t, t.result(Status.IMPROVED, None, sentence="the bad end is better than the good end"))
        case Separation.TOO_CLOSE:
            text = f"{len(good)}+{len(bad)} starts of the two ends do not tell them apart on this host"
            return _ended(t, t.result(Status.INCONCLUSIVE, "too_few_starts", sentence=text))
        case Separation.NOISY:
            return _noisy(t)
        case Separation.APART:
            return None


def _noisy(t: _Target) -> Standing:
    """The ends differ, but so do starts of one build: the one that disagrees with itself more is started again."""
    ask = t.ask
    spreads = {build: spread(t.evidence.values(build)) for build in (ask.bad, ask.good)}
    able = [b for b in spreads if len(t.evidence.values(b)) < MAX_STARTS and not _given_up(t.evidence, b)]
    if able:
        need = max(able, key=lambda build: spreads[build])
        why = f"starts of the anchor {ask.names[need]} disagree by {spreads[need]:.4g} {t.target.metric.unit}: another one"
        return _wanting(t, need, {need}, purpose="anchor", why=why, pair=(ask.good, ask.bad))
    counts = "+".join(str(len(t.evidence.values(build))) for build in (ask.good, ask.bad))
    text = f"the ends differ, but {counts} starts of them differ among themselves too much to search by"
    return _ended(t, t.result(Status.INCONCLUSIVE, "noise", sentence=text))


def _inverted(t: _Target, pair: tuple[int, int]) -> Standing:
    """A good build after a bad one: measure both again, then say that the order contradicts itself."""
    bad, good = pair
    again = [
        b
        for b in (bad, good)
        if not t.builds[b].marked and len(t.evidence.values(b)) < RECHECK_STARTS and b not in (t.ask.good, t.ask.bad)
    ]
    again = [b for b in again if not _given_up(t.evidence, b)]
    if again:
        why = (
            f"{t.ask.names[good]} looks good after {t.ask.names[bad]} looked bad: measure {t.ask.names[again[0]]} again"
        )
        return _wanting(t, again[0], set(again), purpose="recheck", why=why, pair=(min(pair), max(pair)))
    text = f"{t.ask.names[bad]} is bad and the later {t.ask.names[good]} is good: every step found is listed"
    return _ended(t, t.result(Status.INCONSISTENT, None, pair=t.bracket(), sentence=text))


def _confirm(t: _Target, low: int, high: int) -> Standing | None:
    """The final pair measured once more; None when that is done or cannot be."""
    lacking = {
        build
        for build in (low, high)
        if not t.builds[build].marked
        and len(t.evidence.values(build)) < t.confirmations_wanted(build)
        and not _given_up(t.evidence, build)
    }
    if not lacking:
        return None
    need = low if low in lacking else high
    kind = "last good" if need == low else "first bad"
    why = f"the {kind} build {t.ask.names[need]} is measured once more"
    return _wanting(t, need, lacking, purpose="confirm", why=why, pair=(low, high))


def _final(t: _Target, low: int, high: int) -> Standing:
    """The status of a target whose bracket cannot be narrowed any more."""
    ask, pair = t.ask, (low, high)
    between = range(low + 1, high)
    undecided = tuple(b for b in between if t.builds[b].verdict in (Verdict.UNCLEAR, Verdict.OTHER))
    untestable = tuple(b for b in between if t.builds[b].verdict is Verdict.SKIP)
    found = f"{ask.names[low]} is the last good build and {ask.names[high]} the first bad one"
    if undecided:
        text = f"{found} that could be told apart; {_name(ask, undecided)} agree with neither end"
        return _ended(t, t.result(Status.NARROWED, "noise", pair=pair, sentence=text))
    if untestable:
        text = f"{found} that could be tested; {_name(ask, untestable)} in between could not"
        return _ended(t, t.result(Status.NARROWED, "untestable", pair=pair, sentence=text))
    elsewhere = t.unexplained(low, high)
    if elsewhere is not None:
        whole = tuple(range(ask.good + 1, ask.bad + 1))
        text = f"{found} by the midpoint between the ends, but {elsewhere}: there is more than one step in the range"
        result = replace(t.result(Status.NARROWED, "several_steps", pair=pair, sentence=text), suspects=whole)
        return _ended(t, result)
    if t.builds[low].marked or t.builds[high].marked:
        return _ended(t, t.result(Status.NARROWED, "marked", pair=pair, sentence=f"{found}; a verdict was set by hand"))
    short = [b for b in pair if len(t.evidence.values(b)) < t.confirmations_wanted(b)]
    if short:
        text = f"{found}, but {_name(ask, tuple(short))} could not be measured once more"
        return _ended(t, t.result(Status.NARROWED, "untestable", pair=pair, sentence=text))
    if ask.lines[low] != ask.lines[high]:
        text = (
            f"{found}, but they are not on one line of history ({ask.lines[low]}, {ask.lines[high]}): "
            f"the change may lie anywhere between the two lines"
        )
        return _ended(t, t.result(Status.NARROWED, "off_line", pair=pair, sentence=text))
    return _ended(t, t.result(Status.CONFIRMED, None, pair=pair, sentence=f"{found}, each measured again"))


def stand(ask: Question, evidence: Evidence) -> Standing:
    """Where one target stands, and what it would like to know next."""
    t = _Target(ask, evidence)
    unsettled = _anchors(t)
    if unsettled is not None:
        return unsettled
    inverted = t.inversion()
    if inverted is not None:
        return _inverted(t, inverted)
    low, high = t.bracket()
    candidates = t.open_inside(low, high)
    if candidates:
        begun = [build for build in candidates if t.builds[build].values]
        middle = (low + high) / 2
        need = min(begun or candidates, key=lambda build: (abs(build - middle), build))
        if begun:
            why = f"{ask.names[need]} lies between the two ends: another start before it moves the bracket"
        else:
            why = f"{ask.names[need]} halves {ask.names[low]}..{ask.names[high]} ({high - low} suspects)"
        return _wanting(t, need, set(candidates), purpose="search", why=why, pair=(low, high))
    return _confirm(t, low, high) or _final(t, low, high)


# -------------------------------------------------------------------------- all targets


def _watched(standing: Standing) -> TargetResult:
    """The result of a watch target: what shared starts happen to say, without a claim to completeness."""
    if standing.need is None and standing.result.status is not Status.CONFIRMED:
        return standing.result
    result = standing.result
    if result.first_bad is None:
        return replace(
            result,
            status=Status.INCONCLUSIVE,
            reason="too_few_starts",
            sentence="watched: too few starts of the two ends",
        )
    return replace(
        result, status=Status.NARROWED, reason="watched", sentence="watched where a start happened, not searched"
    )


def standings(ask: Question) -> tuple[Standing, ...]:
    """Every target's standing, in suite order."""
    return tuple(stand(ask, evidence) for evidence in ask.evidence)


def decide(ask: Question, scenarios_of: Mapping[str, tuple[str, ...]]) -> Probe | None:
    """The next start, or None when every bisect target has its status.

    Of the open targets the one with the widest bracket picks the build, suite order on ties. The start then
    measures every open target of that server that could use a value of this build, and the watch targets that
    have too few there. `scenarios_of` gives each server's scenarios in the order inside a start.
    """
    found = standings(ask)
    opened = [s for s in found if s.evidence.target.role is TargetRole.BISECT and s.need is not None]
    if not opened:
        return None
    chosen = max(opened, key=lambda standing: standing.width)
    assert chosen.need is not None
    build, server = chosen.need, chosen.evidence.server
    wanted = [s.evidence.target for s in opened if s.evidence.server == server and build in s.wants]
    enough = ANCHOR_STARTS if build in (ask.good, ask.bad) else 1
    for standing in found:
        evidence = standing.evidence
        if evidence.target.role is TargetRole.WATCH and evidence.server == server:
            seen = len(evidence.observations.get(build, ()))
            if seen < enough:
                wanted.append(evidence.target)
    needed = {target.scenario for target in wanted}
    return Probe(
        build=build,
        server=server,
        scenarios=tuple(name for name in scenarios_of[server] if name in needed),
        targets=tuple(target.name for target in wanted),
        purpose=chosen.purpose,
        why=f"{chosen.evidence.target.name}: {chosen.why}",
    )


def starts_left(ask: Question) -> int:
    """An upper bound of the starts still to come, if every build can be tested and no value is unclear."""
    total = 0
    for standing in standings(ask):
        if standing.evidence.target.role is not TargetRole.BISECT or standing.need is None:
            continue
        halvings = math.ceil(math.log2(standing.width)) if standing.width > 1 else 0
        match standing.purpose:
            case "anchor":
                have = sum(len(standing.evidence.values(build)) for build in (ask.good, ask.bad))
                total += max(2 * ANCHOR_STARTS - have, 1) + halvings + 2
            case "confirm":
                total += len(standing.wants)
            case _:
                total += halvings + 2
    return total


def results(state: RunState) -> tuple[TargetResult, ...]:
    """Where each target of a run stands now, in suite order."""
    return tuple(
        _watched(standing) if standing.evidence.target.role is TargetRole.WATCH else standing.result
        for standing in standings(question(state))
    )


def worst_case_starts(plan: Plan) -> dict[str, int]:
    """Starts of each server if nothing can be shared and every build can be tested: anchors, halvings, confirmation."""
    halvings = math.ceil(math.log2(plan.bad - plan.good)) if plan.bad > plan.good else 0
    counts: dict[str, int] = {}
    for target in plan.suite.targets:
        if target.role is TargetRole.BISECT:
            server = plan.suite.server_of(target)
            event = target.metric.kind is MetricKind.EVENT
            anchors = ANCHOR_STARTS + (EVENT_ANCHOR_STARTS if event else ANCHOR_STARTS)
            alone = anchors if server not in counts else 0
            counts[server] = counts.get(server, 0) + alone + halvings + 2
    return counts
