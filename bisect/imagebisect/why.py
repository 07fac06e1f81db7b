"""Why each start was made and each end was said: a run's events, replayed. Pure.

Every decision is a function of the events before it, so the reasons are found again afterwards, exactly as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from imagebisect import budget
from imagebisect.domain import TargetResult, TargetRole
from imagebisect.evidence import Question, observe, question
from imagebisect.grounds import (
    Belief,
    Grounds,
    believed,
    can_believe,
    grounds,
    odds,
    part_of,
    reps_words,
    tests_of,
    verdict_rule,
    weights,
)
from imagebisect.inquiry import Inquiry
from imagebisect.outcome import is_transient
from imagebisect.scenario import MetricKind
from imagebisect.search import Probe, Standing, decide, results, standings, starts_left_by_server
from imagebisect.session import host_check, scenarios_of, seconds_left
from imagebisect.state import (
    BudgetSet,
    BuildPresent,
    Event,
    HostBlamed,
    HostCleared,
    Marked,
    PullEnded,
    Resumed,
    RunFinished,
    RunState,
    RunStopped,
    StartEnded,
    StartIntended,
    StartRecord,
    apply,
    fold,
)
from imagebisect.stories import (
    BuildStart,
    BuildStory,
    Candidate,
    Choice,
    EndStory,
    Explanation,
    NextStart,
    Note,
    Served,
    StartStory,
)

MOST_CANDIDATES = 3
"""Candidates for a start that are shown, the winner first."""


# ------------------------------------------------------------------- one moment


@dataclass(frozen=True)
class _Moment:
    """The run between two events, looked at only where somebody asks."""

    state: RunState
    cache: dict[str, Grounds] = field(default_factory=dict)

    @cached_property
    def ask(self) -> Question:
        return question(self.state)

    @cached_property
    def standings(self) -> dict[str, Standing]:
        return {one.evidence.target.name: one for one in standings(self.ask)}

    @cached_property
    def probe(self) -> Probe | None:
        return host_check(self.state) or decide(self.ask, scenarios_of(self.state.plan))

    def grounds(self, target: str) -> Grounds:
        if target not in self.cache:
            self.cache[target] = grounds(self.ask, self.standings[target])
        return self.cache[target]

    def name(self, build: int) -> str:
        return self.state.plan.builds[build].name


def _open(moment: _Moment) -> list[Standing]:
    return [s for s in moment.standings.values() if s.wish is not None and s.evidence.target.role is TargetRole.BISECT]


def candidates(moment: _Moment) -> list[Candidate]:
    """Every start that could be made now, best first; only ends while one of them is asked for."""
    ask, opened = moment.ask, _open(moment)
    first = [s for s in opened if s.wish and s.wish.purpose == "anchor"] or opened
    gains: dict[tuple[str, int], dict[str, float]] = {}
    estimated = {s.evidence.target.name for s in first if s.wish and s.wish.purpose == "search"}
    for standing in first:
        assert standing.wish is not None
        for build, gain in standing.wish.gains.items():
            gains.setdefault((standing.evidence.server, build), {})[standing.evidence.target.name] = gain
    found = []
    for (server, build), by_target in gains.items():
        cost = ask.cost(build, server)
        found.append(
            Candidate(
                build=ask.names[build],
                server=server,
                gain=by_target,
                estimated=bool(estimated & set(by_target)),
                cost_s=cost if ask.runs else None,
                score=sum(by_target.values()) / cost,
            )
        )
    return sorted(found, key=lambda one: (-round(one.score, 12), ask.names.index(one.build)))


def _choice(moment: _Moment, build: str, server: str, purpose: str) -> Choice | None:
    if purpose == "host_check":
        return None
    found = candidates(moment)
    won = next((one for one in found if (one.build, one.server) == (build, server)), None)
    others = [one for one in found if one is not won]
    shown = tuple(([won] if won else []) + others[: MOST_CANDIDATES - (won is not None)])
    probe, differs = moment.probe, None
    if probe is None or (moment.name(probe.build), probe.server, probe.purpose) != (build, server, purpose):
        now = f"{moment.name(probe.build)} on {probe.server} ({probe.purpose})" if probe else "nothing more"
        differs = f"this version of bisect would start {now}"
    return Choice(candidates=shown, count=len(found), because=_because(won, others, purpose), differs=differs)


def _because(won: Candidate | None, others: list[Candidate], purpose: str) -> str:
    if won is None:
        return "no open target asks for it now"
    if not others:
        return "the only start that was asked for"
    best = others[0]
    if purpose == "anchor":
        return "the ends come before all else"
    if won.score > best.score * (1 + 1e-9):
        cheaper = won.cost_s is not None and best.cost_s is not None and won.cost_s < best.cost_s
        more = sum(won.gain.values()) > sum(best.gain.values()) * (1 + 1e-9)
        how = "" if more or not cheaper else ": it costs less"
        shared = f", for {len(won.gain)} targets at once" if len(won.gain) > 1 else ""
        return f"it tells most for its cost{shared}{how}"
    if won.score < best.score * (1 - 1e-9):
        return "it was asked for first"
    alike = sum(one.score >= won.score * (1 - 1e-9) for one in others)
    return f"{alike} other{'s tell' if alike > 1 else ' tells'} as much for the cost"


# ---------------------------------------------------------------------- one start


def _pair_names(moment: _Moment, pair: tuple[int, int] | None) -> tuple[str, str] | None:
    return (moment.name(pair[0]), moment.name(pair[1])) if pair else None


def _purpose(moment: _Moment, intended: StartIntended, standing: Standing) -> str:
    """What a target asked of a start, by its own wish."""
    name, wish = standing.evidence.target.name, standing.wish
    if name in intended.confirms:
        return "confirm"
    if intended.purpose == "host_check":
        return "host_check"
    if standing.evidence.target.role is TargetRole.WATCH:
        return "watch"
    names = moment.ask.names
    build = moment.name(intended.build)
    if wish is None or not (build in {names[b] for b in wish.wants} or names[wish.build] == build):
        return "along"
    return wish.purpose


def _served(moment: _Moment, intended: StartIntended) -> tuple[Served, ...]:
    """The targets whose scenario a start runs, with what is known of each before it."""
    found = []
    for name, standing in moment.standings.items():
        target = standing.evidence.target
        if standing.evidence.server != intended.server or target.scenario not in intended.scenarios:
            continue
        asks = standing.wish is not None and moment.ask.names[standing.wish.build] == moment.name(intended.build)
        found.append(
            Served(
                target=name,
                purpose=_purpose(moment, intended, standing),
                unit=target.metric.unit,
                event=target.metric.kind is MetricKind.EVENT,
                asked=standing.wish.why if standing.wish and asks else None,
                confirms=_pair_names(moment, intended.confirms.get(name)),
                reps_rule=reps_words(standing.rule, target.metric.unit),
                before=moment.grounds(name),
            )
        )
    return tuple(found)


def _told(before: _Moment, moment: _Moment, number: int, served: Served) -> Served:
    """What a start that is over did for a target; `before` is the run when it was intended, `moment` after it."""
    standing = moment.standings[served.target]
    target = standing.evidence.target
    start = moment.state.starts[number - 1]
    seen = observe(start, target, number)
    after = moment.grounds(served.target)
    if seen is None:
        return replace(served, after=after, says_nothing=True)
    part = part_of(before.ask, before.standings[served.target]) or part_of(moment.ask, standing)
    weight = then = was = None
    inquiry = Inquiry(moment.ask, standing.evidence)
    if part is not None and can_believe(inquiry, part):
        weight = weights(inquiry, part).get(number)
        then = believed(inquiry, part)
        was = _chance(before, served.target, part, then)
    return replace(
        served,
        after=after,
        value=seen.value,
        reps=len(seen.reps),
        cause=seen.cause,
        weight=weight,
        together=served.event,
        weight_words=odds(weight) if weight is not None else None,
        then=then,
        was=was,
    )


def _chance(before: _Moment, target: str, part: tuple[int, int], then: Belief) -> float | None:
    """The chance that a belief's likeliest pair had before; None while the ends were not known to differ."""
    inquiry = Inquiry(before.ask, before.standings[target].evidence)
    if before.grounds(target).belief is None or not then.pairs or not can_believe(inquiry, part):
        return None
    names, top = before.ask.names, then.pairs[0]
    return inquiry.belief(*part).mass(names.index(top.good), names.index(top.bad))


