"""Failures that are no lack of GPU memory, in whole logs of every version's shape: each called by its own name."""

from __future__ import annotations

import pytest

from imagebisect.domain import Phase
from imagebisect.outcome import Cause
from imagebisect.runtime.base import ExitState
from imagebisect.vllm import failures
from vllm_shapes import FORWARD, OOM, VERSIONS, Shape, reader


@pytest.fixture(params=VERSIONS)
def shape(request):
    """Each version's way of writing."""
    return Shape(request.param)


@pytest.fixture
def read(tmp_path):
    """Writes a log and names why the server failed."""
    return reader(tmp_path / "server.log")


# ----------------------------------------------------------------------- not a lack of GPU memory

BOOT_FAILURES = [
    (
        ("ValueError: Free memory on device cuda:0 (14.10/15.51 GiB) on startup is less than desired GPU memory utilization "
        "(0.95, 14.73 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."),
        Cause.GPU_BUSY,
    ),
    (
        ("AssertionError: Error in memory profiling. Initial free memory 14.9 GiB, current free memory 15.2 GiB. This happens "
        "when other processes sharing the same container release GPU memory while vLLM is profiling during initialization."),
        Cause.GPU_UNSTEADY,
    ),
    (
        "ValueError: Model architectures ['Qwen9ForCausalLM'] are not supported for now. Supported architectures: dict_keys",
        Cause.UNSUPPORTED_ARCHITECTURE,
    ),
    (
        "  Value error, Model architectures ['Qwen9ForCausalLM'] failed to be inspected. Please check the logs for more",
        Cause.UNSUPPORTED_ARCHITECTURE,
    ),
    (
        "ValueError: Model architecture OldForCausalLM was supported in vLLM until v0.20.0, and is not supported anymore.",
        Cause.UNSUPPORTED_ARCHITECTURE,
    ),
    (
        ("ValueError: The checkpoint you are trying to load has model type `qwen9` but Transformers does not recognize this "
        "architecture. This could be because of an issue with the checkpoint"),
        Cause.UNSUPPORTED_ARCHITECTURE,
    ),
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver",
        Cause.DRIVER,
    ),
    (
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda "
        "driver combination"),
        Cause.DRIVER,
    ),
    (
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non "
        "supported HW"),
        Cause.DRIVER,
    ),
    ("RuntimeError: No CUDA GPUs are available", Cause.NO_GPU),
    (
        "ImportError: cannot import name 'AnthropicOutputConfig' from 'vllm.entrypoints.anthropic.protocol'",
        Cause.IMPORT_ERROR,
    ),
    (
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        Cause.IMPORT_ERROR,
    ),
    (
        "RuntimeError: flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14). Please install",
        Cause.IMPORT_ERROR,
    ),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", Cause.CUDA_ERROR),
    ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device", Cause.CUDA_ERROR),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        Cause.CUDA_ERROR,
    ),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", Cause.CUDA_ERROR),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", Cause.CUDA_ERROR),
    ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", Cause.CUDA_ERROR),
    (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
        Cause.CRASH,
    ),
    ("RuntimeError: Triton Error [CUDA]: out of memory", Cause.OOM_AT_START),
    ("RuntimeError: CUDA driver error: out of memory", Cause.OOM_AT_START),
    ("RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", Cause.OOM_AT_START),
    ("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", Cause.OOM_AT_START),
    ("CUDA error (/workspace/hopper/flash_fwd_launch_template.h:180): out of memory", Cause.OOM_AT_START),
    ("RuntimeError: CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY", Cause.OOM_AT_START),
    ("cutlass.base_dsl.common.DSLCudaRuntimeError: CUDA_ERROR_OUT_OF_MEMORY (2)", Cause.OOM_AT_START),
    ("RuntimeError: Failed to load the module: CUDA_ERROR_OUT_OF_MEMORY (2)", Cause.OOM_AT_START),
    ("torch.AcceleratorError: HIP error: hipErrorOutOfMemory", Cause.OOM_AT_START),
    ("RuntimeError: cudaMalloc failed with cudaErrorMemoryAllocation", Cause.OOM_AT_START),
    ("ray.exceptions.RayTaskError(OutOfMemoryError): ray::RayWorkerWrapper.execute_method() (pid=7)", Cause.OOM_AT_START),
    ("  what():  CUDA out of memory. Tried to allocate 2.00 GiB.", Cause.OOM_AT_START),
    ("terminate called after throwing an instance of 'c10::OutOfMemoryError'", Cause.OOM_AT_START),
    ("Exception: Error in model execution: CUDA out of memory. Tried to allocate 2.00 GiB.", Cause.OOM_AT_START),
    (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        Cause.HOST_OOM,
    ),
    (
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
        "to allocate 34359738368 bytes. Error code 12 (Cannot allocate memory)"),
        Cause.HOST_OOM,
    ),
    ("MemoryError: Unable to allocate 12.0 GiB for an array", Cause.HOST_OOM),
    (
        ("torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled "
        "system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3"),
        Cause.NCCL,
    ),
    (
        ("ray.exceptions.RayChannelTimeoutError: System error: If the execution is expected to take a long time, increase "
        "RAY_CGRAPH_get_timeout which is currently 300 seconds."),
        Cause.RPC_TIMEOUT,
    ),
    ("TimeoutError: RPC call to execute_model timed out.", Cause.RPC_TIMEOUT),
    ("NotImplementedError: SM90 GDN prefill DSL kernel is unavailable", Cause.CRASH),
]  # fmt: skip


