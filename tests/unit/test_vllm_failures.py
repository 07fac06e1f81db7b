"""Reading a root cause out of a server's log: recorded logs, worded lines, and noise."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebisect.domain import Phase
from imagebisect.outcome import POLICY, Cause
from imagebisect.runtime.base import ExitState
from imagebisect.vllm import failures

RECORDED = Path(__file__).parent.parent / "fixtures"
H200 = RECORDED / "vllm-0.26.0-h200"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 48.00 MiB. GPU 1 has a total capacity of 15.51 GiB "
    "of which 31.31 MiB is free. Including non-PyTorch memory, this process has 15.47 GiB memory in use."
)


def ended(code: int = 1, *, oom_killed: bool = False) -> ExitState:
    """A server that is gone."""
    return ExitState(exit_code=code, oom_killed=oom_killed)


def worker(text: str, level: str = "ERROR", process: str = "Worker_TP1") -> str:
    """A line as a worker logs it."""
    return f"({process} pid=77) {level} 11-30 23:57:09 [multiproc_executor.py:1007] {text}"


@pytest.fixture
def log(tmp_path):
    """Writes lines as a log and returns its path."""

    def write(*lines: str) -> Path:
        path = tmp_path / "server.log"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


# ------------------------------------------------------------------- recorded logs


def test_oom_at_request_is_read_at_its_root():
    """The client only saw `EngineCore encountered an issue`; the log says what was wanted and what was free."""
    failure = failures.classify(H200 / "oom-at-request.log", phase=Phase.REQUEST, exit_state=ended(0))

    assert failure.cause == Cause.OOM_AT_REQUEST
    assert failure.details["asked_mib"] == 266.0
    assert failure.details["free_mib"] == 249.12
    assert failure.details["capacity_gib"] == 139.8
    assert failure.details["gpu"] == 0
    assert failure.details["reserved_unallocated_mib"] == 112.76
    assert failure.details["stage"] == "request"
    assert failure.details["frame"] == "vllm/model_executor/models/qwen3_next.py:forward"
    assert failure.masked_by == "EngineDeadError"
    assert failure.exit_code == 0
    assert "266.00 MiB wanted, 249.12 MiB free of 139.80 GiB on GPU 0" in failure.message


def test_oom_masked_by_a_keyerror_is_still_an_oom():
    """Section 5 of the bug: the engine dies of KeyError, the worker ran out of memory before it."""
    failure = failures.classify(H200 / "oom-masked-by-keyerror.log", phase=Phase.REQUEST, exit_state=ended(0))

    assert failure.cause == Cause.OOM_AT_REQUEST
    assert (failure.details["asked_mib"], failure.details["free_mib"]) == (266.0, 249.06)
    assert failure.masked_by == failure.details["masked_by"] == "KeyError in update_from_output"
    line = (H200 / "oom-masked-by-keyerror.log").read_bytes().split(b"\n")[failure.log_line - 1]
    assert b"OutOfMemoryError" in line


def test_oom_at_boot_is_an_oom_at_start():
    """The last lines only say that the engine core's initialization failed."""
    failure = failures.classify(H200 / "oom-at-boot.log", phase=Phase.BOOT, exit_state=ended(1))

    assert failure.cause == Cause.OOM_AT_START
    assert (failure.details["asked_mib"], failure.details["free_mib"]) == (96.0, 79.12)
    assert "(s72, 6144)" in failure.details["code"]
    assert failure.details["stage"] == "warm_up"
    assert failure.masked_by == "RuntimeError: Engine core initialization failed"


def test_an_oom_in_a_workers_warm_up_is_an_oom_at_start():
    """The worker runs out while FlashInfer tunes itself; the engine then only repeats that a worker failed."""
    failure = failures.classify(H200 / "oom-in-warm-up.log", phase=Phase.BOOT, exit_state=ended(1))

    assert failure.cause == Cause.OOM_AT_START
    assert (failure.details["asked_mib"], failure.details["free_mib"]) == (544.0, 347.12)
    assert failure.details["reserved_unallocated_mib"] == 489.31
    assert failure.details["stage"] == "warm_up"
    assert failure.details["frame"] == "vllm/model_executor/models/qwen3_next.py:forward"
    assert "(s72, 34816)" in failure.details["code"]
    assert failure.masked_by == "RuntimeError: Worker failed with error"


