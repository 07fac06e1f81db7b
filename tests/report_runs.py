"""Whole runs that never ran, driven by the real search, for tests of what is said about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import run_events
from imagebisect.domain import CardMemory, Identity, Measurement, Plan, Rep
from imagebisect.evidence import question
from imagebisect.ledger import utc_now
from imagebisect.search import decide
from imagebisect.session import exit_code_of, results, scenarios_of
from imagebisect.state import (
    BuildPresent,
    Event,
    Measured,
    RunFinished,
    RunState,
    SearchOptions,
    StartEnded,
    StartIntended,
    apply,
    fold,
)

Truth = Callable[[int], float | str]
"""A build's long-prefill value in tok/s, or the cause for which it has none."""

CARD = CardMemory(index=0, uuid="GPU-1", name="Test Card", total_mib=16000.0, free_mib=15000.0)


def step(first_bad: int, **special: str) -> Truth:
    """1,415 tok/s before a build and 755 from it on; `b4="unknown_flag"` makes a build fail."""

    def truth(build: int) -> float | str:
        return special.get(f"b{build}", 755.0 if build >= first_bad else 1415.0)

    return truth


def _richer(event: Event) -> Event:
    """The same measurement with a warm-up, a counted rep and a rep that was spoiled."""
    if not isinstance(event, Measured):
        return event
    value = event.measurement.metrics["c1.prefill_tok_s"]
    rep = Rep(
        index=1,
        concurrency=1,
        warmup=False,
        prompt_tokens=4096,
        output_tokens=1,
        seconds=4096 / value,
        request_s=(4096 / value,),
        usage_prompt_tokens=(4096,),
        usage_completion_tokens=(1,),
        server_prefill_s=4090 / value,
        cache_hit_tokens=0,
        value=value,
    )
    warm = replace(rep, index=0, warmup=True, value=None)
    spoiled = replace(rep, index=2, value=None, invalid="prefix cache hit of 4096 tokens", cache_hit_tokens=4096)
    measured: Measurement = replace(event.measurement, reps=(warm, rep, spoiled))
    return replace(event, measurement=measured)


def searched(truth: Truth, plan: Plan | None = None, options: SearchOptions | None = None) -> list[Event]:
    """The events of a search until every target has its status, with what each start was for."""
    chosen = plan or run_events.plan()
    events: list[Event] = [replace(run_events.created(chosen), options=options or SearchOptions())]
    state = fold(events)
    while (probe := decide(question(state), scenarios_of(chosen))) is not None:
        number = len(state.starts) + 1
        assert number < 1000
        made = run_events.start(number, probe.build, truth(probe.build), confirms=probe.confirms)
        if probe.build not in state.identities:
            identity = Identity(id=f"sha256:{probe.build:064x}")
            made.insert(0, BuildPresent(build=probe.build, identity=identity, seconds=3.0))
        for event in made:
            said = replace(event, purpose=probe.purpose, why=probe.why) if isinstance(event, StartIntended) else event
            events.append(said)
            state = apply(state, said)
    return [*events, RunFinished(at=utc_now(), exit_code=0)]


def finished(truth: Truth, plan: Plan | None = None) -> RunState:
    """Search until every target has its status; the state of the finished run."""
    chosen = plan or run_events.plan()
    host = {"cpu": "Test CPU", "cpus": 2, "gpus": [{"index": 0, "name": "Test Card", "total_mib": 16000.0}]}
    state = fold([replace(run_events.created(chosen), host=host)])
    for number in range(1, 1000):
        probe = decide(question(state), scenarios_of(chosen))
        if probe is None:
            break
        if probe.build not in state.identities:
            identity = Identity(id=f"sha256:{probe.build:064x}", version=f"0.26.{probe.build}", revision="f" * 40)
            state = apply(state, BuildPresent(build=probe.build, identity=identity, seconds=1.0))
        for event in run_events.start(number, probe.build, truth(probe.build), confirms=probe.confirms):
            said = _richer(event)
            if isinstance(said, StartEnded):
                said = replace(said, after=(CARD,))
            state = apply(state, said)
    code, _ = exit_code_of(results(state), {t.name: t.role for t in chosen.suite.targets})
    return apply(state, RunFinished(at=utc_now(), exit_code=code))
