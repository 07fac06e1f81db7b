"""One start from the first look at the cards to the last: create, wait until ready, measure, end.

Everything that happened is recorded before anybody decides on it; the server is gone on every path out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagebisect.domain import (
    Build,
    CardMemory,
    Failure,
    Identity,
    Measurement,
    Phase,
    Plan,
    Rendered,
    Server,
)
from imagebisect.errors import EnvironmentFault, Interrupted, StartFailed, UsageError
from imagebisect.outcome import Cause, is_transient, stops
from imagebisect.progress import PhaseBegan, Progress
from imagebisect.progress import StartEnded as StartEndedProgress
from imagebisect.runtime.base import Running, Runtime, StartSpec
from imagebisect.state import Event, Measured, RunState, StartEnded, StartIntended, StartReady

if TYPE_CHECKING:
    from imagebisect.interrupt import StopFlag
    from imagebisect.ledger import RunFolder
    from imagebisect.measure import Context
    from imagebisect.measure.gpu import GpuProbe
    from imagebisect.search import Probe

SETTLE_MIB = 64.0
"""Two reads of a card that differ by less are one value; a card this far below its baseline is not back yet."""

SETTLE_S = 60.0
"""How long a card may take to settle before a start, and to come back after one."""

LONGEST_LINE_BYTES = 1 << 20
"""A longer line of a log is handled in pieces."""

DEFAULT_REQUEST_S = 1800.0
"""A request may take this long until the bad anchor has shown what is slow here."""

REQUEST_FACTOR = 3.0
"""A request may take this many times the slowest that either anchor took."""

SHORTEST_REQUEST_S = 60.0
"""No learnt request deadline is shorter."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all starts of a run share. `record` appends an event and folds it into the state."""

    folder: RunFolder
    runtime: Runtime
    stop: StopFlag
    progress: Progress
    record: Callable[[Event], None]
    secrets: tuple[str, ...] = ()


def request_deadline_s(state: RunState, scenario: str) -> float:
    """Seconds one request round may take: what the suite says, else 3x the anchors' slowest once both are known.

    Only rounds of scenarios that ended without a failure teach anything: a server that died in half a second says
    nothing about how long a living one may take.
    """
    suite = state.plan.suite
    said = suite.scenario(scenario).deadline_s or suite.deadlines.request_s
    if said is not None:
        return said
    seen: dict[int, float] = {}
    for start in state.starts:
        for measurement in start.measurements:
            if measurement.scenario == scenario and measurement.failure is None and not start.void:
                slowest = max((rep.seconds for rep in measurement.reps), default=0.0)
                seen[start.intended.build] = max(slowest, seen.get(start.intended.build, 0.0))
    if state.plan.bad not in seen:
        return DEFAULT_REQUEST_S
    slowest = max(seen.get(state.plan.good, 0.0), seen[state.plan.bad])
    return max(SHORTEST_REQUEST_S, REQUEST_FACTOR * slowest)


def check_identical(state: RunState, server: str, rendered: Rendered) -> None:
    """Refuse a start that is not the same as the others but for the build (design: section 5)."""
    from imagebisect.runtime.render import diff_canonical

    for start in state.starts:
        if start.intended.server != server or start.intended.rendered.canonical_sha256 == rendered.canonical_sha256:
            continue
        differences = diff_canonical(start.intended.rendered.canonical, rendered.canonical)
        raise UsageError(
            f"this start would differ from start {start.intended.start_id} of {server} by more than the build:\n  "
            + "\n  ".join(differences),
            next_step="nothing may change within a run; undo the change, or start a new run",
        )