def test_no_room_for_the_kv_cache_is_a_failure_for_memory():
    """Without a pin: nothing is left for the cache blocks, and the record says how much was missing."""
    failure = failures.classify(H200 / "no-kv-memory.log", phase=Phase.BOOT, exit_state=ended(1))

    assert failure.cause == Cause.OOM_AT_START
    assert failure.details["available_kv_mib"] == pytest.approx(-1.32 * 1024)
    assert failure.details["stage"] == "kv_fit"


def test_an_unknown_flag_is_the_builds_own_fault():
    """The flag is named, so that a reader can rewrite it."""
    failure = failures.classify(H200 / "unknown-flag.log", phase=Phase.BOOT, exit_state=ended(2))

    assert failure.cause == Cause.UNKNOWN_FLAG
    assert failure.message == "unrecognized arguments: --no-such-flag 1"


def test_a_missing_kernel_is_a_crash_and_no_oom():
    """Warm-up warnings even say that the first inference may OOM; what killed the engine is something else."""
    failure = failures.classify(H200 / "dies-on-first-request.log", phase=Phase.REQUEST, exit_state=ended(0))

    assert failure.cause == Cause.CRASH
    assert failure.message == "NotImplementedError: SM90 GDN prefill DSL kernel is unavailable"
    assert failure.log_line == 502


def test_a_boot_that_was_only_slow_shows_no_failure():
    """A ready timeout stays one: the log has nothing to set against it."""
    failure = failures.classify(
        H200 / "not-ready-in-260s.log",
        phase=Phase.BOOT,
        exit_state=None,
        observed="not ready after 260 s",
        fallback=Cause.READY_TIMEOUT,
    )

    assert (failure.cause, failure.message) == (Cause.READY_TIMEOUT, "not ready after 260 s")


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*/boot-and-prefill-ok.log")), ids=lambda p: p.parent.name)
def test_a_healthy_log_names_no_cause(path):
    """Whatever a healthy server logs, also while it is shut down, is no OOM and no crash."""
    alive = failures.classify(path, phase=Phase.REQUEST, exit_state=None, fallback=Cause.REQUEST_FAILED)
    gone = failures.classify(path, phase=Phase.REQUEST, exit_state=ended(0))

    assert alive.cause in {Cause.REQUEST_FAILED, Cause.KILLED}
    assert gone.cause in {Cause.UNKNOWN, Cause.KILLED}


# ------------------------------------------------------------------- what lines say

ROOTS = [
    (
        (
            "ValueError: Free memory on device cuda:0 (14.10/15.51 GiB) on startup is less than desired GPU memory utilization "
            "(0.95, 14.73 GiB). Decrease GPU memory utilization"
        ),
        Cause.GPU_BUSY,
    ),
    ("ValueError: Free memory on device (14.10/15.51 GiB) on startup is less than desired GPU memory", Cause.GPU_BUSY),
    ("AssertionError: Error in memory profiling. Initial free memory 1, current free memory 2.", Cause.GPU_UNSTEADY),
    (
        (
            "ValueError: To serve at least one request with the models's max seq len (188160), (3.05 GiB KV cache is needed, "
            "which is larger than the available KV cache memory (2.90 GiB). Based on"
        ),
        Cause.OOM_AT_START,
    ),
    (
        (
            "ValueError: To serve at least one request with the model's max seq len (188160), 3.05 GiB KV cache is needed, "
            "which is larger than the available KV cache memory (2.90 GiB)."
        ),
        Cause.OOM_AT_START,
    ),
    (
        "ValueError: Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization",
        Cause.OOM_AT_START,
    ),
    ("RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests.", Cause.OOM_AT_START),
    ("torch.cuda.OutOfMemoryError: Tried to allocate 2.00 GiB", Cause.OOM_AT_START),
    ("RuntimeError: CUDA error: out of memory", Cause.OOM_AT_START),
    (
        "ValueError: Model architectures ['Qwen9ForCausalLM'] are not supported for now. Supported: ...",
        Cause.UNSUPPORTED_ARCHITECTURE,
    ),
    (
        "ValueError: Model architectures ['Qwen9'] failed to be inspected. Please check the logs",
        Cause.UNSUPPORTED_ARCHITECTURE,
    ),
    ("ValueError: Model architecture Old was supported in vLLM until v0.9, and is not", Cause.UNSUPPORTED_ARCHITECTURE),
    (
        "ValueError: The checkpoint you are trying to load has model type `x` but Transformers does not recognize this architecture.",
        Cause.UNSUPPORTED_ARCHITECTURE,
    ),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please update", Cause.DRIVER),
    ("RuntimeError: Error 803: system has unsupported display driver / cuda driver combination", Cause.DRIVER),
    ("Error 804: forward compatibility was attempted on non supported HW", Cause.DRIVER),
    ("RuntimeError: No CUDA GPUs are available", Cause.NO_GPU),
    ("RuntimeError: Failed to infer device type, please set the environment variable", Cause.NO_GPU),
    ("OSError: [Errno 98] Address already in use", Cause.PORT),
    ("OSError: [Errno 28] No space left on device", Cause.DISK_FULL),
    ("ImportError: cannot import name 'AnthropicOutputConfig' from 'anthropic.types'", Cause.IMPORT_ERROR),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", Cause.IMPORT_ERROR),
    ("ModuleNotFoundError: No module named 'flashinfer'", Cause.IMPORT_ERROR),
    ("RuntimeError: flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14)", Cause.IMPORT_ERROR),
    ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", Cause.CUDA_ERROR),
    ("RuntimeError: CUDA error: device-side assert triggered", Cause.CUDA_ERROR),
    ("vllm: error: unrecognized arguments: --foo", Cause.UNKNOWN_FLAG),
    (
        "vllm serve: error: argument --gdn-prefill-backend: invalid choice: 'x' (choose from 'triton')",
        Cause.UNKNOWN_FLAG,
    ),
    ("api_server.py: error: argument --port: expected one argument", Cause.UNKNOWN_FLAG),
]


