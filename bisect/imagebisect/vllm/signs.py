"""The one table of log lines that tell why a server failed, and which of them ends a wait.

`rank` orders them: of the lowest rank seen, the earliest line is the root cause.
Lines that the server itself calls a warning or less are never signs, unless a sign says so (`quiet`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagebisect.outcome import Cause

ROOT = 0
"""Says by itself why a server died."""

BROKEN = 1
"""An import that failed: the root, unless something better is known."""

HINT = 3
"""Counts only where nothing but wrappers was found."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A line that names a cause. `says` words it from the pattern's named groups.

    OOM_AT_START stands for GPU memory in any phase; the phase decides what it becomes.
    """

    cause: Cause
    pattern: re.Pattern[str]
    says: str
    rank: int = ROOT
    quiet: bool = False


def _sign(cause: Cause, pattern: str, says: str, *, rank: int = ROOT, quiet: bool = False) -> Sign:
    return Sign(cause=cause, pattern=re.compile(pattern), says=says, rank=rank, quiet=quiet)


SIGNS: tuple[Sign, ...] = (
    # GPU memory
    _sign(Cause.OOM_AT_START, r"\bOutOfMemoryError\b|CUDA out of memory|HIP out of memory", "{oom}"),
    _sign(
        Cause.OOM_AT_START,
        r"CUDA error: out of memory|Cuda failure (?:2 )?'out of memory'|cudaErrorMemoryAllocation",
        "{oom}",
    ),
    _sign(Cause.OOM_AT_START, r"memory allocation failed with OOM on device \d+", "{oom}", rank=HINT, quiet=True),
    _sign(Cause.OOM_AT_START, r"No available memory for the cache blocks", "no GPU memory is left for the KV cache"),
    _sign(
        Cause.OOM_AT_START,
        r"To serve at least one request with the models?'s? max seq len \((?P<length>\d+)\).{0,40}?\(?(?P<needed>[\d.]+) GiB KV cache is needed"
        r".{0,80}?available KV cache memory \((?P<available>-?[\d.]+) GiB\)",
        "one request of {length} tokens needs {needed} GiB of KV cache, {available} GiB is available",
    ),
    _sign(
        Cause.OOM_AT_START, r"Failed to load model - not enough GPU memory", "the weights do not fit into GPU memory"
    ),
    # the host: GPUs, ports, disk
    _sign(
        Cause.GPU_BUSY,
        r"Free memory on device (?P<device>\S{0,20}) ?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than",
        "{device} had only {free} of {total} GiB free when the server started",
    ),
    _sign(
        Cause.GPU_UNSTEADY,
        r"Error in memory profiling\. Initial free memory",
        "another process freed GPU memory while vLLM measured it",
    ),
    _sign(
        Cause.GPU_BUSY, r"CUDA-capable device\(s\) is/are busy or unavailable", "the GPU is busy or in exclusive mode"
    ),
    _sign(
        Cause.DRIVER,
        r"NVIDIA driver on your system is too old(?P<found>.{0,60}?\))?",
        "the NVIDIA driver is too old for this image {found}",
    ),
    _sign(
        Cause.DRIVER,
        r"system has unsupported display driver / cuda driver combination",
        "CUDA error 803: driver and CUDA libraries do not fit",
    ),
    _sign(
        Cause.DRIVER,
        r"forward compatibility was attempted on non supported HW",
        "CUDA error 804: forward compatibility is for datacenter GPUs only",
    ),
    _sign(Cause.DRIVER, r"unsatisfied condition: (?P<what>\S{1,60})", "the NVIDIA container toolkit refuses: {what}"),
    _sign(
        Cause.DRIVER,
        r"Driver/library version mismatch",
        "the NVIDIA driver and its library are of different versions (reboot)",
    ),
    _sign(
        Cause.NO_GPU,
        r"No CUDA GPUs are available|no CUDA-capable device is detected|Failed to infer device type|Found no NVIDIA driver on your system",
        "the server sees no GPU",
    ),
    _sign(
        Cause.NO_GPU,
        r"invalid device ordinal|larger than the number of available GPUs",
        "the server needs more GPUs than it sees",
    ),
    _sign(Cause.PORT, r"[Aa]ddress already in use|EADDRINUSE", "the server's port is taken"),
    _sign(Cause.DISK_FULL, r"No space left on device", "no space left on the disk or in /dev/shm"),
    # the build cannot be tested
    _sign(
        Cause.UNKNOWN_FLAG,
        r"^\S{1,60}(?: serve)?: error: (?P<what>unrecognized arguments: .{1,300}|argument .{1,300}|ambiguous option: .{1,300}"
        r"|the following arguments are required: .{1,300})",
        "{what}",
    ),
    _sign(
        Cause.UNSUPPORTED_ARCHITECTURE,
        r"Model architectures (?P<what>\[.{0,200}?\]) (?:are not supported|failed to be inspected)",
        "model architectures {what} are not supported",
    ),
    _sign(
        Cause.UNSUPPORTED_ARCHITECTURE,
        r"Model architecture (?P<what>\S{1,100}) was supported in vLLM until",
        "model architecture {what} was dropped",
    ),
    _sign(
        Cause.UNSUPPORTED_ARCHITECTURE,
        r"does not recognize this architecture",
        "transformers does not recognize the model's architecture",
    ),
    _sign(
        Cause.UNSUPPORTED_ARCHITECTURE,
        r"(?P<what>\S{1,100}) has no vLLM implementation",
        "{what} has no vLLM implementation",
    ),
    _sign(
        Cause.IMPORT_ERROR,
        r"flashinfer-cubin version \((?P<a>\S{1,40})\) does not match flashinfer version",
        "flashinfer-cubin {a} does not match flashinfer",
    ),
    _sign(Cause.IMPORT_ERROR, r"^(?P<what>(?:ImportError|ModuleNotFoundError): .{1,300})", "{what}", rank=BROKEN),
    _sign(
        Cause.IMPORT_ERROR,
        r"^OSError: (?P<what>.{1,200}: cannot open shared object file.{0,60})",
        "{what}",
        rank=BROKEN,
    ),
    # crashes that are plainly not memory
    _sign(
        Cause.CRASH, r"an illegal memory access was encountered", "CUDA error: an illegal memory access was encountered"
    ),
    _sign(Cause.CRASH, r"device-side assert triggered", "CUDA error: device-side assert triggered"),
    _sign(Cause.CRASH, r"unspecified launch failure|misaligned address", "CUDA error in a kernel"),
    _sign(Cause.CRASH, r"^Fatal Python error: (?P<what>.{1,200})", "fatal Python error: {what}"),
    # hints
    _sign(
        Cause.KILLED,
        r"(?P<who>Worker proc \S{1,60}|Engine core proc \S{1,60}) died unexpectedly \(exit code: -9\)",
        "{who} was killed by signal 9 (often the host's OOM killer)",
        rank=HINT,
    ),
    _sign(
        Cause.KILLED,
        r"\[shutdown\] API server: shutdown triggered|trigger received signal=SIG",
        "the server was asked to shut down from outside",
        rank=HINT,
        quiet=True,
    ),
)

WRAPPERS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("KeyError in update_from_output", re.compile(r"^KeyError: '(?:chat)?cmpl-")),
    ("RuntimeError: Worker failed with error", re.compile(r"RuntimeError: Worker failed with error")),
    ("TimeoutError: RPC call timed out", re.compile(r"TimeoutError: RPC call to \w{1,60} timed out")),
    ("NCCL error", re.compile(r"RuntimeError: NCCL error|DistBackendError: NCCL")),
    ("Worker died unexpectedly", re.compile(r"(?:Worker|Engine core) proc \S{1,60} died unexpectedly")),
    ("EngineDeadError", re.compile(r"EngineDeadError: ")),
    ("WorkerProc initialization failed", re.compile(r"WorkerProc initialization failed due to an exception")),
    ("RuntimeError: Engine core initialization failed", re.compile(r"RuntimeError: Engine core initialization failed")),
)
"""What is thrown around a root cause, the most misleading first. Never a cause by itself."""

MARKERS = re.compile(
    r"EngineCore encountered a fatal error|EngineCore failed to start|WorkerProc hit an exception|WorkerProc failed to start"
)
"""Announces the traceback that ended an engine; the first exception after it is the root."""

EXCEPTION = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]{0,120}(?:Error|Exception|Failure|Timeout|Expired))(?:: (?P<what>.{0,500}))?$"
)
"""The last line of a traceback."""

NEVER_ROOT = re.compile(
    r"^(?:asyncio\.)?(?:exceptions\.)?(?:CancelledError|TimeoutError|GeneratorExit)$|zmq\.|BrokenPipeError|ConnectionResetError"
)

FATAL = re.compile(
    r"EngineCore encountered a fatal error|EngineCore failed to start|Engine core initialization failed"
    r"|EngineDeadError: |AsyncLLM output_handler failed|died unexpectedly, shutting down"
    r"|WorkerProc initialization failed due to an exception|RuntimeError: Worker failed with error"
    r"|died unexpectedly \(exit code"
)
"""After such a line no answer will come."""

STARTED = re.compile(r"^Application startup complete\.")
"""The web server's last line of a boot."""
