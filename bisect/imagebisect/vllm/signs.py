"""The one table of log lines that tell why a server failed, and which of them ends a wait.

`rank` orders them: of the lowest rank seen, the earliest line is the root cause.
Lines that the server itself calls a warning or less are never signs, unless a sign says so (`quiet`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagebisect.outcome import Cause
from imagebisect.vllm.stages import Stage, Told

ROOT = 0
"""Says by itself why a server died."""

BROKEN = 1
"""An import that failed: the root, unless something better is known."""

LOST = 2
"""A process that lost another: counts only where the log does not say why the other was lost."""

HINT = 3
"""Counts only where nothing but wrappers was found."""

FAINT = 4
"""Healthy servers say it too; it counts only where a server died and nothing else was found."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A line that names a cause. `says` words it from the pattern's named groups.

    OOM_AT_START stands for GPU memory in any phase; the phase decides what it becomes.
    `stage` is where the words alone tell the stage.
    """

    cause: Cause
    pattern: re.Pattern[str]
    says: str
    rank: int = ROOT
    quiet: bool = False
    stage: Told | None = None


def _sign(
    cause: Cause, pattern: str, says: str, *, rank: int = ROOT, quiet: bool = False, stage: Told | None = None
) -> Sign:
    return Sign(cause=cause, pattern=re.compile(pattern), says=says, rank=rank, quiet=quiet, stage=stage)


_LED = (
    r"^[\s|+>*-]{0,40}(?:\([^()\"']{1,80}\)\s+)?(?:\d{4}-\d\d-\d\d[T ][\d:.,]{8,20}Z?\s{1,3}(?:- )?)?(?:(?:ERROR|CRITICAL)\b[\s:-]{1,4})?"
    r"(?:what\(\):\s{1,3}|[A-Za-z_](?:[\w.]|::){0,120}(?:Error|Exception)(?:\(\w{1,80}\))?:\s?|\[(?:PG|Rank|rank)[^\]\"']{1,120}\]\s?"
    r"|(?:WorkerProc|EngineCore|Engine core|Worker|Process group watchdog)\b[^\"'`:]{0,120}:\s|[Ll]ast error:\s?|Value error,\s"
    r"|Worker failed with error '|Failed to load model - not enough GPU memory.{0,400}original error: ){0,5}"
)
"""What may stand before an exception's message. What is quoted, or in the middle of a sentence, is somebody's text."""

_UNQUOTED = r"^[^\"]*?"
"""Anything but a quotation: users' prompts and parameters are quoted in errors about them."""

_UNSAID = r"^(?:[^\"'`]*?|.{0,200}?Worker failed with error '[^\"'`]*?)"
"""The same for whole sentences, which single quotes may enclose as well."""

_NO_MEMORY = (
    r"\b(?:CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|hipErrorMemoryAllocation"
    r"|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)\b"
)
"""The GPU libraries' own names for it."""

_LOAD = Told(stage=Stage.LOAD, sure=True)
_KV_FIT = Told(stage=Stage.KV_FIT, sure=True)
_WARM_UP = Told(stage=Stage.WARM_UP, sure=False)  # profiling runs the same dummy requests