def _cards_below(baseline: tuple[CardMemory, ...], now: tuple[CardMemory, ...]) -> list[str]:
    """The cards that have less free memory than at the run's first start, in words, with who is on them."""
    before = {card.uuid: card.free_mib for card in baseline}
    found = []
    for card in now:
        missing = before.get(card.uuid, card.free_mib) - card.free_mib
        if missing > SETTLE_MIB:
            on_it = ", ".join(f"pid {pid} {mib:.0f} MiB" for pid, mib in card.processes) or "nothing listed"
            found.append(
                f"GPU {card.index} has {card.free_mib:.0f} MiB free, {missing:.0f} MiB less than when the run began; "
                f"on it: {on_it}"
            )
    return found


def settled_cards(
    probe: GpuProbe, baseline: tuple[CardMemory, ...], stop: StopFlag, *, settle_s: float = SETTLE_S
) -> tuple[CardMemory, ...]:
    """Read the cards until they stand still and are back at their baseline.

    Raises EnvironmentFault (gpu_busy) when that takes more than `settle_s`.
    """
    deadline = time.monotonic() + settle_s
    last = probe.read()
    while True:
        below = _cards_below(baseline, last)
        if not last or (not below and baseline):
            return last
        stop.wait(0.5)
        now = probe.read()
        moving = any(
            abs(a.free_mib - b.free_mib) > SETTLE_MIB for a, b in zip(last, now, strict=False) if a.uuid == b.uuid
        )
        last = now
        if not moving and not _cards_below(baseline, now):
            return now
        if time.monotonic() > deadline:
            raise EnvironmentFault(
                "; ".join(below) or "the GPU's free memory does not stand still before the start",
                next_step="find who uses the GPU (`nvidia-smi`), end it, then `bisect resume`",
                cause=Cause.GPU_BUSY,
            )


def _failure_of(fault: EnvironmentFault, phase: Phase) -> Failure:
    return Failure(cause=fault.cause or Cause.UNKNOWN, phase=phase, message=fault.what)


def run_start(
    bench: Bench, state: RunState, probe: Probe, identity: Identity, cards: GpuProbe, *, number: int
) -> StartEnded:
    """Do one start and record it. Raises EnvironmentFault and Interrupted after everything is freed."""
    plan = state.plan
    build, server = plan.builds[probe.build], plan.suite.server(probe.server)
    spec = StartSpec(
        run_id=bench.folder.run_id,
        start_id=f"{number:04d}",
        build=build,
        identity=identity,
        server=server,
        model=plan.suite.model,
        run_folder=bench.folder.path,
        stop_s=plan.suite.deadlines.stop_s,
    )
    rendered = bench.runtime.render(spec)
    check_identical(state, server.name, rendered)
    reference = next((start.intended.baseline for start in state.starts if start.intended.server == server.name), ())
    baseline = settled_cards(cards, reference, bench.stop)
    bench.record(
        StartIntended(
            start_id=spec.start_id,
            build=probe.build,
            server=server.name,
            purpose=probe.purpose,
            why=probe.why,
            scenarios=probe.scenarios,
            container_name=spec.container_name,
            rendered=rendered,
            baseline=baseline,
        )
    )
    began = time.monotonic()
    failure: Failure | None = None
    seen: list[Measurement] = []
    error: BaseException | None = None
    spec.start_folder.mkdir(parents=True, exist_ok=True)
    try:
        bench.progress.emit(PhaseBegan(build=build.name, server=server.name, phase="create"))
        with bench.runtime.start(spec, rendered) as running:
            failure = _use(bench, state, probe, running=running, cards=cards, baseline=baseline, seen=seen)
    except StartFailed as failed:
        failure = failed.failure
    except EnvironmentFault as fault:
        failure, error = _failure_of(fault, Phase.START), fault
    except (Interrupted, KeyboardInterrupt) as stopped:
        failure = Failure(cause=Cause.INTERRUPTED, phase=Phase.STOP, message="stopped on request")
        error = stopped
    after = cards.read()
    ended = StartEnded(
        start_id=spec.start_id, failure=failure, seconds=time.monotonic() - began, after=after, facts=_exit_facts(spec)
    )
    bench.record(ended)
    bench.progress.emit(
        StartEndedProgress(
            build=build.name,
            server=server.name,
            cause=failure.cause if failure else None,
            message=failure.message if failure else in_short(state, seen),
            seconds=ended.seconds,
        )
    )
    compress_log(spec.log_path, bench.secrets)
    if error is not None:
        raise error
    return ended