def _outcome(start: StartRecord) -> str:
    return "void" if start.void else start.outcome or "running"


def _attempt(state: RunState, intended: StartIntended) -> int:
    """How many starts of the same kind in a row failed for a transient cause just before."""
    count = 0
    for start in reversed(state.starts):
        same = (start.intended.build, start.intended.server) == (intended.build, intended.server)
        if not same or start.failure is None or not is_transient(start.failure.cause):
            break
        count += 1
    return count


def _story(moment: _Moment, intended: StartIntended) -> StartStory:
    """A start as it was intended, with the run as it was before."""
    build = moment.name(intended.build)
    return StartStory(
        number=len(moment.state.starts) + 1,
        start_id=intended.start_id,
        build=build,
        server=intended.server,
        purpose=intended.purpose,
        why=intended.why,
        choice=_choice(moment, build, intended.server, intended.purpose),
        attempt=_attempt(moment.state, intended),
        outcome="running",
        cause=None,
        message=None,
        seconds=0.0,
        targets=_served(moment, intended),
    )


def _over(story: StartStory, before: _Moment, moment: _Moment) -> StartStory:
    """The same once it is over; `moment` is the run right after it."""
    told = tuple(_told(before, moment, story.number, served) for served in story.targets)
    return replace(story, targets=told)


