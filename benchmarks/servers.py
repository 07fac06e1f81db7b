"""Servers that the benchmarks measure: a real vLLM on the CPU or the stand-in, started as `bisect` starts them."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebisect import measure
from imagebisect.domain import Build, ModelSpec, Server, SimulatedSource, Source, VenvSource
from imagebisect.host import host_info
from imagebisect.interrupt import StopFlag
from imagebisect.measure import gpu
from imagebisect.progress import Silent
from imagebisect.runtime.base import StartSpec
from imagebisect.runtime.process import ProcessRuntime
from imagebisect.vllm import facts, readiness

BOOT_S = 600.0
REQUEST_S = 120.0
STOP_S = 60.0

CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
"""A KV cache of 1 GiB, and nothing asked of the network."""

CPU_ARGS = ("--enforce-eager", "--max-num-seqs=4")

NO_PREFIX_CACHE = "--no-enable-prefix-caching"
"""`bench serve` makes prompts that share prefixes where a vocabulary is small, and sends its warm-up prompt again."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is started: a build's source, and the serving configuration as a suite would have it."""

    source: Source
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    model: Path | None = None
    gpus: Any = "none"

    @property
    def name(self) -> str:
        """For a headline: `vllm` or `stand-in`."""
        return "stand-in" if isinstance(self.source, SimulatedSource) else "vllm"


def real(environment: Path, model: Path) -> Subject:
    """An environment's own vLLM on the CPU, with no prefix cache."""
    return Subject(
        source=VenvSource(path=str(environment)),
        args=("--model=${model}", *CPU_ARGS, NO_PREFIX_CACHE),
        env=CPU_ENV,
        model=model,
    )


@contextlib.contextmanager
def ready(subject: Subject, folder: Path) -> Iterator[measure.Context]:
    """A started server that has answered its first token, with all that a scenario needs; it is gone afterwards.

    Raises StartFailed with the log's reason, EnvironmentFault where the host is at fault.
    """
    runtime = ProcessRuntime()
    build = Build(name="benchmark", index=0, source=subject.source)
    server = Server(name="s", args=subject.args, env=subject.env, gpus=subject.gpus)
    model = ModelSpec(path=str(subject.model), at="/models/m") if subject.model else None
    probe = gpu.choose(server, subject.source, "auto", folder)
    baseline = probe.read()
    spec = StartSpec(
        run_id="benchmark",
        start_id="0001",
        build=build,
        identity=runtime.prepare(build, progress=lambda *_: None, stop=StopFlag(), idle_s=STOP_S),
        server=server,
        model=model,
        run_folder=folder,
        stop_s=STOP_S,
    )
    spec.start_folder.mkdir(parents=True, exist_ok=True)
    stop = StopFlag()
    with runtime.start(spec, runtime.render(spec)) as running:
        found = readiness.wait_ready(running, log=spec.log_path, boot_s=BOOT_S, stop=stop, on_progress=lambda _: None)
        probe.attach(running)
        yield measure.Context(
            running=running,
            url=running.url,
            model_id=found.model_id,
            endpoint="completions",
            seed=1,
            vocab_size=measure.vocab_size(model),
            log=spec.log_path,
            probe=probe,
            baseline=baseline,
            facts=facts.read(spec.log_path),
            stop=stop,
            request_s=REQUEST_S,
            progress=Silent(),
            build=build.name,
            server=server,
        )


def host() -> dict[str, Any]:
    """The kind of machine, for the record: no names."""
    return {
        "cpu": host_info().get("cpu", platform.processor()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def host_line(found: Mapping[str, Any]) -> str:
    """The host in a line."""
    return f"{found['cpu']}, {found['cores']} cores, Python {found['python']}, load before {found['load_1m']}"


# ------------------------------------------------------------------------------ arguments


def environment(text: str) -> Path:
    """A folder with its own bin/vllm; for argparse."""
    path = Path(text).resolve()
    if not os.access(path / "bin" / "vllm", os.X_OK):
        raise argparse.ArgumentTypeError(f"{text} holds no bin/vllm that can be run")
    return path


def model_folder(text: str) -> Path:
    """A folder with a model's config.json; for argparse."""
    path = Path(text).resolve()
    if not (path / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} holds no config.json")
    return path


def positive(text: str) -> int:
    """A whole number above 0; for argparse."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def seconds(text: str) -> float:
    """A time of 0.1 s or more; for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 600:
        raise argparse.ArgumentTypeError(f"{text!r} is no time from 0.1 to 600 s")
    return value