@pytest.mark.parametrize(("line", "cause"), ROOTS, ids=[text[:50] for text, _ in ROOTS])
def test_a_boot_failure_is_named_by_its_line(log, line, cause):
    """One line says why, under the wrapper that every failed boot ends with."""
    path = log(
        "(EngineCore pid=5) ERROR 11-30 23:15:18 [core.py:1330] EngineCore failed to start.",
        line,
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    )

    assert failures.classify(path, phase=Phase.BOOT, exit_state=ended()).cause == cause


@pytest.mark.parametrize(
    "wrapper",
    [
        "KeyError: 'chatcmpl-a51c'",
        "RuntimeError: Worker failed with error 'CUDA out of memory. Tried to allocate 48.00 MiB.', please check",
        "TimeoutError: RPC call to sample_tokens timed out.",
        "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    ],
)
def test_whatever_wraps_an_oom_it_stays_one(log, wrapper):
    """Builds differ in what they die of after a worker ran out of memory; the cause and the numbers do not."""
    path = log(
        worker("WorkerProc hit an exception."),
        worker(OOM),
        f"(EngineCore pid=5) ERROR 11-30 23:57:09 [core.py:1] {wrapper}",
    )

    failure = failures.classify(path, phase=Phase.REQUEST, exit_state=ended())

    assert failure.cause == Cause.OOM_AT_REQUEST
    assert (failure.details["asked_mib"], failure.details["free_mib"], failure.details["gpu"]) == (48.0, 31.31, 1)


def test_a_keyerror_without_an_oom_is_no_oom(log):
    """The same KeyError has other causes (KV connectors, for one)."""
    path = log(
        "(EngineCore pid=5) ERROR 11-30 23:57:09 [core.py:1] EngineCore encountered a fatal error.",
        "KeyError: 'cmpl-1'",
    )

    failure = failures.classify(path, phase=Phase.REQUEST, exit_state=ended())

    assert failure.cause == Cause.CRASH
    assert "names no root cause" in failure.message


def test_a_bare_dead_engine_is_unknown(log):
    """Nothing but wrappers: the honest answer is that the log does not say why."""
    path = log(
        "ERROR 11-30 23:57:09 [a.py:1] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    )

    assert failures.classify(path, phase=Phase.REQUEST, exit_state=ended(0)).cause == Cause.UNKNOWN


def test_the_allocators_own_line_unmasks_an_oom_behind_wrappers(log):
    """New PyTorch warns with exact bytes; behind a bare KeyError that is the root cause."""
    path = log(
        "[rank1]:[W828 17:15:54.544007289 CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device 1"
        " while trying to allocate 180355072 bytes (free: 170328064, total: 16611278848).",
        "(EngineCore pid=5) ERROR 11-30 23:57:09 [core.py:1] EngineCore encountered a fatal error.",
        "(EngineCore pid=5) ERROR 11-30 23:57:09 [core.py:1] KeyError: 'chatcmpl-1'",
    )

    failure = failures.classify(path, phase=Phase.REQUEST, exit_state=ended())

    assert failure.cause == Cause.OOM_AT_REQUEST
    assert failure.details["asked_mib"] == 172.0
    assert failure.details["free_mib"] == pytest.approx(162.44, abs=0.01)
    assert failure.details["gpu"] == 1


def test_an_oom_that_was_only_warned_of_is_not_the_cause(log):
    """A caught out-of-memory in a warning, then a crash of another kind: a crash."""
    path = log(
        worker(OOM, level="WARNING"),
        "(EngineCore pid=5) ERROR 11-30 23:57:09 [core.py:1] EngineCore encountered a fatal error.",
        "(EngineCore pid=5) ERROR 11-30 23:57:09 [core.py:1] ValueError: shapes do not fit",
    )

    failure = failures.classify(path, phase=Phase.REQUEST, exit_state=ended())

    assert (failure.cause, failure.message) == (Cause.CRASH, "ValueError: shapes do not fit")


def test_an_illegal_access_before_an_oom_is_what_counts(log):
    """Memory may run out while a broken engine falls apart; what came first counts."""
    path = log(worker("RuntimeError: CUDA error: an illegal memory access was encountered"), worker(OOM))

    assert failures.classify(path, phase=Phase.REQUEST, exit_state=ended()).cause == Cause.CUDA_ERROR


def test_an_oom_that_the_boot_survived_does_not_explain_a_later_crash(log):
    """What the log says before the server was up is not why a request failed."""
    path = log(
        worker(OOM),
        "(APIServer pid=1) INFO:     Application startup complete.",
        "(EngineCore pid=5) ERROR 11-30 23:57:09 [core.py:1] EngineCore encountered a fatal error.",
        "(EngineCore pid=5) ERROR 11-30 23:57:09 [core.py:1] NotImplementedError: no kernel",
    )

    assert failures.classify(path, phase=Phase.REQUEST, exit_state=ended()).cause == Cause.CRASH


@pytest.mark.parametrize(
    ("size", "asked"),
    [("512 bytes", 0.0), ("1.00 KiB", 0.0), ("20.00 KiB", 0.02), ("48.00 MiB", 48.0), ("1.63 GiB", 1669.12)],
)
def test_every_unit_of_the_allocator_is_read(log, size, asked):
    """Sizes come in bytes, KiB, MiB and GiB; the record is in MiB."""
    text = OOM.replace("48.00 MiB", size).replace("31.31 MiB is free", "0 bytes is free")
    failure = failures.classify(log(worker(text)), phase=Phase.REQUEST, exit_state=ended())

    assert failure.details["asked_mib"] == asked
    assert failure.details["free_mib"] == 0.0


def test_the_old_form_of_an_oom_is_read(log):
    """PyTorch before 2.1 put the numbers in brackets."""
    path = log(
        worker(
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.63 GiB (GPU 0; 44.56 GiB total capacity; "
            "42.10 GiB already allocated; 1.20 GiB free; 42.60 GiB reserved in total by PyTorch)"
        )
    )

    details = failures.classify(path, phase=Phase.REQUEST, exit_state=ended()).details

    assert (details["asked_mib"], details["free_mib"], details["capacity_gib"], details["gpu"]) == (
        1669.12,
        1228.8,
        44.56,
        0,
    )


def test_the_frame_that_allocated_is_named(log):
    """The kernel that asked for the memory identifies the bug."""
    folder = "/usr/local/lib/python3.12/dist-packages"
    path = log(
        worker("Traceback (most recent call last):"),
        worker(f'  File "{folder}/vllm/third_party/flash_linear_attention/ops/chunk_o.py", line 150, in chunk_fwd_o'),
        worker("    o = torch.empty_like(v)"),
        worker(OOM),
    )

    details = failures.classify(path, phase=Phase.REQUEST, exit_state=ended()).details

    assert details["frame"] == "vllm/third_party/flash_linear_attention/ops/chunk_o.py:chunk_fwd_o"
    assert details["code"] == "o = torch.empty_like(v)"


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (ended(137), Cause.KILLED),
        (ended(-9), Cause.KILLED),
        (ended(137, oom_killed=True), Cause.HOST_OOM),
        (ended(0, oom_killed=True), Cause.HOST_OOM),
        (ended(-11), Cause.CRASH),
        (ended(139), Cause.CRASH),
        (ended(0), Cause.UNKNOWN),
        (ended(3), Cause.UNKNOWN),
    ],
)
def test_a_silent_end_is_read_from_the_exit_state(log, state, cause):
    """A log that breaks off: killed from outside, by the kernel for host memory, crashed, or unknown."""
    path = log("(APIServer pid=1) INFO 11-30 23:57:09 [a.py:1] Starting to load model")

    failure = failures.classify(path, phase=Phase.BOOT, exit_state=state)

    assert failure.cause == cause
    assert failure.exit_code == state.exit_code


def test_a_gpu_oom_beats_the_hosts(log):
    """Both in one start: the GPU's is in the log in the server's own words."""
    failure = failures.classify(log(worker(OOM)), phase=Phase.REQUEST, exit_state=ended(137, oom_killed=True))

    assert failure.cause == Cause.OOM_AT_REQUEST


def test_no_log_at_all_is_unknown(tmp_path):
    """A server that never wrote a line."""
    assert failures.classify(tmp_path / "none.log", phase=Phase.BOOT, exit_state=ended(1)).cause == Cause.UNKNOWN


# ------------------------------------------------------------------------ fatal lines


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("oom-at-request.log", 108),
        ("oom-masked-by-keyerror.log", None),
        ("oom-at-boot.log", None),
        ("no-kv-memory.log", 48),
        ("unknown-flag.log", 4),
        ("dies-on-first-request.log", 412),
    ],
)
def test_a_dying_server_is_known_by_its_first_fatal_line(name, first):
    """The wait ends at the engine's own announcement, minutes before any time-out."""
    fatal = [n for n, line in enumerate((H200 / name).read_text().split("\n"), 1) if failures.is_fatal(line)]

    assert fatal
    assert first is None or abs(fatal[0] - first) <= 1