SIGNS: tuple[Sign, ...] = (
    # the host's own memory, which several of the GPU's words are used for
    _sign(
        Cause.HOST_OOM,
        r"^(?:\[[ \d.]{1,20}\] )?(?:Memory cgroup out of memory|Out of memory): Kill(?:ed)? process (?P<who>\d{1,9} \(\S{1,40}\))",
        "the kernel killed process {who}: the host's memory ran out",
        quiet=True,
    ),
    _sign(Cause.HOST_OOM, r"oom-kill:constraint=\w", "the kernel's OOM killer: the host's memory ran out", quiet=True),
    _sign(
        Cause.HOST_OOM,
        r"ray\.exceptions\.OutOfMemoryError|killed due to the node running low on memory",
        "Ray killed a worker: the host's memory ran low",
    ),
    # GPU memory
    _sign(
        Cause.OOM_AT_START,
        _LED + r"Failed to load model - not enough GPU memory(?P<how>.{0,400}original error)?",
        "{oom}",
        stage=_LOAD,
    ),
    _sign(Cause.OOM_AT_START, _LED + r"(?:CUDA|HIP) out of memory occurred when warming up", "{oom}", stage=_WARM_UP),
    _sign(
        Cause.OOM_AT_START,
        _LED + r"(?:[\w.:]{0,120}\(?\bOutOfMemoryError\b(?:\)?:|\(|\s*$)|(?:CUDA|HIP|XPU) out of memory\b)"
        r"|^terminate called after throwing an instance of '[\w:]{0,40}OutOfMemoryError'"
        # after another sentence, or cut into by another process: in PyTorch's full form, with no quotation to end
        r"|: (?:CUDA|HIP|XPU) out of memory\. Tried to allocate \d[^\"'`]*$",
        "{oom}",
    ),
    _sign(
        Cause.OOM_AT_START,
        _LED + r"(?:(?:CUDA|HIP)(?: driver| runtime)? [Ee]rror(?: ?\([^()\"']{1,200}\)| at [^\"'\s]{1,200})?:\s?"
        r"|Triton Error \[(?:CUDA|HIP)\]: )out of memory"
        r"|^[^\"']{0,200}\bCuda failure (?:2 )?'out of memory'"
        r"|" + _LED + r"(?:[^\"'`]{0,300}(?:[:=(\[]|\b(?:error|code|status|returned|with|got))\s?)?" + _NO_MEMORY,
        "{oom}",
    ),
    _sign(Cause.OOM_AT_START, r"memory allocation failed with OOM on device \d+", "{oom}", rank=HINT, quiet=True),
    _sign(
        Cause.OOM_AT_START,
        _UNSAID + r"(?:No available memory for the cache blocks|Cannot auto-fit max_model_len: not enough GPU memory)",
        "no GPU memory is left for the KV cache",
        stage=_KV_FIT,
    ),
    _sign(
        Cause.OOM_AT_START,
        _UNSAID
        + r"To serve at least one request with the models?'s? max seq len \((?P<length>\d+)\).{0,40}?\(?(?P<needed>[\d.]+) GiB KV cache is needed"
        r".{0,80}?available KV cache memory \((?P<available>-?[\d.]+) GiB\)(?:.{0,80}?estimated maximum model length is (?P<possible>\d+))?",
        "one request of {length} tokens needs {needed} GiB of KV cache, {available} GiB is available",
        stage=_KV_FIT,
    ),
    # the host's memory again, in words that are also a part of the GPU's
    _sign(
        Cause.HOST_OOM,
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc|\[Errno 12\] Cannot allocate memory"
        r"|^(?:[\w.]{1,60}\.)?_?(?:Array)?MemoryError\b",
        "an allocation in the host's memory failed",
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
        r"^\S{1,60}(?: serve)?: error: (?P<what>argument [^:]{1,120}: (?:invalid |expected ).{1,300})",
        "the flag is known, its value is not: {what}",
    ),
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
        Cause.CUDA_ERROR,
        r"\.(?:cuh?|hip):\d{1,6}: .{0,200}(?P<what>Assertion `.{1,200}` failed)",
        "device-side assert: {what}",
    ),
    _sign(
        Cause.CUDA_ERROR,
        _UNQUOTED + r"(?P<what>\w{3,10}_STATUS_ALLOC_FAILED\b)",
        "{what} (a CUDA library got no memory: often a lack of GPU memory, but the log does not say so)",
    ),
    _sign(
        Cause.CUDA_ERROR,
        _UNQUOTED
        + r"(?P<what>(?:CUDA|HIP)(?: driver| runtime)? [Ee]rror: .{1,200}|Triton Error \[(?:CUDA|HIP)\]: .{1,200}"
        r"|(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER|HIPBLAS)_STATUS_[A-Z_]{1,60})",
        "{what}",
    ),
    _sign(
        Cause.CUDA_ERROR,
        _UNQUOTED
        + r"(?P<what>an illegal memory access was encountered|device-side assert triggered|unspecified launch failure"
        r"|misaligned address|cudaErrorIllegalAddress|cudaErrorLaunchFailure)",
        "CUDA error: {what}",
    ),
    _sign(Cause.CRASH, r"^Fatal Python error: (?P<what>.{1,200})", "fatal Python error: {what}"),
    # a process that lost another
    _sign(
        Cause.NCCL,
        r"(?P<what>Watchdog caught collective operation timeout.{0,200}|DistBackendError: .{1,200}|RuntimeError: NCCL error.{0,200}"
        r"|(?:ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError).{0,200}"
        r"|Some NCCL operations have failed or timed out.{0,100})",
        "{what}",
        rank=LOST,
    ),
    _sign(
        Cause.RPC_TIMEOUT,
        r"TimeoutError: (?P<what>RPC call to \w{1,60} timed out)|(?P<ray>RayChannelTimeoutError.{0,200})",
        "{what}{ray}",
        rank=LOST,
    ),
    # hints
    _sign(
        Cause.HOST_OOM,
        r"(?P<who>Worker proc \S{1,60}|Engine core proc \S{1,60}|Process \S{1,60} \(PID: \d{1,9}\)) died"
        r" (?:unexpectedly \(exit code: |with exit code )-9\b",
        "{who} was killed by signal 9, as the kernel does when the host's memory runs out",
        rank=HINT,
    ),
    _sign(
        Cause.KILLED,
        r"\[shutdown\] API server: shutdown triggered|trigger received signal=SIG",
        "the server was asked to shut down from outside",
        rank=HINT,
        quiet=True,
    ),
    _sign(
        Cause.RPC_TIMEOUT,
        r"No available shared memory broadcast block found",
        "a worker no longer answered: no shared memory broadcast block was free",
        rank=FAINT,
        quiet=True,
    ),
)

