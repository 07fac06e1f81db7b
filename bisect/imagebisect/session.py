"""The loop: ask the search, make the build present, start it, record, until every target has its status.

The state is a fold over the ledger's events and the next step a function of the state, so a run that was
killed goes on where it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from imagebisect import __version__, ledger, secrets
from imagebisect.domain import (
    Failure,
    Identity,
    Plan,
    SimulatedSource,
    Status,
    TargetResult,
    TargetRole,
    Verdict,
)
from imagebisect.errors import (
    BisectError,
    EnvironmentFault,
    ExitCode,
    Interrupted,
    StartFailed,
    UsageError,
)
from imagebisect.evidence import Question, question
from imagebisect.host import differences, fingerprint, model_fingerprint
from imagebisect.interrupt import StopFlag
from imagebisect.ledger import RunFolder, utc_now
from imagebisect.noise import Noise
from imagebisect.outcome import MAX_RETRIES, Cause, is_own, is_transient, stops
from imagebisect.progress import Decided, Noted, Progress, Pulling, RunBegan
from imagebisect.runtime.base import Runtime
from imagebisect.scenario import scenario_order
from imagebisect.search import Probe, decide, results, starts_left_by_server
from imagebisect.start import Bench, host_now, run_start, tidy
from imagebisect.state import (
    Budget,
    BudgetSet,
    BuildPresent,
    CompareSpec,
    Event,
    HostBlamed,
    HostCleared,
    Marked,
    PullEnded,
    Purpose,
    Resumed,
    RunFinished,
    RunState,
    RunStopped,
    SearchOptions,
    StartRecord,
    apply,
)

SUSPICIOUS_IN_A_ROW = 2
"""Failures in a row that are not plainly a build's own, before the last good build is started again."""

RETRY_WAIT_S = 2.0
"""Seconds before a start is tried again for a transient cause; doubled each time."""


# ------------------------------------------------------------------------ pure helpers


def scenarios_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Each server's scenarios in the order inside a start."""
    ordered = sorted(plan.suite.scenarios, key=scenario_order)
    return {server.name: tuple(s.name for s in ordered if s.on == server.name) for server in plan.suite.servers}


def suspicion(start: StartRecord) -> Failure | None:
    """What in a start casts doubt on the host, or None."""
    failures = [start.failure, *(measurement.failure for measurement in start.measurements)]
    for failure in failures:
        if failure is not None and not is_own(failure.cause) and not is_transient(failure.cause):
            return failure
    return None


def host_check(state: RunState) -> Probe | None:
    """The last good build once more, after failures in a row that no build need be guilty of; None when not due."""
    recent = [start for start in state.starts[state.cleared_at :] if start.outcome not in (None, "interrupted")]
    tail: list[StartRecord] = []
    for start in reversed(recent):
        if suspicion(start) is None:
            break
        tail.append(start)
    if len(tail) < SUSPICIOUS_IN_A_ROW:
        return None
    failed = tail[0].intended
    for start in reversed(state.starts):
        intended = start.intended
        if (
            start.outcome == "measured"
            and not start.void
            and suspicion(start) is None
            and intended.server == failed.server
        ):
            wanted = tuple(scenario for scenario in failed.scenarios if scenario in intended.scenarios)
            name = state.plan.builds[intended.build].name
            return Probe(
                build=intended.build,
                server=intended.server,
                scenarios=wanted,
                targets=(),
                purpose="host_check",
                why=f"{len(tail)} failures in a row: is it the host, where {name} worked before?",
            )
    return None


def _suspects(state: RunState) -> tuple[str, ...]:
    found: list[str] = []
    for start in reversed(state.starts[state.cleared_at :]):
        if start.outcome == "interrupted":
            continue
        if suspicion(start) is None:
            break
        found.append(start.intended.start_id)
    return tuple(reversed(found))


def exit_code_of(found: tuple[TargetResult, ...], roles: dict[str, TargetRole]) -> tuple[ExitCode, str]:
    """The exit code over the bisect targets, first that applies (design: section 5), and its reason in a word."""
    statuses = [result.status for result in found if roles[result.target] is TargetRole.BISECT]
    if Status.CONFIRMED in statuses:
        return ExitCode.CONFIRMED, "confirmed"
    if Status.NARROWED in statuses:
        return ExitCode.NARROWED, "narrowed"
    for status in (Status.INCONSISTENT, Status.INCONCLUSIVE):
        if status in statuses:
            return ExitCode.INCONCLUSIVE, status.value
    if None in statuses:
        return ExitCode.INCONCLUSIVE, "unfinished"
    if Status.UNTESTABLE_ANCHOR in statuses:
        return ExitCode.UNTESTABLE_ANCHOR, "untestable_anchor"
    return ExitCode.NOTHING_REGRESSED, "nothing_regressed"