def _last_word(story: StartStory, state: RunState) -> StartStory:
    """How a start ended, as the whole run has it: the host may have been blamed for it later."""
    start = state.starts[story.number - 1]
    failure = start.failure or next((m.failure for m in start.measurements if m.failure is not None), None)
    targets = story.targets
    if start.void:
        targets = tuple(
            replace(one, says_nothing=True, value=None, weight=None, weight_words=None, then=None) for one in targets
        )
    return replace(
        story,
        outcome=_outcome(start),
        cause=failure.cause if failure else None,
        message=failure.message if failure else None,
        seconds=start.seconds,
        targets=targets,
    )


# ------------------------------------------------------------------------- the run


def _note(moment: _Moment, event: Event) -> tuple[str, str] | None:
    """(kind, words) of an event that is no start's and that decisions rest on."""
    match event:
        case Marked():
            said = f"set to {event.verdict.value} by hand" if event.verdict else "taken back"
            return "marked", f"the verdict of {moment.name(event.build)} for {event.target} was {said}"
        case HostBlamed():
            return "host_blamed", f"{event.message}; void: starts {', '.join(event.void_start_ids)}"
        case HostCleared():
            return "host_cleared", "the last good build measured again: the failures before it stand"
        case PullEnded():
            return "pull_failed", f"{moment.name(event.build)} cannot be had: {event.failure.message}"
        case Resumed():
            cut = [s.intended.start_id for s in moment.state.starts if s.outcome is None]
            lost = f"; cut short: start {', '.join(cut)}" if cut else ""
            return "resumed", f"went on in a new process at {event.at}{lost}"
        case RunStopped():
            return "stopped", f"stopped at {event.at}: {event.message}"
        case BudgetSet():
            return "budget", f"the budget is {budget.words(event.budget) or 'without limit'} from here on"
        case RunFinished():
            return "finished", f"finished at {event.at}"
        case _:
            return None


@dataclass
class _Settled:
    """When each target got the status that it has, and by what."""

    seen: dict[str, tuple[object, ...]] = field(default_factory=dict)
    by: dict[str, tuple[int, str]] = field(default_factory=dict)

    def look(self, moment: _Moment, what: str) -> None:
        for name, standing in moment.standings.items():
            found = standing.result
            now = (found.status, found.reason, found.last_good, found.first_bad)
            if self.seen.get(name) != now:
                self.seen[name] = now
                self.by[name] = (len(moment.state.starts), what)


_TELLING = (StartEnded, Marked, HostBlamed, PullEnded, Resumed, BudgetSet)
"""Events after which a target may have another status."""


def _what(moment: _Moment, event: Event, said: tuple[str, str] | None) -> str:
    """What an event is called where it settles a target."""
    if isinstance(event, StartEnded):
        spent = ", which spent the budget" if moment.ask.spent else ""
        start = moment.state.start(event.start_id)
        number = moment.state.starts.index(start) + 1
        return f"start {number} of {moment.name(start.intended.build)} on {start.intended.server}{spent}"
    return said[1] if said else "an event"