def test_warnings_with_tracebacks_are_not_fatal():
    """The build that dies on its first request boots with 200 lines of warning tracebacks, and boots all the same."""
    lines = (H200 / "dies-on-first-request.log").read_text().split("\n")[:400]

    assert not any(failures.is_fatal(line) for line in lines)


@pytest.mark.parametrize("name", ["boot-and-prefill-ok.log", "not-ready-in-260s.log"])
def test_healthy_lines_are_not_fatal(name):
    """Not one line of a server that works ends a wait."""
    assert not any(failures.is_fatal(line) for line in (H200 / name).read_text().split("\n"))


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) ERROR 11-30 23:57:09 [serving.py:1] Error in preprocessing prompt inputs",
        "(APIServer pid=1) ERROR 11-30 23:57:09 [repo.py:1] Failed to fetch file list, retrying 1/2",
        'INFO 11-30 23:57:09 [a.py:1] non-default args: {"note": "EngineDeadError: x"}',
    ],
)
def test_errors_that_are_survived_are_not_fatal(line):
    """A refused request, a retried download, a quoted word."""
    assert not failures.is_fatal(line)


# ------------------------------------------------------------------------------ noise


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=300), st.sampled_from([OOM.encode(), b"\x1b[31mERROR", b"\r\n", b"KeyError: 'cmpl-"])
        )
    )
)
def test_any_bytes_can_be_classified(tmp_path_factory, pieces):
    """Torn and binary logs give a failure of some kind, never an exception."""
    path = tmp_path_factory.mktemp("log") / "server.log"
    path.write_bytes(b"\n".join(pieces))

    failure = failures.classify(path, phase=Phase.REQUEST, exit_state=ended())

    assert failure.cause in set(Cause)
    assert len(failure.message) <= failures.LONGEST_MESSAGE


