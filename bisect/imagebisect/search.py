"""Verdicts in, next build or status out. Pure, no disk, no socket, no clock.

The two ends are compared first; then each target's posterior over its first bad build picks what to start, over
shared starts; the final pair is confirmed by fresh starts. `inquiry` is one target, `posterior` and `survival` its
evidence, `endings` the words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from imagebisect import endings
from imagebisect.calibration import EQUIVALENCE_STARTS, LARGE_ENOUGH, MOST_STARTS, Ends, compare, difference, quantile
from imagebisect.domain import Plan, Status, Target, TargetResult, TargetRole
from imagebisect.evidence import Evidence, Question, question
from imagebisect.inquiry import Contradiction, Found, Inquiry, Wish
from imagebisect.posterior import Fit, Floats
from imagebisect.repetition import CALIBRATING, ONE_REP, RepRule, calibrating, rule_of
from imagebisect.scenario import MetricKind
from imagebisect.state import RunState
from imagebisect.survival import Survival, compare_events

WATCHED_STARTS = 2
"""Starts of an end in which a watch target is measured; of a build that is confirmed one, of others none."""

CONFIRMING = 2
"""Starts that a confirmation takes where nothing is in doubt."""

EXCURSION_STARTS = 2
"""Starts of a build between ends that are alike, before it is called bad."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The next start: one server on one build (its place in the plan), the scenarios to run in it and why.

    `confirms` names the targets whose final pair the start is to confirm; `reps` says when each target has enough.
    """

    build: int
    server: str
    scenarios: tuple[str, ...]
    targets: tuple[str, ...]
    purpose: str
    why: str
    confirms: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    reps: Mapping[str, RepRule] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where one target stands: its result so far, and the start that it asks for (None once it has its status)."""

    evidence: Evidence
    result: TargetResult
    wish: Wish | None = None
    left: int = 0
    rule: RepRule = CALIBRATING

    @property
    def need(self) -> int | None:
        """The build it wants first."""
        return self.wish.build if self.wish else None


# ------------------------------------------------------------------- one target


def _anchor_cause(inquiry: Inquiry, build: int) -> str | None:
    """The cause for which an anchor counts as untestable, or None."""
    failures = inquiry.evidence.failures(build)
    if inquiry.evidence.values(build) or not failures or not inquiry.given_up(build):
        return None
    return failures[-1].cause or "unknown"


def _open(inquiry: Inquiry, wish: Wish, *, belief: Fit | Survival | None = None, left: int) -> Standing:
    pair = wish.pair if belief is not None else None
    rule = ONE_REP
    if inquiry.target.metric.kind is MetricKind.RATIO:
        rule = rule_of(wish.fit, inquiry.scale) if wish.fit is not None else calibrating(inquiry.scale)
    if not inquiry.ask.spent:
        found = endings.result(inquiry, None, None, belief=belief, pair=pair)
        return Standing(evidence=inquiry.evidence, result=found, wish=wish, left=left, rule=rule)
    if belief is None or pair is None:
        text = "the budget was spent before the two ends could be told apart"
        found = endings.result(inquiry, Status.INCONCLUSIVE, "budget", sentence=text)
        return Standing(evidence=inquiry.evidence, result=found)
    text = f"the budget is spent: {endings.bracket_words(inquiry, pair)}"
    found = endings.result(inquiry, Status.NARROWED, "budget", belief=belief, pair=pair, sentence=text)
    return Standing(evidence=inquiry.evidence, result=found)


def _ended(inquiry: Inquiry, result: TargetResult) -> Standing:
    return Standing(evidence=inquiry.evidence, result=result)


def _halvings(width: int) -> int:
    return math.ceil(math.log2(width)) if width > 1 else 0