def explain(events: Iterable[Event]) -> Explanation:
    """Every decision of a search, from its events. ValueError for a run that is no search."""
    stream = iter(events)
    state = fold([next(stream)])
    if state.created.purpose != "search":
        raise ValueError(f"{state.created.run_id} is a {state.created.purpose}: it decides nothing")
    stories: dict[str, StartStory] = {}
    begun: dict[str, _Moment] = {}
    notes: list[Note] = []
    settled = _Settled()
    moment = decided = _Moment(state)
    for event in stream:
        said = _note(moment, event)
        if said is not None:
            notes.append(Note(after=len(moment.state.starts), kind=said[0], text=said[1]))
        if isinstance(event, StartIntended):
            stories[event.start_id] = _story(decided, event)
            begun[event.start_id] = decided
        before = moment
        moment = _Moment(apply(moment.state, event))
        if not isinstance(event, BuildPresent):
            # a build is pulled after it was chosen, and what that costs is not known before
            decided = moment
        over = [event.start_id] if isinstance(event, StartEnded) else []
        if isinstance(event, Resumed):
            over = [s.intended.start_id for s in before.state.starts if s.outcome is None]
        for start_id in over:
            if start_id in stories:
                stories[start_id] = _over(stories[start_id], begun.pop(start_id), moment)
        if isinstance(event, _TELLING):
            settled.look(moment, _what(moment, event, said))
    used = budget.used(moment.state)
    given = moment.state.budget
    spent = f"{used.starts} starts, {used.hours:.2g} h"
    return Explanation(
        run=state.created.run_id,
        find=state.created.options.find,
        good=moment.name(moment.state.plan.good),
        bad=moment.name(moment.state.plan.bad),
        scan=tuple(moment.ask.names[build] for build in sorted(moment.ask.scan, key=moment.ask.plan_index)),
        budget_given=budget.words(given),
        budget_used=f"{spent}, {used.gpu_hours:.2g} GPU hours" if used.gpu_hours else spent,
        starts=tuple(_last_word(story, moment.state) for story in stories.values()),
        notes=tuple(notes),
        ends=_ends(moment, settled),
        builds=_builds(moment),
        next=_next(moment),
    )


def _ends(moment: _Moment, settled: _Settled) -> tuple[EndStory, ...]:
    found = []
    for final in results(moment.state):
        standing = moment.standings[final.target]
        watched = standing.evidence.target.role is TargetRole.WATCH
        after, by = settled.by.get(final.target, (None, None))
        over = standing.result.status is not None and not watched
        found.append(
            EndStory(
                target=final.target,
                role=standing.evidence.target.role.value,
                status=final.status.value if final.status else None,
                reason=final.reason,
                sentence=final.sentence,
                settled_after=after if over else None,
                settled_by=by if over else None,
                tests=() if watched else tests_of(moment.ask, standing.evidence, standing.result),
                grounds=moment.grounds(final.target),
            )
        )
    return tuple(found)


def _builds(moment: _Moment) -> tuple[BuildStory, ...]:
    """Every build and target that something is known of, in the plan's order."""
    ask = moment.ask
    found = []
    for build in moment.state.plan.builds:
        place = ask.plan_index(build.index)
        for standing in moment.standings.values():
            evidence, result = standing.evidence, standing.result
            summary = result.builds[place]
            seen = evidence.observations.get(place, ())
            if not seen and not summary.marked:
                continue
            whole = (ask.good, ask.bad)
            known = result.first_bad is not None and evidence.target.metric.kind is not MetricKind.EVENT
            by_start = weights(Inquiry(ask, evidence), whole) if known else {}
            found.append(
                BuildStory(
                    build=build.name,
                    target=evidence.target.name,
                    unit=evidence.target.metric.unit,
                    verdict=_verdict(result, place),
                    marked=summary.marked,
                    rule=verdict_rule(ask, evidence, result, summary),
                    starts=tuple(
                        BuildStart(
                            number=one.at,
                            value=one.value,
                            cause=one.cause,
                            weight=by_start.get(one.at) if one.value is not None else None,
                            weight_words=odds(by_start[one.at])
                            if one.value is not None and one.at in by_start
                            else None,
                            confirms=(ask.names[one.confirming[0]], ask.names[one.confirming[1]])
                            if one.confirming
                            else None,
                        )
                        for one in seen
                    ),
                )
            )
    return tuple(found)


def _verdict(result: TargetResult, place: int) -> str:
    return result.builds[place].verdict.value


def _next(moment: _Moment) -> NextStart | None:
    state, probe = moment.state, moment.probe
    if state.finished is not None or probe is None:
        return None
    left = starts_left_by_server(moment.ask)
    build = moment.name(probe.build)
    return NextStart(
        build=build,
        server=probe.server,
        purpose=probe.purpose,
        why=probe.why,
        choice=_choice(moment, build, probe.server, probe.purpose),
        starts_left=sum(left.values()),
        seconds_left=seconds_left(state, left),
    )