def test_a_huge_log_with_one_endless_line_is_read_in_bounded_memory(tmp_path):
    """100 MB without a line's end, then an OOM: found, in a few MB and seconds."""
    path = tmp_path / "server.log"
    with path.open("wb") as stream:
        for _ in range(100):
            stream.write(os.urandom(1 << 20).replace(b"\n", b"x"))
        stream.write(b"\n" + worker(OOM).encode() + b"\n")
    began = time.monotonic()
    tracemalloc.start()
    try:
        failure = failures.classify(path, phase=Phase.REQUEST, exit_state=ended())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert failure.cause == Cause.OOM_AT_REQUEST
    assert peak < 16 << 20
    assert time.monotonic() - began < 30


def test_colour_and_carriage_returns_do_not_hide_a_cause(log):
    """A log taken from a terminal: ANSI colour, progress bars drawn over each other, CR LF."""
    path = log(
        "(EngineCore pid=5) Capturing CUDA graphs:   0%|\rCapturing CUDA graphs: 100%|\r"
        f"\x1b[1;36m(Worker pid=7)\x1b[0;0m \x1b[31mERROR\x1b[0m 11-30 23:57:09 [a.py:1] {OOM}\r"
    )

    assert failures.classify(path, phase=Phase.BOOT, exit_state=ended()).cause == Cause.OOM_AT_START