def exit_code(state: RunState) -> tuple[ExitCode, str]:
    """What the process should say about a run as it stands."""
    if state.stopped is not None and state.finished is None:
        return ExitCode(state.stopped.exit_code), state.stopped.reason
    return exit_code_of(results(state), {target.name: target.role for target in state.plan.suite.targets})


def seconds_left(state: RunState, starts: Mapping[str, int]) -> float | None:
    """Expected seconds of so many more starts by server, from the mean of those that are over; None before the first.

    A server that was not started yet is taken for the mean of the others.
    """
    over: dict[str, list[float]] = {}
    for start in state.starts:
        if start.outcome in ("measured", "failed"):
            over.setdefault(start.intended.server, []).append(start.seconds)
    if not over:
        return None
    means = {server: sum(seconds) / len(seconds) for server, seconds in over.items()}
    overall = sum(means.values()) / len(means)
    return sum(count * means.get(server, overall) for server, count in starts.items())


def secrets_of(plan: Plan) -> tuple[str, ...]:
    """The values that servers get by name, long enough to be secrets, longest first."""
    names = {name for server in plan.suite.servers for name in server.pass_env}
    values = {os.environ[name] for name in names if len(os.environ.get(name, "")) >= secrets.SHORTEST}
    return tuple(sorted(values, key=len, reverse=True))


# ------------------------------------------------------------------------------ the loop