WORDS = (
    "rror",
    "xception",
    "failed",
    "Failed",
    "imeout",
    "memory",
    "OUT_OF_",
    "_STATUS_",
    "oom-kill",
    "bad_alloc",
    "NCCL",
    " died ",
    "trigger",
    "startup complete",
)
"""One of these is in every line that any pattern here knows; looking for words is much cheaper than for patterns."""

WRAPPERS: tuple[tuple[str, re.Pattern[str], Cause | None], ...] = (
    ("KeyError in update_from_output", re.compile(r"^KeyError: '(?:(?:chat)?cmpl-|resp_)"), Cause.CRASH),
    ("RuntimeError: Worker failed with error", re.compile(r"RuntimeError: Worker failed with "), None),
    (
        "TimeoutError: RPC call timed out",
        re.compile(r"TimeoutError: RPC call to \w{1,60} timed out"),
        Cause.RPC_TIMEOUT,
    ),
    ("RayChannelTimeoutError", re.compile(r"RayChannelTimeoutError"), Cause.RPC_TIMEOUT),
    (
        "NCCL error",
        re.compile(r"RuntimeError: NCCL error|DistBackendError: |Watchdog caught collective operation timeout"),
        Cause.NCCL,
    ),
    ("Worker died unexpectedly", re.compile(r"(?:Worker|Engine core) proc \S{1,60} died unexpectedly"), None),
    ("EngineDeadError", re.compile(r"EngineDeadError: "), None),
    (
        "WorkerProc initialization failed",
        re.compile(r"WorkerProc initialization failed due to an exception"),
        None,
    ),
    (
        "RuntimeError: Engine core initialization failed",
        re.compile(r"RuntimeError: Engine core initialization failed"),
        None,
    ),
)
"""What is thrown around a root cause, the most misleading first, and what it is called where the log has no root."""

PASSED_ON = re.compile(r"Worker failed with error|original error: |Watchdog|watchdog thread terminated")
"""In a line that repeats another's error: the frames above it are not where memory was asked for."""

MARKERS = re.compile(
    r"EngineCore encountered a fatal error|EngineCore failed to start|WorkerProc hit an exception|WorkerProc failed to start"
)
"""Announces the traceback that ended an engine; the first exception after it is the root."""

ENDS_ENGINE = re.compile(r"EngineCore encountered a fatal error|EngineCore failed to start")
"""Of the markers, those after which a server never goes on."""

CAUGHT = frozenset({Cause.IMPORT_ERROR, Cause.DISK_FULL})
"""What servers often catch, log and live on without."""

WORKER = re.compile(r"^(?:\w{0,20}Worker|rank\d)")
"""A process that works for an engine."""

ANSWERED = re.compile(r'"POST /\S{0,200} HTTP/[\d.]{1,4}" 200\b')
"""The access log's line of a request that was answered."""

PROGRESSED = re.compile(
    r"^Engine \d{1,6}: Avg prompt throughput: (?P<prompt>[\d.]{1,12}) tokens/s, "
    r"Avg generation throughput: (?P<generation>[\d.]{1,12}) tokens/s"
)
"""An engine's account of the last 10 s."""

SERVING_WORDS = ('"POST /', "Avg prompt throughput")
"""One of these is in every line that shows that a server works."""

EXCEPTION = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]{0,120}(?:Error|Exception|Failure|Timeout|Expired|OutOfResources))(?:: (?P<what>.{0,500}))?$"
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