def _anchors(inquiry: Inquiry) -> Standing | None:
    """The standing while the ends are not settled; None once the search may begin."""
    ask = inquiry.ask
    for build, end in ((ask.good, "good"), (ask.bad, "bad")):
        cause = _anchor_cause(inquiry, build)
        if cause is not None:
            text = (
                f"the {end} anchor {ask.names[build]} gives no measurement: {cause}; choose another one with --{end}, "
                "or change the suite so that it can be measured"
            )
            return _ended(inquiry, endings.result(inquiry, Status.UNTESTABLE_ANCHOR, cause, sentence=text))
    if inquiry.event:
        return _event_anchors(inquiry)
    good, bad = inquiry.starts.get(ask.good, ()), inquiry.starts.get(ask.bad, ())
    if not good or not bad:
        return _more(inquiry, wanted=(not good, not bad))
    word, found = compare(good, bad, inquiry.scale)
    match word:
        case Ends.REPRODUCED:
            return None
        case Ends.IMPROVED:
            text = endings.improved(inquiry, found)
            return _ended(inquiry, endings.result(inquiry, Status.IMPROVED, None, sentence=text))
        case Ends.NOT_REPRODUCED:
            between = _excursions(inquiry)
            if between is not None:
                return between
            text = endings.not_reproduced(inquiry, found)
            return _ended(inquiry, endings.result(inquiry, Status.NOT_REPRODUCED, None, sentence=text))
        case Ends.MORE:
            more = _more(inquiry, wanted=(True, True))
            if more is not None:
                return more
    reason = "noise" if min(len(good), len(bad)) >= MOST_STARTS else "too_few_starts"
    text = endings.inconclusive(inquiry, found)
    return _ended(inquiry, endings.result(inquiry, Status.INCONCLUSIVE, reason, sentence=text))


def _event_anchors(inquiry: Inquiry) -> Standing | None:
    ask = inquiry.ask
    good, bad = inquiry.survivals.get(ask.good, ()), inquiry.survivals.get(ask.bad, ())
    floor = inquiry.target.floor
    ends = compare_events(good, bad, 0.0 if floor.relative else floor.value)
    match ends.word:
        case "reproduced":
            return None
        case "not_reproduced":
            between = _excursions(inquiry)
            if between is not None:
                return between
            text = endings.events_not_reproduced(inquiry, len(bad))
            return _ended(inquiry, endings.result(inquiry, Status.NOT_REPRODUCED, None, sentence=text))
        case "improved":
            text = "the bad end fails less often than the good end"
            return _ended(inquiry, endings.result(inquiry, Status.IMPROVED, None, sentence=text))
        case "more":
            more = _more(inquiry, wanted=(ends.want_good, ends.want_bad))
            if more is not None:
                return more
    text = f"{len(good)}+{len(bad)} starts of the two ends fail too much alike to search by"
    reason = "noise" if ends.word == "inconclusive" else "too_few_starts"
    return _ended(inquiry, endings.result(inquiry, Status.INCONCLUSIVE, reason, sentence=text))


def _more(inquiry: Inquiry, *, wanted: tuple[bool, bool]) -> Standing | None:
    """The next start of an end: A Z | Z A | A Z, so that a linear drift falls on both ends alike."""
    ask = inquiry.ask
    pair = (ask.good, ask.bad)
    able = [build for build, want in zip(pair, wanted, strict=True) if want and inquiry.can_start(build)]
    if not able:
        return None
    counts = [len(inquiry.evidence.values(build)) for build in pair]
    if len(able) == 2:
        even = counts[0] == counts[1]
        build = (pair[counts[0] % 2]) if even else pair[0 if counts[0] < counts[1] else 1]
    else:
        build = able[0]
    have = len(inquiry.evidence.observations.get(build, ()))
    end = "good" if build == ask.good else "bad"
    left = max(2 - sum(counts), 1) + _halvings(ask.bad - ask.good) + 1 + CONFIRMING
    wish = Wish(
        build=build,
        purpose="anchor",
        why=f"start {have + 1} of the {end} anchor {ask.names[build]}",
        pair=pair,
        gains=dict.fromkeys(able, 0.5) | {build: 1.0},
        wants=frozenset(able),
    )
    return _open(inquiry, wish, left=left)