class Session:
    """One process's work on a run. Use `run`, `probe` and `mark`."""

    def __init__(self, folder: RunFolder, state: RunState, *, stop: StopFlag, progress: Progress) -> None:
        from imagebisect import runtime

        self.folder = folder
        self.state = state
        self.stop = stop
        self.progress = progress
        self.runtime: Runtime = runtime.for_builds(state.plan.builds)
        self.present: dict[int, Identity] = {}
        self.secrets = secrets_of(state.plan)
        self.bench = Bench(
            folder=folder, runtime=self.runtime, stop=stop, progress=progress, record=self.record, secrets=self.secrets
        )

    def record(self, event: Event) -> None:
        """Append an event, then fold it in."""
        self.folder.append(event, hide=self.secrets)
        self.state = apply(self.state, event)

    def begin(self) -> None:
        """Check the host, remove what an earlier process of this run left, and say that it goes on."""
        for server in self.state.plan.suite.servers:
            self.runtime.check(server)
        for removed in (*self.runtime.reap(self.folder.run_id), *self.runtime.reap(None)):
            self.progress.emit(Noted(text=f"removed a leftover of a dead run: {removed}"))
        if self.state.starts or self.state.stopped or self.state.identities:
            self.check_same_host()
            for folder in sorted(self.folder.path.glob("starts/*/")):
                tidy(folder, self.secrets)
            self.record(Resumed(at=utc_now()))

    def check_same_host(self) -> None:
        """Refuse to go on where the measurements so far say nothing: another host or driver, or another model."""
        then = self.state.created
        changed = differences(then.host, host_now(self.state.plan, self.folder.path, self.runtime))
        if changed:
            raise UsageError(
                "this is not the host that the run began on; measurements of two hosts are never compared:\n  "
                + "\n  ".join(changed),
                next_step="put it back as it was, go on where it began, or start a new run here",
            )
        model = model_fingerprint(self.state.plan.suite.model)
        if model != then.model_fingerprint:
            raise UsageError(
                "the model folder is not what it was when the run began (config.json, or a file's name or size)",
                next_step="put the model back, or start a new run",
            )

    def make_present(self, build: int) -> Identity | None:
        """Pull a build; None when that is the build's own failure (recorded)."""
        if build in self.present:
            return self.present[build]
        entry = self.state.plan.builds[build]
        began = time.monotonic()

        def pulled(done: int, total: int | None) -> None:
            self.progress.emit(Pulling(build=entry.name, done_bytes=done, total_bytes=total))

        try:
            identity = self.runtime.prepare(
                entry, progress=pulled, stop=self.stop, idle_s=self.state.plan.suite.deadlines.pull_idle_s
            )
        except StartFailed as failed:
            self.record(PullEnded(build=build, failure=failed.failure))
            self.progress.emit(Noted(text=f"{entry.name} cannot be had: {failed.failure.message}"))
            return None
        known = self.state.identities.get(build)
        if known is not None and known.id != identity.id:
            raise UsageError(
                f"{entry.name} is not what it was when the run began: {known.id} then, {identity.id} now",
                next_step="start a new run",
            )
        if known is None or build in self.state.pull_failures:
            self.record(BuildPresent(build=build, identity=identity, seconds=time.monotonic() - began))
        self.present[build] = identity
        return identity

    def do(self, probe: Probe) -> None:
        """One start, tried again for transient causes."""
        from imagebisect.measure import gpu

        plan = self.state.plan
        for attempt in range(MAX_RETRIES + 1):
            try:
                identity = self.make_present(probe.build)
                if identity is None:
                    return
                probe_cards = gpu.choose(
                    plan.suite.server(probe.server),
                    plan.builds[probe.build].source,
                    plan.suite.gpu_probe,
                    self.folder.path,
                )
                ended = run_start(
                    self.bench, self.state, probe, identity, probe_cards, number=len(self.state.starts) + 1
                )
            except EnvironmentFault as fault:
                if not fault.cause or not is_transient(fault.cause) or attempt == MAX_RETRIES:
                    raise
                self.progress.emit(Noted(text=f"trying again: {fault.what}"))
                self.stop.wait(RETRY_WAIT_S * 2**attempt)
                continue
            if ended.failure is not None and stops(ended.failure.cause):
                raise EnvironmentFault(
                    ended.failure.message,
                    where=f"start {ended.start_id} of {plan.builds[probe.build].name}",
                    next_step="`bisect doctor` looks for the cause; then `bisect resume`",
                    cause=ended.failure.cause,
                )
            if ended.failure is None or not is_transient(ended.failure.cause):
                return
            self.progress.emit(Noted(text=f"trying again: {ended.failure.message}"))
            self.stop.wait(RETRY_WAIT_S * 2**attempt)
        raise EnvironmentFault(
            f"{plan.builds[probe.build].name} failed {MAX_RETRIES + 1} times for a transient cause",
            next_step="see its log in the run's folder; then `bisect resume`",
            cause=Cause.UNKNOWN,
        )

    def doubt_host(self, probe: Probe) -> None:
        """Start the last good build again; blame the host if that fails too."""
        void = _suspects(self.state)
        self.progress.emit(Noted(text=probe.why))
        self.do(probe)
        last = self.state.starts[-1]
        if last.outcome == "measured" and suspicion(last) is None:
            self.record(HostCleared())
            return
        message = f"{self.state.plan.builds[probe.build].name} worked before and fails now: the host is at fault"
        self.record(HostBlamed(void_start_ids=(*void, last.intended.start_id), message=message))
        raise EnvironmentFault(
            message,
            where=f"starts {', '.join(void)} and {last.intended.start_id}",
            next_step="their skips are taken back; put the host in order (`bisect doctor`), then `bisect resume`",
        )

    def next_probe(self, ask: Question) -> Probe | None:
        """The search's next wish, told to whoever watches."""
        probe = decide(ask, scenarios_of(self.state.plan))
        if probe is not None:
            left = starts_left_by_server(ask)
            self.progress.emit(
                Decided(
                    build=self.state.plan.builds[probe.build].name,
                    server=probe.server,
                    why=probe.why,
                    starts_left=sum(left.values()),
                    seconds_left=seconds_left(self.state, left),
                )
            )
        return probe

    def loop(self) -> None:
        """Until every bisect target has its status."""
        self.begin()
        while True:
            self.stop.check()
            doubt = host_check(self.state)
            if doubt is not None:
                self.doubt_host(doubt)
                continue
            asked = question(self.state)
            probe = self.next_probe(asked)
            if probe is None:
                break
            self.do(probe)
            if question(self.state) == asked:
                raise EnvironmentFault(
                    f"a start of {self.state.plan.builds[probe.build].name} says nothing about any target",
                    where=f"start {self.state.starts[-1].intended.start_id}, see its log in {self.folder.path}",
                    next_step="look for the cause there; then `bisect resume`",
                )
        code, _ = exit_code_of(results(self.state), {t.name: t.role for t in self.state.plan.suite.targets})
        self.record(RunFinished(at=utc_now(), exit_code=code))

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Record why a run ends before its answer, then let the error go on."""
        try:
            yield
        except (BisectError, KeyboardInterrupt) as error:
            code = error.exit_code if isinstance(error, BisectError) else ExitCode.INTERRUPTED
            reason = error.reason if isinstance(error, BisectError) else Interrupted.reason
            self.record(RunStopped(at=utc_now(), exit_code=code, reason=reason, message=str(error)))
            raise


def _simulated(plan: Plan) -> bool:
    return isinstance(plan.builds[0].source, SimulatedSource)


def _gpu_uuids(plan: Plan, folder: RunFolder) -> tuple[str, ...]:
    """The cards to lock: none for simulated builds, whose cards are the run's own."""
    from imagebisect.measure import gpu

    if _simulated(plan):
        return ()
    uuids: set[str] = set()
    for server in plan.suite.servers:
        reader = gpu.choose(server, plan.builds[0].source, plan.suite.gpu_probe, folder.path)
        uuids.update(card.uuid for card in reader.read())
    return tuple(uuids)


