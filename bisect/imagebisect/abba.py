"""A controlled comparison: which start comes next, and the loop that does them.

Each server's starts alternate A B B A A B B A ..., so that a steady drift of the host falls on both sides. The next
start is a function of the state; one that was cut short is done again in its place, whatever it had measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from imagebisect.comparison import (
    NOT_MEASURED,
    Asked,
    Compared,
    Side,
    as_target,
    asked_by,
    asked_by_default,
    compare_all,
)
from imagebisect.domain import Failure
from imagebisect.errors import EnvironmentFault, ExitCode
from imagebisect.evidence import observe
from imagebisect.ledger import utc_now
from imagebisect.outcome import Cause, is_own, is_transient, stops
from imagebisect.progress import Decided, Noted
from imagebisect.scenario import scenario_order
from imagebisect.search import Probe
from imagebisect.session import SUSPICIOUS_IN_A_ROW, scenarios_of, seconds_left, suspicion
from imagebisect.state import CompareSpec, HostBlamed, RunFinished, RunState, StartRecord

if TYPE_CHECKING:
    from imagebisect.session import Session

_MEMORY = (Cause.OOM_AT_START, Cause.OOM_AT_REQUEST)


def order(starts: int) -> str:
    """The sides of one server's starts in order, `starts` of each: `ABBAAB` for three."""
    return "".join("ABBA"[slot % 4] for slot in range(2 * starts))


def in_words(state: RunState) -> str:
    """The order of each server's starts as reports have it: `A B B A`."""
    return " ".join(order(spec_of(state).starts))


def spec_of(state: RunState) -> CompareSpec:
    """What the comparison was told; ValueError for a run that is none."""
    if state.created.compare is None:
        raise ValueError(f"{state.created.run_id} is no comparison")
    return state.created.compare


def counted(state: RunState, server: str) -> tuple[StartRecord, ...]:
    """A server's starts that stand: over, not cut short, not failed for a transient or a host's cause."""
    return tuple(start for start in state.starts if start.intended.server == server and _stands(start))


def _stands(start: StartRecord) -> bool:
    if start.void or start.outcome not in ("measured", "failed"):
        return False
    return start.failure is None or not (is_transient(start.failure.cause) or stops(start.failure.cause))


def hopeless(state: RunState, server: str) -> Failure | None:
    """Why more starts of a server would show nothing: a build that cannot run it at all fails each time alike."""
    for failure in state.pull_failures.values():
        return failure
    for start in counted(state, server):
        failed = start.failure
        if failed is not None and start.boot_s is None and is_own(failed.cause) and failed.cause not in _MEMORY:
            return failed
    return None


def left_of(state: RunState, server: str) -> int:
    """Starts that a server still gets."""
    if not scenarios_of(state.plan)[server] or hopeless(state, server) is not None:
        return 0
    return max(0, 2 * spec_of(state).starts - len(counted(state, server)))


def starts_left(state: RunState) -> int:
    """Starts that the comparison still wants."""
    return sum(left_of(state, server.name) for server in state.plan.suite.servers)


def next_start(state: RunState) -> Probe | None:
    """The next start, server by server; None once there is none."""
    spec = spec_of(state)
    sides = order(spec.starts)
    for server in state.plan.suite.servers:
        if not left_of(state, server.name):
            continue
        slot = len(counted(state, server.name))
        return Probe(
            build=spec.a if sides[slot] == "A" else spec.b,
            server=server.name,
            scenarios=scenarios_of(state.plan)[server.name],
            targets=(),
            purpose="compare",
            why=f"{sides[slot]}, start {slot + 1} of {len(sides)}",
        )
    return None


def host_doubt(state: RunState) -> tuple[str, ...]:
    """The ids of the last starts when they make the host the suspect; empty when they do not.

    Both builds fail in a row for causes that are not plainly their own, and one of them worked on that server before.
    """
    recent = [start for start in state.starts[state.cleared_at :] if _stands(start)]
    tail: list[StartRecord] = []
    for start in reversed(recent):
        if suspicion(start) is None or (tail and start.intended.server != tail[0].intended.server):
            break
        tail.append(start)
    builds = {start.intended.build for start in tail}
    if len(tail) <= SUSPICIOUS_IN_A_ROW or len(builds) < 2:
        return ()
    worked = any(
        suspicion(start) is None and start.outcome == "measured" for start in counted(state, tail[0].intended.server)
    )
    return tuple(start.intended.start_id for start in reversed(tail)) if worked else ()