@pytest.mark.parametrize(("text", "cause"), BOOT_FAILURES, ids=[text.strip()[:60] for text, _ in BOOT_FAILURES])
def test_a_boot_that_fails_of_something_else_is_called_by_its_name(shape, read, text, cause):
    """Driver, host, image, model, kernels: each by its own line, in every version's dress, and only OOMs are OOMs."""
    calls = (("vllm/v1/worker/worker_base.py", "init_device"), ("vllm/utils/x.py", "check"))
    failure, said = read(
        [
            *shape.boot("start"),
            shape.error("EngineCore", "EngineCore failed to start.", calls, text),
            *shape.failed_boot(),
        ],
        Phase.BOOT,
    )

    assert failure.cause == cause
    assert text[:40] in said
    if cause is not Cause.OOM_AT_START:
        assert "stage" not in failure.details


@pytest.mark.parametrize("program", ["vllm", "vllm serve", "main.py", "api_server.py"])
@pytest.mark.parametrize(
    "text",
    [
        "unrecognized arguments: --no-such-flag 1",
        "argument --gdn-prefill-backend: invalid choice: 'x' (choose from 'triton')",
        "argument --max-num-seqs: expected one argument",
    ],
)
def test_an_unknown_flag_is_known_in_both_spellings_of_the_usage(read, program, text):
    """Exit code 2 after a usage line; the words about the flag are kept, and whether the flag or its value is new."""
    failure, said = read(
        [
            "WARNING 11-30 23:15:43 [argparse_utils.py:257] With `vllm serve`, you should provide the model as a positional",
            f"usage: {program} [-h] [-v]",
            "               {chat,complete,serve,launch,bench,collect-env,run-batch} ...",
            f"{program}: error: {text}",
        ],
        Phase.BOOT,
        ExitState(exit_code=2, oom_killed=False),
    )

    assert failure.cause == Cause.UNKNOWN_FLAG
    known = "" if text.startswith("unrecognized") else "the flag is known, its value is not: "
    assert failure.message == known + text
    assert text in said


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.", Cause.HOST_OOM),
        ("Engine core proc EngineCore died unexpectedly (exit code: -9), shutting down client.", Cause.HOST_OOM),
        ("Worker proc VllmWorker-1 died unexpectedly, shutting down executor.", Cause.UNKNOWN),
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: 1), shutting down executor.", Cause.UNKNOWN),
    ],
)
def test_a_worker_that_the_kernel_killed_is_the_hosts_memory(shape, read, line, cause):
    """Signal 9 from nobody is the host's OOM killer; older builds do not tell the signal and get no guess."""
    failure, _ = read([*shape.boot(), shape.log("EngineCore", line, "ERROR"), *shape.dead()], Phase.REQUEST)

    assert failure.cause == cause


def test_the_kernels_own_words_name_the_host(shape, read):
    """A log that holds dmesg's lines, as some entry points print them."""
    line = "[ 8123.456789] Memory cgroup out of memory: Killed process 4242 (VLLM::Worker_TP) total-vm:91234kB, anon-rss:1kB"
    failure, _ = read([*shape.boot("load"), line], Phase.BOOT, ExitState(exit_code=137, oom_killed=False))

    assert failure.cause == Cause.HOST_OOM
    assert "4242" in failure.message


