"""Events of runs that never ran, for tests of what is a function of them."""

from __future__ import annotations

from collections.abc import Mapping

from imagebisect.domain import (
    Build,
    Failure,
    Measurement,
    Phase,
    Plan,
    Rendered,
    Server,
    SimulatedSource,
    Suite,
    Target,
)
from imagebisect.outcome import Cause
from imagebisect.scenario import IdleMemory, Prefill
from imagebisect.state import Event, Measured, RunCreated, StartEnded, StartIntended, StartReady
from search_world import target


def plan(count: int = 8, targets: tuple[Target, ...] = ()) -> Plan:
    """A plan over `count` simulated builds with a long prefill and an idle-memory scenario on one server."""
    builds = tuple(
        Build(name=f"b{index}", index=index, source=SimulatedSource(profile={"seed": index})) for index in range(count)
    )
    suite = Suite(
        name="test",
        file="suite.yaml",
        model=None,
        servers=(Server(name="s", args=("--max-model-len=8192",)),),
        scenarios=(IdleMemory(name="idle", on="s"), Prefill(name="long", on="s", prompt_tokens=4096)),
        targets=targets or (target("long-prefill"),),
    )
    return Plan(builds=builds, suite=suite, good=0, bad=count - 1, images_file="images.yaml")


def created(of: Plan | None = None) -> RunCreated:
    """The first event of a run."""
    return RunCreated(
        run_id="r1",
        tool_version="0",
        started="2026-12-01T00:00:00Z",
        plan=of or plan(),
        host={"cpus": 2},
        model_fingerprint="none",
    )


def rendered(sha: str = "same") -> Rendered:
    """A rendered start."""
    return Rendered(argv=("vllm",), env={}, mounts=(), canonical={"args": ["x"]}, canonical_sha256=sha)


def start(
    number: int,
    build: int,
    outcome: float | str,
    *,
    scenario: str = "long",
    confirms: Mapping[str, tuple[int, int]] | None = None,
) -> list[Event]:
    """One start with its end: a value that was measured, or the cause of its failure."""
    start_id = f"{number:04d}"
    intended = StartIntended(
        start_id=start_id,
        build=build,
        server="s",
        purpose="search",
        why="test",
        scenarios=(scenario,),
        container_name=f"bisect-r1-{start_id}",
        rendered=rendered(),
        confirms=confirms or {},
    )
    if isinstance(outcome, str):
        failure = Failure(cause=Cause(outcome), phase=Phase.BOOT, message=outcome)
        return [intended, StartEnded(start_id=start_id, failure=failure, seconds=5.0)]
    return [
        intended,
        StartReady(start_id=start_id, boot_s=1.0, facts={}),
        Measured(start_id=start_id, measurement=Measurement(scenario=scenario, metrics={"c1.prefill_tok_s": outcome})),
        StartEnded(start_id=start_id, failure=None, seconds=5.0),
    ]