def _scan(inquiry: Inquiry) -> Wish | None:
    """A sentinel that was not looked at yet, or its nearest neighbour that can be; None once all were."""
    ask = inquiry.ask
    if not ask.scan:
        return None
    reach = max((ask.bad - ask.good) // (2 * (len(ask.scan) + 1)), 0)
    pending = []
    for sentinel in ask.scan:
        near = sorted(
            range(max(sentinel - reach, ask.good + 1), min(sentinel + reach + 1, ask.bad)),
            key=lambda b: (abs(b - sentinel), b),
        )
        able = [build for build in near if not inquiry.untestable(build)]
        if able and not inquiry.tested(able[0]):
            pending.append(able[0])
    pending = list(dict.fromkeys(pending))
    if not pending:
        return None
    return Wish(
        build=pending[0],
        purpose="scan",
        why=f"{ask.names[pending[0]]} is one of {len(ask.scan)} builds to look at whatever else is known",
        pair=(ask.good, ask.bad),
        gains=dict.fromkeys(pending, 0.5) | {pending[0]: 1.0},
        wants=frozenset(pending),
    )


def _excursions(inquiry: Inquiry) -> Standing | None:
    """Where the ends are alike and a scan was asked for: its wish, or what it found between them."""
    ask = inquiry.ask
    wish = _scan(inquiry)
    if wish is not None:
        return None if ask.spent else _open(inquiry, wish, left=len(wish.wants))
    seen = [b for b in range(ask.good + 1, ask.bad) if inquiry.evidence.values(b) and b not in inquiry.marks]
    if not ask.scan or not seen:
        return None
    found: list[int] = []
    what = "it dies there"
    for build in seen:
        sure, doubted, words = _apart(inquiry, build)
        if sure:
            found.append(build)
            what = words
        elif doubted and inquiry.can_start(build) and not ask.spent:
            why = f"the ends are alike and {ask.names[build]} is not: it is started again"
            again = Wish(
                build=build,
                purpose="recheck",
                why=why,
                pair=(ask.good, ask.bad),
                gains={build: 1.0},
                wants=frozenset({build}),
            )
            return _open(inquiry, again, left=1)
    if not found:
        return None
    text = endings.excursion(inquiry, found, what)
    result = endings.result(inquiry, Status.INCONSISTENT, None, sentence=text)
    return _ended(inquiry, endings.with_excursions(inquiry, result, found))


def _apart(inquiry: Inquiry, build: int) -> tuple[bool, bool, str]:
    """Whether a build is surely worse than both ends, whether it may be and was looked at too little, and by how much."""
    ask = inquiry.ask
    if inquiry.event:
        dead = sum(value != 1.0 for value in inquiry.survivals[build])
        return dead >= 2, dead == 1 and len(inquiry.survivals[build]) < EXCURSION_STARTS, "it dies there"
    both = (*inquiry.starts[ask.good], *inquiry.starts[ask.bad])
    found = difference(both, inquiry.starts[build], inquiry.scale)
    count = len(inquiry.starts[build])
    large = found.drop > LARGE_ENOUGH * inquiry.scale.floor
    sure = large and count >= EXCURSION_STARTS and found.t > quantile(0.995, found.df)
    doubted = large and count < EXCURSION_STARTS and found.t > quantile(0.95, found.df)
    return sure, doubted, inquiry.scale.words(found.drop, inquiry.target.metric.unit)


def _left(wish: Wish, belief: Fit | Survival) -> int:
    if wish.purpose == "confirm":
        return 1 + (wish.gains.get(wish.pair[0], 0) > 0 and wish.gains.get(wish.pair[1], 0) > 0)
    mass = belief.posterior[belief.posterior > 1e-12]
    bits = float(-(mass * np.log2(mass)).sum())
    return math.ceil(bits) + 1 + CONFIRMING


def stand(ask: Question, evidence: Evidence, elsewhere: Floats | None = None) -> Standing:
    """Where one target stands, and what it would like to know next; `elsewhere` as in `Inquiry`."""
    inquiry = Inquiry(ask, evidence, elsewhere)
    unsettled = _anchors(inquiry)
    if unsettled is not None:
        return unsettled
    belief = inquiry.belief(ask.good, ask.bad)
    scanning = _scan(inquiry)
    if scanning is not None:
        return _open(inquiry, scanning, belief=belief, left=_left(scanning, belief))
    pieces = inquiry.resolve(ask.good, ask.bad)
    wish = next((piece for piece in pieces if isinstance(piece, Wish)), None)
    if wish is not None:
        return _open(inquiry, wish, belief=belief, left=_left(wish, belief))
    found = [piece for piece in pieces if isinstance(piece, Found)]
    for piece in pieces:
        if isinstance(piece, Contradiction):
            pair = (found[0].last, found[0].first) if found else inquiry.bracket(ask.good, ask.bad, belief)
            text = endings.contradicted(inquiry, piece)
            return _ended(
                inquiry,
                endings.result(inquiry, Status.INCONSISTENT, None, belief=belief, pair=pair, sentence=text),
            )
    if not found:
        found = [Found(last=ask.good, first=ask.bad, chance=1.0, reason="noise", detail="no single step stands out")]
    one = found[0]
    if one.reason == "noise" and isinstance(belief, Fit):
        ends = inquiry.between(ask.good, ask.bad, belief)
        if ends.t < quantile(0.995, ends.df):
            few = (len(inquiry.starts[end]) < EQUIVALENCE_STARTS for end in (ask.good, ask.bad))
            more = _more(inquiry, wanted=(next(few), next(few)))
            if more is not None:
                return more
            # all starts together no longer say that the ends differ: the first ones were luck
            text = endings.inconclusive(inquiry, ends)
            return _ended(inquiry, endings.result(inquiry, Status.INCONCLUSIVE, "noise", sentence=text))
    status = Status.CONFIRMED if one.reason is None else Status.NARROWED
    text = endings.located(inquiry, found, belief)
    return _ended(
        inquiry,
        endings.result(
            inquiry, status, one.reason, belief=belief, pair=(one.last, one.first), sentence=text, found=found
        ),
    )


# -------------------------------------------------------------------------- all targets


def _watched(standing: Standing) -> TargetResult:
    """The result of a watch target: what shared starts happen to say, without a claim to completeness."""
    result = standing.result
    if standing.need is None and result.status is not Status.CONFIRMED:
        return result
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


def _first_bad(ask: Question, evidence: Evidence) -> Floats | None:
    """How likely each build is the first bad one of a target by its own starts; None where its ends are not known."""
    inquiry = Inquiry(ask, evidence)
    if not evidence.values(ask.good) or not evidence.values(ask.bad):
        return None
    belief = inquiry.belief(ask.good, ask.bad)
    if isinstance(belief, Fit) and belief.effect < LARGE_ENOUGH * inquiry.scale.floor:
        return None
    found = np.zeros(len(ask.names))
    found[ask.good + 1 : ask.bad + 1] = belief.posterior
    return found


def standings(ask: Question) -> tuple[Standing, ...]:
    """Every target's standing, in suite order. What one target found tells the others where to look first."""
    searched = [e for e in ask.evidence if e.target.role is TargetRole.BISECT]
    if len(searched) < 2:
        return tuple(stand(ask, evidence) for evidence in ask.evidence)
    found = {evidence.target.name: _first_bad(ask, evidence) for evidence in searched}

    def others(name: str) -> Floats | None:
        known = [mass for other, mass in found.items() if other != name and mass is not None]
        return sum(known[1:], start=known[0]) / len(known) if known else None

    return tuple(stand(ask, evidence, others(evidence.target.name)) for evidence in ask.evidence)


def _choose(ask: Question, opened: list[Standing]) -> tuple[int, str, Standing]:
    """The build and server whose start tells the open targets most for its cost; ends come before all else."""
    first = [s for s in opened if s.wish and s.wish.purpose == "anchor"] or opened
    scores: dict[tuple[str, int], float] = {}
    for standing in first:
        assert standing.wish is not None
        for build, gain in standing.wish.gains.items():
            key = (standing.evidence.server, build)
            scores[key] = scores.get(key, 0.0) + gain / ask.cost(build, key[0])
    wished = [(s.evidence.server, s.wish.build) for s in first if s.wish]
    servers = {server: number for number, (server, _) in enumerate(reversed(wished))}
    ranked = set(wished) | set(scores)
    most = max(scores.values())
    server, build = max(ranked, key=lambda key: (round(scores[key] / most, 9), key in wished, servers[key[0]], -key[1]))
    asking = [s for s in first if s.evidence.server == server and s.wish and build in s.wish.gains]
    return build, server, max(asking, key=lambda s: s.wish.gains[build] if s.wish else 0.0)


def decide(ask: Question, scenarios_of: Mapping[str, tuple[str, ...]]) -> Probe | None:
    """The next start, or None when every bisect target has its status.

    Of all builds and servers the one that tells the open targets most over its cost, suite order on ties. The start
    measures every open target of that server that could use a value of this build, and the watch targets that have
    too few there. `scenarios_of` gives each server's scenarios in the order inside a start.
    """
    found = standings(ask)
    opened = [s for s in found if s.evidence.target.role is TargetRole.BISECT and s.wish is not None]
    if not opened:
        return None
    build, server, chosen = _choose(ask, opened)
    assert chosen.wish is not None
    sharing = [s for s in opened if s.evidence.server == server and s.wish and (build in s.wish.wants or s is chosen)]
    wanted: list[Target] = [s.evidence.target for s in sharing]
    reps = {s.evidence.target.name: s.rule for s in sharing}
    ends = build in (ask.good, ask.bad)
    before = min(len(s.evidence.observations.get(build, ())) for s in sharing)
    enough = min(WATCHED_STARTS, before + 1) if ends else 1 if chosen.wish.purpose == "confirm" else 0
    for standing in found:
        evidence = standing.evidence
        if evidence.target.role is TargetRole.WATCH and evidence.server == server:
            seen = len(evidence.observations.get(build, ()))
            if seen < enough:
                wanted.append(evidence.target)
                reps[evidence.target.name] = CALIBRATING if ends else ONE_REP
    needed = {target.scenario for target in wanted}
    why = chosen.wish.why
    if build != chosen.wish.build:
        why = f"{ask.names[build]} tells the open targets most for its cost"
    return Probe(
        build=ask.plan_index(build),
        server=server,
        scenarios=tuple(name for name in scenarios_of[server] if name in needed),
        targets=tuple(target.name for target in wanted),
        purpose=chosen.wish.purpose,
        why=f"{chosen.evidence.target.name}: {why}",
        confirms={
            s.evidence.target.name: (ask.plan_index(s.wish.confirming[0]), ask.plan_index(s.wish.confirming[1]))
            for s in sharing
            if s.wish and s.wish.confirming and build in s.wish.confirming
        },
        reps=reps,
    )


def starts_left_by_server(ask: Question) -> dict[str, int]:
    """The starts expected still to come: each server's longest search, and a confirmation for each other target."""
    by_server: dict[str, list[int]] = {}
    for standing in standings(ask):
        if standing.evidence.target.role is TargetRole.BISECT and standing.wish is not None:
            by_server.setdefault(standing.evidence.server, []).append(standing.left)
    return {server: max(left) + (CONFIRMING + 1) * (len(left) - 1) for server, left in by_server.items()}


def starts_left(ask: Question) -> int:
    """The starts expected still to come, on all servers together."""
    return sum(starts_left_by_server(ask).values())


def results(state: RunState) -> tuple[TargetResult, ...]:
    """Where each target of a run stands now, in suite order."""
    ask = question(state)
    return tuple(
        endings.in_plan_order(
            _watched(standing) if standing.evidence.target.role is TargetRole.WATCH else standing.result, ask
        )
        for standing in standings(ask)
    )


def worst_case_starts(plan: Plan) -> dict[str, int]:
    """Starts of each server if nothing can be shared, every build can be tested and three starts an end are needed."""
    halvings = _halvings(abs(plan.bad - plan.good))
    counts: dict[str, int] = {}
    for target in plan.suite.targets:
        if target.role is TargetRole.BISECT:
            server = plan.suite.server_of(target)
            anchors = 6 if server not in counts else 0
            counts[server] = counts.get(server, 0) + anchors + halvings + 1 + CONFIRMING
    return counts