def test_an_assertion_in_a_kernel_is_quoted(shape, read):
    """The device prints which assertion it was, hundreds of times, before Python hears of it."""
    line = (
        "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0] Assertion "
        '`-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.'
    )
    failure, said = read(
        [
            *shape.boot(),
            *[shape.raw("Worker_TP0", line)] * 3,
            shape.error("Worker_TP0", "WorkerProc hit an exception.", FORWARD, "RuntimeError: CUDA error: device-side assert triggered"),
            *shape.dead(),
        ],
        Phase.REQUEST,
    )  # fmt: skip

    assert failure.cause == Cause.CUDA_ERROR
    assert "index out of bounds" in failure.message
    assert "IndexKernel.cu" in said


def test_a_watchdogs_timeout_is_nccl_and_an_error_of_a_worker_is_better(shape, read):
    """The watchdog kills the process minutes after something else went wrong, if the log says what."""
    watchdog = (
        "[rank1]:[E828 17:15:54.544007289 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds"
    )
    other = shape.error(
        "Worker_TP0", "WorkerProc hit an exception.", FORWARD, "AssertionError: block table is too short"
    )
    aborted = ExitState(exit_code=134, oom_killed=False)

    alone, said = read([*shape.boot(), shape.raw("Worker_TP1", watchdog)], Phase.REQUEST, aborted)
    explained, _ = read([*shape.boot(), other, shape.raw("Worker_TP1", watchdog)], Phase.REQUEST, aborted)

    assert alone.cause == Cause.NCCL
    assert alone.masked_by is None
    assert "ProcessGroupNCCL" in said
    assert (explained.cause, explained.message) == (Cause.CRASH, "AssertionError: block table is too short")
    assert explained.masked_by == "NCCL error"


def test_waiting_for_shared_memory_counts_only_when_nothing_else_is_known(shape, read):
    """A busy server says so too; a server that runs on is stuck, one that died lost a worker."""
    line = shape.log(
        "EngineCore", "No available shared memory broadcast block found in 60 seconds. This typically happens"
    )

    alive, _ = read([*shape.boot(), line], Phase.REQUEST, None, observed="no answer in 60 s", fallback=Cause.STUCK)
    died, _ = read([*shape.boot(), line], Phase.REQUEST)
    stopped, _ = read(
        [*shape.boot(), line, shape.log("APIServer", "[shutdown] API server: shutdown triggered")], Phase.REQUEST
    )

    assert (alive.cause, died.cause, stopped.cause) == (Cause.STUCK, Cause.RPC_TIMEOUT, Cause.KILLED)


def test_nothing_but_wrappers_is_unknown(shape, read):
    """What passes errors on is never the cause."""
    failure, _ = read(
        [
            *shape.boot("loaded"),
            shape.log("EngineCore", "EngineCore failed to start.", "ERROR"),
            shape.raw(
                "EngineCore", "Exception: WorkerProc initialization failed due to an exception in a background process."
            ),
            *shape.failed_boot(),
        ],
        Phase.BOOT,
    )

    assert failure.cause == Cause.UNKNOWN
    assert failure.masked_by == "WorkerProc initialization failed"


@pytest.mark.parametrize("until", ["start", "load", "loaded", "kv", "warm_up", "capture", "captured", "ready"])
def test_a_healthy_boot_that_only_ended_is_no_oom(shape, read, until):
    """Its words speak of memory all the time (even of OOM) and none of them is a failure."""
    gone, _ = read(shape.boot(until), Phase.BOOT)
    alive, _ = read(shape.boot(until), Phase.BOOT, None, observed="slow", fallback=Cause.READY_TIMEOUT)

    assert (gone.cause, alive.cause) == (Cause.UNKNOWN, Cause.READY_TIMEOUT)


def test_a_line_number_counts_as_an_editor_does(tmp_path):
    """Progress bars redraw within a line: the record points to the line that a reader finds the numbers on."""
    path = tmp_path / "server.log"
    path.write_bytes(b"a\r\nb\r\rc\r\n" + OOM.encode() + b"\r\n")

    assert (
        failures.classify(path, phase=Phase.REQUEST, exit_state=ExitState(exit_code=1, oom_killed=False)).log_line == 3
    )