def test_what_a_server_survived_is_not_why_it_died_later(log):
    """An OOM that failed one request only, then, in a later round, a crash: the crash is named, at its own line."""
    path = log("INFO:     Application startup complete.", worker(OOM))
    survived = path.stat().st_size
    with path.open("a") as stream:
        stream.write(worker("CUDA error: an illegal memory access was encountered") + "\n")
        stream.write("(EngineCore pid=7) ERROR 11-30 23:57:09 [core.py:1] EngineCore encountered a fatal error.\n")

    whole = failures.classify(path, phase=Phase.REQUEST, exit_state=ended(1))
    later = failures.classify(path, phase=Phase.REQUEST, exit_state=ended(1), since=survived)

    assert whole.cause == Cause.OOM_AT_REQUEST
    assert later.cause == Cause.CUDA_ERROR
    assert later.log_line == 3


# ------------------------------------------------------- what was survived, quoted or caught

FATAL = "(EngineCore pid=5) ERROR 11-30 23:57:09 [core.py:1] EngineCore encountered a fatal error."
ENGINE = "(EngineCore pid=5) ERROR 11-30 23:57:09 [core.py:1] "
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
ANSWERED = '(APIServer pid=1) INFO:     127.0.0.1:38080 - "POST /v1/completions HTTP/1.1" 200 OK'
POLLED = '(APIServer pid=1) INFO:     127.0.0.1:38080 - "GET /metrics HTTP/1.1" 200 OK'
PROGRESS = (
    "(APIServer pid=1) INFO 11-30 23:57:19 [loggers.py:1] Engine 000: Avg prompt throughput: 1550.0 tokens/s, "
    "Avg generation throughput: 3.1 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%"
)
IDLE = PROGRESS.replace("1550.0", "0.0").replace("3.1", "0.0")


@pytest.mark.parametrize(
    ("between", "cause"),
    [
        ([ANSWERED], Cause.CUDA_ERROR),
        ([PROGRESS], Cause.CUDA_ERROR),
        ([POLLED, IDLE], Cause.OOM_AT_REQUEST),
        ([], Cause.OOM_AT_REQUEST),
    ],
    ids=["answered", "progress", "only-polled", "at-once"],
)
def test_an_oom_after_which_the_server_served_is_not_why_it_died(log, between, cause):
    """In one round: a request fails for memory, others are answered, then the engine dies of something else."""
    path = log(
        "INFO:     Application startup complete.", worker(OOM), *between, FATAL, ENGINE + ILLEGAL, "EngineDeadError: x"
    )

    assert failures.classify(path, phase=Phase.REQUEST, exit_state=ended()).cause == cause


@pytest.mark.parametrize(
    "end",
    [
        [FATAL, ENGINE + "KeyError: 'cmpl-1'"],
        [FATAL, ENGINE + "TimeoutError: RPC call to sample_tokens timed out."],
        ["RuntimeError: NCCL error: unhandled cuda error"],
        [],
    ],
    ids=["keyerror", "rpc", "nccl", "alive"],
)
def test_an_oom_that_was_survived_still_names_a_failure_that_nothing_else_does(log, end):
    """The server answered once more, but what followed only wraps: the OOM stays the root, with its numbers and line."""
    path = log("INFO:     Application startup complete.", worker(OOM), ANSWERED, *end)

    failure = failures.classify(path, phase=Phase.REQUEST, exit_state=ended() if end else None)

    assert (failure.cause, failure.log_line, failure.details["asked_mib"]) == (Cause.OOM_AT_REQUEST, 2, 48.0)


def test_a_lost_worker_is_not_survived_because_the_server_still_accepts(log):
    """A rank ran out of memory; streams are still opened with 200 and the last 10 s still show tokens while it falls apart."""
    path = log(
        worker("WorkerProc hit an exception."),
        worker(OOM),
        ANSWERED,
        PROGRESS,
        worker("WorkerProc hit an exception.", process="Worker_TP0"),
        worker(ILLEGAL, process="Worker_TP0"),
        FATAL,
        ENGINE + "KeyError: 'cmpl-1'",
    )

    assert failures.classify(path, phase=Phase.REQUEST, exit_state=ended()).cause == Cause.OOM_AT_REQUEST


