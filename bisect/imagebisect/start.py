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
    JsonValue,
    Measurement,
    Phase,
    Plan,
    Rendered,
    Server,
    Suite,
)
from imagebisect.errors import EnvironmentFault, Interrupted, StartFailed, UsageError
from imagebisect.host import differences, fingerprint, host_info
from imagebisect.outcome import Cause, is_transient, stops
from imagebisect.progress import Noted, PhaseBegan, Progress
from imagebisect.progress import StartEnded as StartEndedProgress
from imagebisect.runtime.base import Running, Runtime, StartSpec
from imagebisect.secrets import copy_without
from imagebisect.state import Event, Measured, RunState, StartEnded, StartIntended, StartReady

if TYPE_CHECKING:
    from imagebisect.interrupt import StopFlag
    from imagebisect.ledger import RunFolder
    from imagebisect.measure import Context
    from imagebisect.measure.cards import CardDetails, GpuProbe
    from imagebisect.repetition import RepRule
    from imagebisect.search import Probe

SETTLE_MIB = 64.0
"""Two reads of a card that differ by less are one value; a card this far below its baseline is not back yet."""

BACK_S = 10.0
"""How long a start waits for its own memory to come back before it is over; the next one waits for SETTLE_S."""

METRICS_S = 10.0
"""A scrape of /metrics may take this long."""

SETTLE_S = 60.0
"""How long a card may take to settle before a start, and to come back after one."""

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


def first_seen(state: RunState) -> tuple[CardMemory, ...]:
    """Each card as it was before the run's first start on it, whatever server that was of."""
    found: dict[str, CardMemory] = {}
    for start in state.starts:
        for card in start.intended.baseline:
            found.setdefault(card.uuid, card)
    return tuple(found.values())


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


def host_now(plan: Plan, run_folder: Path, runtime: Runtime) -> dict[str, JsonValue]:
    """This host with the cards of all the suite's servers, as it is now."""
    from imagebisect.measure import gpu

    cards: dict[str, CardDetails] = {}
    source = "none"
    for server in plan.suite.servers:
        reader = gpu.choose(server, plan.builds[0].source, plan.suite.gpu_probe, run_folder)
        cards |= {card.uuid: card for card in reader.details()}
        source = reader.source if source == "none" else source
    ordered = sorted(cards.values(), key=lambda card: card.index)
    return host_info(ordered, gpu_source=source, docker_version=runtime.version())


