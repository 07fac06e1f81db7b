"""Whole logs of the shapes that vLLM 0.19 to 0.33 write.

The wordings are those of the released sources; process prefixes come from a stdout wrapper up to 0.29 (so that every
line has one) and from the log format in 0.33 (so that a raw traceback has none). Messages of several lines repeat the
prefix after CR LF.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebisect.domain import Failure, Phase
from imagebisect.runtime.base import ExitState
from imagebisect.vllm import failures

VERSIONS = ("0.19.0", "0.22.0", "0.26.0", "0.29.0", "0.33.0")
PACKAGE = "/usr/local/lib/python3.12/dist-packages"
GONE = ExitState(exit_code=1, oom_killed=False)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 48.00 MiB. GPU 1 has a total capacity of 15.51 GiB of "
    "which 31.31 MiB is free. Including non-PyTorch memory, this process has 15.47 GiB memory in use. Of the allocated "
    "memory 14.60 GiB is allocated by PyTorch, with 38.00 MiB allocated in private pools (e.g., CUDA Graphs), and "
    "112.76 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
NUMBERS = {
    "asked_mib": 48.0,
    "free_mib": 31.31,
    "capacity_gib": 15.51,
    "gpu": 1,
    "reserved_unallocated_mib": 112.76,
    "private_pools_mib": 38.0,
    "allocated_mib": 14950.4,
}
FORWARD = (
    ("vllm/v1/worker/gpu_worker.py", "execute_model"),
    ("vllm/v1/worker/gpu_model_runner.py", "execute_model"),
    ("vllm/model_executor/models/qwen3_next.py", "forward"),
    ("vllm/third_party/flash_linear_attention/ops/chunk_o.py", "chunk_fwd_o"),
    ("torch/_ops.py", "__call__"),
)
ENGINE_STEP = (("vllm/v1/engine/core.py", "run_engine_core"), ("vllm/v1/engine/core.py", "step_with_batch_queue"))
DEAD = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root "
    "cause."
)


def frames(calls: tuple[tuple[str, str], ...]) -> list[str]:
    """A traceback's lines, without the exception."""
    found = ["Traceback (most recent call last):"]
    for path, function in calls:
        found += [
            f'  File "{PACKAGE}/{path}", line 99, in {function}',
            f"    return {function}_inner(*args)",
            "           ^^^^",
        ]
    return found


@dataclass(frozen=True)
class Shape:
    """How one version writes."""

    version: str

    @property
    def minor(self) -> int:
        """19 for 0.19.0."""
        return int(self.version.split(".")[1])

    def log(self, process: str, text: str, level: str = "INFO", file: str = "core.py:1330") -> str:
        """One record; a message of several lines repeats the prefix after CR LF."""
        prefix = f"({process} pid=77) {level} 11-30 23:15:18 [{file}] "
        return prefix + text.replace("\n", "\r\n" + prefix)

    def raw(self, process: str, text: str) -> str:
        """What does not go through the logger: prefixed by the wrapper, or bare from 0.33 on."""
        if self.minor >= 33:
            return text
        return "\n".join(f"({process} pid=77) {line}" for line in text.split("\n"))

    def error(self, process: str, head: str, calls: tuple[tuple[str, str], ...], exception: str) -> str:
        """`logger.exception(head)`."""
        return self.log(process, "\n".join([head, *frames(calls), exception]), "ERROR")

    def boot(
        self, until: str = "ready", *, workers: tuple[str, ...] = ("Worker_TP0",), pinned: bool = True
    ) -> list[str]:
        """A healthy boot up to and including one of load, loaded, kv, warm_up, capture, captured, ready."""
        kv = (
            "Initial free memory 14.91 GiB, reserved 3.04 GiB memory for KV Cache as specified by kv_cache_memory_bytes "
            "config and skipped memory profiling. This does not respect the gpu_memory_utilization config. If OOM'ed, "
            "check the difference of initial free memory"
        )
        bar = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):"
        took = (
            f"init engine (profile, create kv cache, warmup model) took 45.12 {'seconds' if self.minor < 22 else 's'}"
        )
        steps: list[tuple[str, list[str]]] = [
            (
                "start",
                [
                    self.log("APIServer", f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {self.version}"),
                    self.log("EngineCore", f"Initializing a V1 LLM engine (v{self.version}) with config: model='/models/m'"),
                ],
            ),
            ("load", [self.log(w, "Starting to load model /models/m...") for w in workers]),
            ("loaded", [self.log(w, "Model loading took 9.81 GiB memory and 21.476653 seconds") for w in workers]),
            ("kv", [self.log(w, kv if pinned else "Available KV cache memory: 3.04 GiB") for w in workers]),
            ("tokens", [self.log("EngineCore", "GPU KV cache size: 193,602 tokens")]),
            ("warm_up", [self.log(w, "Warming up FlashInfer attention.") for w in workers]),
            ("capture", [self.raw(workers[0], f"{bar}   0%|          | 0/3\r{bar}  33%|███▎      | 1/3")]),
            ("captured", [self.log(w, "Graph capturing finished in 1 secs, took 0.05 GiB") for w in workers]),
            ("init", [self.log("EngineCore", took)]),
            ("ready", [self.raw("APIServer", "INFO:     Application startup complete.")]),
        ]  # fmt: skip
        lines: list[str] = []
        for name, said in steps:
            lines += said
            if name == until:
                break
        return lines

    def failed_boot(self) -> list[str]:
        """What every boot ends with whose engine did not come up."""
        return [
            self.raw(
                "APIServer",
                "\n".join(
                    [
                        *frames((("vllm/v1/engine/utils.py", "wait_for_engine_startup"),)),
                        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
                    ]
                ),
            )
        ]

    def dead(self) -> list[str]:
        """What the API server says once its engine is gone."""
        calls = (("vllm/v1/engine/async_llm.py", "output_handler"),)
        return [
            self.error("APIServer", "AsyncLLM output_handler failed.", calls, DEAD),
            self.raw("APIServer", 'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error'),
        ]


Reader = Callable[..., tuple[Failure, str]]


def reader(path: Path) -> Reader:
    """Writes lines to `path` and names why the server failed; the second value is the line that the record points to."""

    def classify(
        lines: list[str], phase: Phase, exit_state: ExitState | None = GONE, **more: Any
    ) -> tuple[Failure, str]:
        path.write_bytes(("\n".join(lines) + "\n").encode())
        failure = failures.classify(path, phase=phase, exit_state=exit_state, **more)
        said = "" if failure.log_line is None else path.read_bytes().split(b"\n")[failure.log_line - 1].decode()
        return failure, said

    return classify