QUOTED = [
    '(APIServer pid=1) ERROR 11-30 23:57:09 [serving.py:1] Error in preprocessing prompt inputs: "help, CUDA out of memory"',
    '(APIServer pid=1) ERROR 11-30 23:57:09 [serving.py:1] Error in preprocessing: "CUDA out of memory. Tried to allocate 2 GiB"',
    '(APIServer pid=1) ERROR 11-30 23:57:09 [serving.py:1] Bad prompt: "torch.OutOfMemoryError: CUDA out of memory."',
    '(APIServer pid=1) ERROR 11-30 23:57:09 [serving.py:1] Bad prompt: "RuntimeError: CUDA error: out of memory"',
    '(APIServer pid=1) ERROR 11-30 23:57:09 [serving.py:1] Bad prompt: "why CUDA_ERROR_OUT_OF_MEMORY"',
    "(APIServer pid=1) ERROR 11-30 23:57:09 [serving.py:1] ValueError: Unsupported role: CUDA out of memory",
    "(APIServer pid=1) ERROR 11-30 23:57:09 [serving.py:1] Bad prompt: 'No available memory for the cache blocks'",
    "(EngineCore pid=5) ERROR 11-30 23:57:09 [a.py:1] ValueError: shapes differ, this is not a CUDA out of memory",
    "(EngineCore pid=5) ERROR 11-30 23:57:09 [a.py:1] ValueError: got no OutOfMemoryError from the allocator",
    '(APIServer pid=1) ERROR 11-30 23:57:09 [serving.py:1] Bad prompt: "CUDA error: an illegal memory access"',
]


@pytest.mark.parametrize("line", QUOTED, ids=[line.partition("] ")[2][:60] for line in QUOTED])
def test_quoted_words_are_no_evidence(log, line):
    """A user's prompt, or a sentence that says the opposite, does not turn a crash into an OOM, nor end a wait."""
    path = log(line, FATAL, ENGINE + "IndexError: list index out of range")

    failure = failures.classify(path, phase=Phase.REQUEST, exit_state=ended())
    alone = failures.classify(
        log(line), phase=Phase.REQUEST, exit_state=None, observed="HTTP 500", fallback=Cause.REQUEST_FAILED
    )

    assert (failure.cause, failure.message) == (Cause.CRASH, "IndexError: list index out of range")
    assert alone.cause == Cause.REQUEST_FAILED
    assert not failures.is_fatal(line)


@pytest.mark.parametrize("process", ["EngineCore", "APIServer", "Worker_TP0"])
@pytest.mark.parametrize(
    ("caught", "fatal", "cause"),
    [
        ("OSError: [Errno 28] No space left on device", "KeyError: 7", Cause.CRASH),
        ("ImportError: deep_gemm", "AssertionError: tp size", Cause.CRASH),
        ("RuntimeError: No CUDA GPUs are available", "AssertionError: tp size", Cause.CRASH),
        ("ImportError: deep_gemm", ILLEGAL, Cause.CUDA_ERROR),
        ("OSError: [Errno 28] No space left on device", "RuntimeError: CUDA error: out of memory", Cause.OOM_AT_START),
        ("ImportError: deep_gemm", "RuntimeError: cannot import the kernels: ImportError: deep_gemm", Cause.IMPORT_ERROR),
        ("OSError: [Errno 28] No space left on device", "OSError: [Errno 28] No space left on device: '/x'", Cause.DISK_FULL),
        ("OSError: [Errno 28] No space left on device", "KeyError: 'cmpl-1'", Cause.DISK_FULL),
    ],
)  # fmt: skip
def test_what_was_caught_before_the_fatal_traceback_is_weaker(log, process, caught, fatal, cause):
    """A logged error that the server went on with, then the traceback that ended it: the latter counts, unless it repeats it."""
    marker = "WorkerProc failed to start." if process.startswith("Worker") else "EngineCore failed to start."
    who = process if process.startswith("Worker") else "EngineCore"
    path = log(
        worker("Failed to send a report", process=process),
        worker("Traceback (most recent call last):", process=process),
        worker(caught, process=process),
        worker(marker, process=who),
        worker("Traceback (most recent call last):", process=who),
        worker(fatal, process=who),
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    )

    failure = failures.classify(path, phase=Phase.BOOT, exit_state=ended())

    assert failure.cause == cause
    if cause is Cause.CRASH:
        assert (failure.message, failure.log_line) == (fatal, 6)