def create(
    plan: Plan,
    results_folder: Path,
    *,
    name: str | None = None,
    purpose: Purpose = "search",
    compare: CompareSpec | None = None,
    options: SearchOptions | None = None,
    noise: Mapping[str, Noise] | None = None,
) -> RunFolder:
    """A new run's folder with its first event. Starts nothing.

    A host that cannot start anything, or a results folder in use, is refused before anything is written. A search
    assumes the noise that this host was profiled with, where it was.
    """
    from imagebisect import runtime

    starter = runtime.for_builds(plan.builds)
    for server in plan.suite.servers:
        starter.check(server)
    host = host_now(plan, results_folder, starter)
    host["fingerprint"] = fingerprint(host)
    if results_folder.is_dir():
        with RunFolder(results_folder.resolve() / "new").lock():
            pass
    model = model_fingerprint(plan.suite.model)
    if purpose == "search" and noise is None:
        from imagebisect import hostfiles

        noise = hostfiles.noise_for(plan, results_folder, str(host["fingerprint"]), model)
    return ledger.create(
        results_folder,
        plan,
        host=host,
        model_fingerprint=model,
        tool_version=__version__,
        name=name,
        purpose=purpose,
        compare=compare,
        options=options,
        noise=noise,
    )


def run(folder: RunFolder, *, stop: StopFlag, progress: Progress) -> RunState:
    """Run or resume a search until every target has a status, or a comparison until all its starts are done.

    Raises EnvironmentFault, Interrupted or UsageError after recording why; the run can then be resumed.
    """
    state = folder.load()
    with folder.lock(_gpu_uuids(state.plan, folder)):
        state = folder.load()
        resumed = bool(state.starts or state.stopped)
        progress.emit(
            RunBegan(run_id=folder.run_id, folder=str(folder.path), builds=len(state.plan.builds), resumed=resumed)
        )
        if state.finished is not None:
            return state
        session = Session(folder, state, stop=stop, progress=progress)
        with session.stopping():
            if state.created.compare is None:
                session.loop()
            else:
                from imagebisect import abba

                abba.loop(session)
        return session.state


def probe(
    plan: Plan,
    build: int,
    server_names: tuple[str, ...],
    results_folder: Path,
    *,
    stop: StopFlag,
    progress: Progress,
    name: str | None = None,
) -> RunState:
    """One build, every scenario of the named servers once, in a run folder of its own. Judges nothing."""
    folder = create(plan, results_folder, name=name, purpose="probe")
    state = folder.load()
    with folder.lock(_gpu_uuids(plan, folder)):
        session = Session(folder, state, stop=stop, progress=progress)
        with session.stopping():
            session.begin()
            for server in server_names:
                session.do(
                    Probe(
                        build=build,
                        server=server,
                        scenarios=scenarios_of(plan)[server],
                        targets=(),
                        purpose="probe",
                        why="probe",
                    )
                )
        session.record(RunFinished(at=utc_now(), exit_code=ExitCode.NOTHING_REGRESSED))
        return session.state


def set_budget(folder: RunFolder, budget: Budget) -> None:
    """Give a search another budget. UsageError for a run that is no search."""
    with folder.lock():
        if folder.load().created.purpose != "search":
            raise UsageError(f"{folder.run_id} is no search: it has no budget", next_step="leave --budget out")
        folder.append(BudgetSet(budget=budget))


def mark(folder: RunFolder, build: str, target: str, verdict: Verdict | None) -> RunState:
    """Set a verdict by hand, or take it back (`verdict` None). UsageError for names that are not there."""
    with folder.lock():
        state = folder.load()
        if state.created.purpose != "search":
            raise UsageError(
                f"{folder.run_id} is no search: it has no verdicts to overrule", next_step="name the run of a search"
            )
        names = [entry.name for entry in state.plan.builds]
        targets = [entry.name for entry in state.plan.suite.targets]
        if build not in names:
            raise UsageError(f"there is no build {build!r} in this run", next_step=f"its builds: {', '.join(names)}")
        if target not in targets:
            raise UsageError(
                f"there is no target {target!r} in this run", next_step=f"its targets: {', '.join(targets)}"
            )
        index = names.index(build)
        if index in (state.plan.good, state.plan.bad):
            raise UsageError(
                f"{build} is an anchor: its verdict is its role",
                next_step="choose other anchors with `bisect run --good` and `--bad`",
            )
        if verdict not in (None, Verdict.GOOD, Verdict.BAD, Verdict.SKIP):
            raise UsageError(f"{verdict} cannot be set by hand", next_step="good, bad or skip")
        if verdict is None and (index, target) not in state.marks:
            raise UsageError(f"no verdict of {build} for {target} was set by hand", next_step="nothing to undo")
        event = Marked(build=index, target=target, verdict=verdict)
        folder.append(event)
        return apply(state, event)
