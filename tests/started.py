"""A simulated build, really started, with all that a scenario needs to measure it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imagebisect import measure
from imagebisect.domain import Build, ModelSpec, Server, SimulatedSource, Source
from imagebisect.interrupt import StopFlag
from imagebisect.measure import gpu
from imagebisect.progress import ProgressEvent
from imagebisect.runtime.base import Running, StartSpec
from imagebisect.runtime.process import ProcessRuntime
from imagebisect.vllm import facts, kv_pool, metrics, readiness
from imagebisect.vllm.transport import get_text

FAST: dict[str, Any] = {"boot_s": 0.1, "prefill_tok_s": 40000, "decode_tok_s": 400, "first_request_penalty_s": 0.05}
"""A healthy build that boots at once."""

ARGS = (
    "--tensor-parallel-size=2",
    "--max-model-len=65536",
    "--max-num-seqs=4",
    "--enable-prefix-caching",
    "--kv-cache-memory-bytes=4294967296",
)


class Heard:
    """Keeps what progress was told."""

    def __init__(self) -> None:
        self.events: list[ProgressEvent] = []

    def emit(self, event: ProgressEvent) -> None:
        """Keep one event."""
        self.events.append(event)


@contextlib.contextmanager
def running(
    folder: Path,
    profile: dict[str, Any] | None = None,
    *,
    batched: int = 4096,
    args: tuple[str, ...] = ARGS,
    source: Source | None = None,
    model: ModelSpec | None = None,
    env: dict[str, str] | None = None,
    gpus: Any = (0, 1),
) -> Iterator[Running]:
    """A started server, not yet known to be ready."""
    runtime = ProcessRuntime()
    build = Build(name="b", index=0, source=source or SimulatedSource(profile={**FAST, **(profile or {})}))
    server = Server(name="s", args=(*args, f"--max-num-batched-tokens={batched}"), gpus=gpus, env=env or {})
    identity = runtime.prepare(build, progress=lambda *_: None, stop=StopFlag(), idle_s=10)
    spec = StartSpec(
        run_id="r",
        start_id="0001",
        build=build,
        identity=identity,
        server=server,
        model=model,
        run_folder=folder,
        stop_s=10,
    )
    spec.start_folder.mkdir(parents=True, exist_ok=True)
    with runtime.start(spec, runtime.render(spec)) as started:
        yield started


def wait(started: Running, *, boot_s: float = 20.0) -> readiness.Ready:
    """Wait until it is ready."""
    return readiness.wait_ready(
        started, log=started.spec.log_path, boot_s=boot_s, stop=StopFlag(), on_progress=lambda _: None
    )


@contextlib.contextmanager
def context(
    folder: Path,
    profile: dict[str, Any] | None = None,
    *,
    request_s: float = 20.0,
    stop: StopFlag | None = None,
    boot_s: float = 20.0,
    **how: Any,
) -> Iterator[measure.Context]:
    """A ready server's context; the cards were read before it was started."""
    server = Server(name="s", gpus=how.get("gpus", (0, 1)))
    probe = gpu.choose(server, how.get("source") or SimulatedSource(profile=profile or {}), "auto", folder)
    baseline = probe.read()
    with running(folder, profile, **how) as started:
        ready = wait(started, boot_s=boot_s)
        probe.attach(started)
        said = facts.read(started.spec.log_path)
        scrape = get_text(f"{started.url}/metrics", timeout_s=5)
        said |= kv_pool.pool(said, metrics.parse(scrape or "").cache_config)
        yield measure.Context(
            running=started,
            url=started.url,
            model_id=ready.model_id,
            endpoint="completions",
            seed=7,
            vocab_size=measure.vocab_size(how.get("model")),
            log=started.spec.log_path,
            probe=probe,
            baseline=baseline,
            facts=said,
            stop=stop or StopFlag(),
            request_s=request_s,
            progress=Heard(),
            build="b",
            server=started.spec.server,
            ready_s=ready.boot_s,
            own_pids=started.pids(),
            known_processes=frozenset(process.key for process in probe.processes() or ()),
            has_metrics=scrape is not None,
        )