def test_a_workers_own_traceback_before_its_engines_end_is_the_root(log):
    """Not every worker announces its end: what it died of is why its engine died, whatever that one says."""
    lines = (
        worker("Traceback (most recent call last):", process="RayWorkerWrapper"),
        worker(ILLEGAL, process="RayWorkerWrapper"),
    )
    lived = worker("Model loading took 9.81 GiB memory", level="INFO", process="RayWorkerWrapper")
    end = (FATAL, ENGINE + "AttributeError: 'NoneType' object has no attribute 'x'")

    died = failures.classify(log(*lines, *end), phase=Phase.REQUEST, exit_state=ended())
    went_on = failures.classify(log(*lines, lived, *end), phase=Phase.REQUEST, exit_state=ended())

    assert (died.cause, went_on.cause) == (Cause.CUDA_ERROR, Cause.CRASH)


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ("AssertionError: tp size", Cause.CRASH),
        ("RuntimeError: No CUDA GPUs are available", Cause.NO_GPU),
        ("RuntimeError: Engine core initialization failed. See root cause above.", Cause.DISK_FULL),
    ],
)
def test_what_was_caught_is_weaker_than_the_traceback_a_program_ends_with(log, end, cause):
    """No engine was there yet: the traceback that Python itself prints at the end counts, unless it only passes on."""
    path = log(
        worker("OSError: [Errno 28] No space left on device", process="APIServer"),
        "(APIServer pid=1) Traceback (most recent call last):",
        '(APIServer pid=1)   File "/usr/local/bin/vllm", line 8, in <module>',
        f"(APIServer pid=1) {end}",
    )

    assert failures.classify(path, phase=Phase.BOOT, exit_state=ended()).cause == cause


@pytest.mark.parametrize("name", ["CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"])
def test_a_library_that_got_no_memory_is_a_cuda_error_with_a_hint(log, name):
    """CuBLAS and cuDNN say so for other reasons too, so it is not called an OOM; the message says what it often is."""
    path = log(FATAL, ENGINE + f"RuntimeError: CUDA error: {name} when calling `cublasCreate(handle)`")

    failure = failures.classify(path, phase=Phase.REQUEST, exit_state=ended())

    assert failure.cause == Cause.CUDA_ERROR
    assert name in failure.message
    assert "often a lack of GPU memory" in failure.message


@pytest.mark.parametrize(("code", "says"), [(127, "its program was not found"), (126, "cannot be executed")])
def test_a_program_that_never_ran_is_said_to_be_missing(log, code, says):
    """127 and 126 come from the shell or the container engine; a server that had come up means something else by them."""
    failure = failures.classify(log("sh: 1: vllm: no"), phase=Phase.BOOT, exit_state=ended(code))
    later = failures.classify(
        log("INFO:     Application startup complete."), phase=Phase.REQUEST, exit_state=ended(code)
    )

    assert failure.cause == later.cause == Cause.UNKNOWN
    assert says in failure.message
    assert f"exit code {code}" in failure.message
    assert "sh: 1: vllm: no" in failure.message
    assert says not in later.message


def test_rays_double_prefix_names_the_worker(log):
    """An engine repeats its Ray workers' lines behind its own name; the worker's rank and frames are those that count."""
    prefix = "(EngineCore pid=5) (RayWorkerWrapper pid=77, ip=10.0.0.7) ERROR 11-30 23:57:09 [worker_base.py:1] "
    path = log(prefix + "Traceback (most recent call last):", prefix + OOM, FATAL, ENGINE + "IndexError: x")

    failure = failures.classify(path, phase=Phase.REQUEST, exit_state=ended())

    assert (failure.cause, failure.log_line, failure.details["gpu"]) == (Cause.OOM_AT_REQUEST, 2, 1)


def test_the_two_ways_a_flag_is_refused_are_told_apart(log):
    """A flag that a build does not know is rewritten, a value that it does not know is replaced: the message says which."""
    value = log("vllm serve: error: argument --attention-backend/-ab: invalid choice: 'X' (choose from 'FLASH_ATTN')")
    told = failures.classify(value, phase=Phase.BOOT, exit_state=ended(2))
    flag = failures.classify(
        log("vllm: error: unrecognized arguments: --attention-backend X"), phase=Phase.BOOT, exit_state=ended(2)
    )

    assert told.cause == flag.cause == Cause.UNKNOWN_FLAG
    assert told.message.startswith("the flag is known, its value is not: argument --attention-backend/-ab: invalid")
    assert flag.message == "unrecognized arguments: --attention-backend X"
    assert "a flag's value" in POLICY[Cause.UNKNOWN_FLAG].meaning