# ------------------------------------------------------------------------- the answer


def asked_of(state: RunState) -> tuple[Asked, ...]:
    """What is compared: every target in the suite's order, then every metric that no target names."""
    suite = state.plan.suite
    targets = tuple(asked_by(target) for target in suite.targets)
    named = {(asked.scenario, asked.metric.name) for asked in targets}
    rest = (
        asked_by_default(scenario, metric)
        for scenario in sorted(suite.scenarios, key=scenario_order)
        for metric in scenario.metrics()
        if (scenario.name, metric.name) not in named
    )
    return (*targets, *rest)


def side_of(state: RunState, asked: Asked, build: int) -> Side:
    """What one build's starts say of a metric."""
    values, causes = [], []
    server = state.plan.suite.scenario(asked.scenario).on
    if build in state.pull_failures:
        causes.append(state.pull_failures[build].cause)
    for start in counted(state, server):
        if start.intended.build != build:
            continue
        seen = observe(start, as_target(asked))
        if seen is None:
            continue
        if seen.value is not None:
            values.append(seen.value)
            continue
        measured = next((m for m in start.measurements if m.scenario == asked.scenario), None)
        missing = measured is not None and measured.failure is None
        causes.append(NOT_MEASURED if missing else str(seen.cause))
    return Side(values=tuple(values), causes=tuple(causes))


def compared(state: RunState) -> tuple[tuple[Compared, ...], tuple[str, ...]]:
    """The answer for every metric, and the metrics (`scenario.name`) that no start of either build has."""
    spec = spec_of(state)
    questions: list[tuple[Asked, Side, Side]] = []
    absent: list[str] = []
    for asked in asked_of(state):
        a, b = side_of(state, asked, spec.a), side_of(state, asked, spec.b)
        nowhere = not a.values and not b.values and {*a.causes, *b.causes} == {NOT_MEASURED}
        if nowhere and asked.target is None:
            absent.append(f"{asked.scenario}.{asked.metric.name}")
        else:
            questions.append((asked, a, b))
    return compare_all(questions), tuple(absent)


def exit_code(state: RunState) -> tuple[ExitCode, str]:
    """What the process should say about a comparison as it stands."""
    if state.stopped is not None and state.finished is None:
        return ExitCode(state.stopped.exit_code), state.stopped.reason
    if any(one.comparable for one in compared(state)[0]):
        return ExitCode.NOTHING_REGRESSED, "compared" if state.finished is not None else "unfinished"
    return ExitCode.NOT_MEASURABLE, "not_measurable" if state.finished is not None else "unfinished"


# --------------------------------------------------------------------------- the loop


def _causes(state: RunState, ids: Iterable[str]) -> str:
    failures = [suspicion(state.start(start_id)) for start_id in ids]
    return ", ".join(dict.fromkeys(failure.cause for failure in failures if failure is not None))


def loop(session: Session) -> None:
    """Every start in its order until none is left. EnvironmentFault when the host is at fault."""
    session.begin()
    session.progress.emit(Noted(text=f"the starts of each server come in the order {in_words(session.state)}"))
    while True:
        session.stop.check()
        suspects = host_doubt(session.state)
        if suspects:
            message = f"both builds fail now ({_causes(session.state, suspects)}) where one worked before"
            session.record(HostBlamed(void_start_ids=suspects, message=message))
            raise EnvironmentFault(
                f"{message}: the host is at fault",
                where=f"starts {', '.join(suspects)}",
                next_step="these starts are taken back; put the host in order (`bisect doctor`), then `bisect resume`",
            )
        probe = next_start(session.state)
        if probe is None:
            break
        left = {server.name: left_of(session.state, server.name) for server in session.state.plan.suite.servers}
        session.progress.emit(
            Decided(
                build=session.state.plan.builds[probe.build].name,
                server=probe.server,
                why=probe.why,
                starts_left=sum(left.values()),
                seconds_left=seconds_left(session.state, left),
            )
        )
        session.do(probe)
        vain = hopeless(session.state, probe.server)
        if vain is not None:
            session.progress.emit(Noted(text=f"no more starts on {probe.server}: {vain.cause}: {vain.message}"))
    done = RunFinished(at=utc_now(), exit_code=ExitCode.NOTHING_REGRESSED)
    if not any(one.comparable for one in compared(session.state)[0]):
        done = RunFinished(at=utc_now(), exit_code=ExitCode.NOT_MEASURABLE)
    session.record(done)