def check_host(state: RunState, now: dict[str, JsonValue]) -> str:
    """The host's fingerprint. EnvironmentFault when it is not the host that the run began on any more."""
    changed = differences(state.created.host, now)
    if changed:
        raise EnvironmentFault(
            "the host has changed since the run began, so that measurements no longer compare:\n  "
            + "\n  ".join(changed),
            next_step="put it back as it was, then `bisect resume`; or start a new run",
        )
    return fingerprint(now)


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
    host = check_host(state, host_now(plan, bench.folder.path, bench.runtime))
    reference = first_seen(state)
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
            host_fingerprint=host,
            confirms=probe.confirms,
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
    after, back_s = _cards_after(cards, baseline, bench)
    ended = StartEnded(
        start_id=spec.start_id,
        failure=failure,
        seconds=time.monotonic() - began,
        after=after,
        facts=_exit_facts(spec, baseline, after, back_s),
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
    tidy(spec.start_folder, bench.secrets)
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
    lost = [f"{m.scenario} ({m.failure.cause})" for m in measurements if m.failure is not None]
    if lost:
        found.append(f"but for {', '.join(lost)}")
    return ", ".join(found)


def _cards_after(
    cards: GpuProbe, baseline: tuple[CardMemory, ...], bench: Bench
) -> tuple[tuple[CardMemory, ...], float | None]:
    """The cards once they are back at their baseline, and the seconds that took; None if they are not within 10 s.

    A card that does not come back is named with its processes; the next start waits for it longer, and then refuses.
    """
    began = time.monotonic()
    while True:
        after = cards.read()
        below = _cards_below(baseline, after)
        waited = time.monotonic() - began
        if not below:
            return after, waited
        if waited > BACK_S or bench.stop.is_set:
            bench.progress.emit(Noted(text="after the stop " + "; ".join(below)))
            return after, None
        time.sleep(0.1)


def _exit_facts(
    spec: StartSpec, baseline: tuple[CardMemory, ...], after: tuple[CardMemory, ...], back_s: float | None
) -> dict[str, JsonValue]:
    """What is known of a start once it is over: its log, the warnings in it, whether its memory came back."""
    from imagebisect.vllm import facts as log_facts

    found: dict[str, JsonValue] = {"log": f"starts/{spec.start_id}/server.log.gz"}
    found |= log_facts.count_warnings(spec.log_path)
    if after and baseline:
        if back_s is None:
            found["memory_not_back"] = _cards_below(baseline, after)
        else:
            found["memory_back_s"] = round(back_s, 2)
    return found


def tidy(folder: Path, secrets: tuple[str, ...]) -> None:
    """Pack a start's log and take the secrets out of all that was printed in it; what is tidy stays as it is."""
    compress_log(folder / "server.log", secrets)
    for output in sorted(folder.glob("*.output.log")):
        hide_secrets(output, secrets)


def compress_log(log: Path, secrets: tuple[str, ...] = ()) -> None:
    """Replace a start's log by its gzip, without the secrets a server printed; one that cannot be stays as it is."""
    import gzip

    if not log.is_file():
        return
    packed = log.with_name("server.log.gz")
    partial = log.with_name("server.log.gz.partial")
    try:
        with log.open("rb") as source, gzip.open(partial, "wb", compresslevel=6) as sink:
            copy_without(source, sink.write, secrets)
        partial.replace(packed)
        log.unlink()
    except OSError:
        partial.unlink(missing_ok=True)


def hide_secrets(output: Path, secrets: tuple[str, ...]) -> None:
    """Take the secrets out of what a command of the suite printed."""
    if not secrets:
        return
    partial = output.with_name(output.name + ".partial")
    try:
        with output.open("rb") as source, partial.open("wb") as sink:
            copy_without(source, sink.write, secrets)
        partial.replace(output)
    except OSError:
        partial.unlink(missing_ok=True)


def _known_packages(state: RunState, build: int) -> dict[str, JsonValue]:
    """What an earlier start of this build said of its packages: they do not change."""
    from imagebisect.vllm import packages

    for start in state.starts:
        if start.intended.build == build and "packages" in start.facts:
            return {name: start.facts[name] for name in packages.FACTS if name in start.facts}
    return {}


def gather_facts(state: RunState, build: int, running: Running, *, said_version: str | None) -> dict[str, JsonValue]:
    """Everything a ready server says of itself: its log, its metrics, the packages it runs on, its commit.

    Raises nothing for what cannot be had: the fact is missing.
    """
    from imagebisect.vllm import facts as log_facts
    from imagebisect.vllm import kv_pool, metrics, packages
    from imagebisect.vllm.transport import get_text

    found = log_facts.read(running.spec.log_path)
    if said_version:
        found.setdefault("version", said_version)
    scrape = get_text(f"{running.url}/metrics", timeout_s=METRICS_S)
    found["has_metrics"] = scrape is not None
    found |= kv_pool.pool(found, metrics.parse(scrape).cache_config if scrape else {})
    known = _known_packages(state, build)
    if not known:
        code, output = running.run_python(packages.CODE, packages.ASK_S)
        known = packages.parse(output) if code == 0 else {}
    found = {**known, **found}
    identity = state.identities.get(build)
    label = identity.revision if identity else None
    driver = state.created.host.get("driver")
    if driver is not None:
        found["driver"] = driver
    if label:
        short = found.get("commit")
        if isinstance(short, str) and not label.startswith(short):
            found["commit_contradiction"] = f"the image says {label}, the version says {short}"
        found["commit"] = label
    return found


def _rep_rules(suite: Suite, probe: Probe, scenario: str) -> dict[str, RepRule] | None:
    """When each metric of a scenario has reps enough for the targets that the start serves; None: no search asks."""
    if not probe.reps:
        return None
    targets = [suite.target(name) for name in probe.reps]
    return {t.metric.name: probe.reps[t.name] for t in targets if t.scenario == scenario}


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
    from imagebisect.measure import gpu
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
    facts = gather_facts(state, probe.build, running, said_version=ready.version)
    bench.record(StartReady(start_id=spec.start_id, boot_s=ready.boot_s, facts=facts))
    cards.attach(running)
    own_pids = running.pids()
    listed = cards.processes() if cards.host_pids else None
    came = gpu.strangers(baseline, listed, own_pids)
    if came:
        message = f"while the server started, {'; '.join(came)}: what is measured now would be theirs, too"
        return Failure(cause=Cause.GPU_BUSY, phase=Phase.BOOT, message=message)
    known_processes = None if listed is None else frozenset(process.key for process in listed)
    for name in probe.scenarios:
        bench.stop.check()
        bench.progress.emit(PhaseBegan(build=build.name, server=server.name, phase=f"scenario {name}"))
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
            ready_s=ready.boot_s,
            own_pids=own_pids,
            known_processes=known_processes,
            has_metrics=bool(facts.get("has_metrics")),
            secrets=bench.secrets,
            rep_rules=_rep_rules(suite, probe, name),
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