def in_short(state: RunState, measurements: list[Measurement]) -> str:
    """What a start measured of the targets' metrics, in a line."""
    found = []
    for target in state.plan.suite.targets:
        for measurement in measurements:
            value = measurement.metrics.get(target.metric.name) if measurement.scenario == target.scenario else None
            if value is not None:
                found.append(f"{target.metric_path} {value:,.5g} {target.metric.unit}".strip())
    return ", ".join(found)


def _exit_facts(spec: StartSpec) -> dict[str, str]:
    return {"log": f"starts/{spec.start_id}/server.log.gz"}


def compress_log(log: Path, secrets: tuple[str, ...] = ()) -> None:
    """Replace a start's log by its gzip, without the secrets a server printed; one that cannot be stays as it is."""
    import gzip

    if not log.is_file():
        return
    packed = log.with_name("server.log.gz")
    partial = log.with_name("server.log.gz.partial")
    try:
        with log.open("rb") as source, gzip.open(partial, "wb", compresslevel=6) as sink:
            while line := source.readline(LONGEST_LINE_BYTES):
                for secret in secrets:
                    line = line.replace(secret.encode(), b"***")
                sink.write(line)
        partial.replace(packed)
        log.unlink()
    except OSError:
        partial.unlink(missing_ok=True)


def _use(
    bench: Bench,
    state: RunState,
    probe: Probe,
    *,
    running: Running,
    cards: GpuProbe,
    baseline: tuple[CardMemory, ...],
    seen: list[Measurement],
) -> Failure | None:
    """Wait until a started server is ready and run the scenarios, adding to `seen`; the failure that ended it, if any."""
    from imagebisect import measure
    from imagebisect.vllm import facts as log_facts
    from imagebisect.vllm import readiness

    plan: Plan = state.plan
    suite = plan.suite
    build: Build = plan.builds[probe.build]
    server: Server = suite.server(probe.server)
    spec = running.spec

    def say(detail: str) -> None:
        bench.progress.emit(PhaseBegan(build=build.name, server=server.name, phase="boot", detail=detail))

    say("")
    ready = readiness.wait_ready(
        running, log=spec.log_path, boot_s=suite.deadlines.boot_s, stop=bench.stop, on_progress=say
    )
    facts = log_facts.read(spec.log_path)
    if ready.version and "version" not in facts:
        facts["version"] = ready.version
    bench.record(StartReady(start_id=spec.start_id, boot_s=ready.boot_s, facts=facts))
    cards.attach(running)
    for name in probe.scenarios:
        bench.stop.check()
        bench.progress.emit(PhaseBegan(build=build.name, server=server.name, phase=name))
        scenario = suite.scenario(name)
        context: Context = measure.Context(
            running=running,
            url=running.url,
            model_id=ready.model_id,
            endpoint=server.endpoint,
            seed=suite.seed,
            vocab_size=measure.vocab_size(suite.model),
            log=spec.log_path,
            probe=cards,
            baseline=baseline,
            facts=facts,
            stop=bench.stop,
            request_s=request_deadline_s(state, name),
            progress=bench.progress,
            build=build.name,
            server=server,
        )
        measurement: Measurement = measure.run(scenario, context)
        bench.record(Measured(start_id=spec.start_id, measurement=measurement))
        seen.append(measurement)
        failure = measurement.failure
        # a stuck server answers nothing more: the scenarios left would each wait for their deadline
        if failure is not None and (
            failure.cause == Cause.STUCK
            or stops(failure.cause)
            or is_transient(failure.cause)
            or running.exit_state() is not None
        ):
            return failure
    bench.progress.emit(PhaseBegan(build=build.name, server=server.name, phase="stop"))
    return None
