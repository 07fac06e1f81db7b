"""Out of memory in whole logs of every version's shape: one cause, one stage, one set of numbers, whatever masks it."""

from __future__ import annotations

import pytest

from imagebisect.domain import Phase
from imagebisect.outcome import Cause
from vllm_shapes import ENGINE_STEP, FORWARD, NUMBERS, OOM, VERSIONS, Shape, frames, reader


@pytest.fixture(params=VERSIONS)
def shape(request):
    """Each version's way of writing."""
    return Shape(request.param)


@pytest.fixture
def read(tmp_path):
    """Writes a log and names why the server failed."""
    return reader(tmp_path / "server.log")


def numbers(failure) -> dict[str, object]:
    """The figures of the out-of-memory line above."""
    return {key: failure.details.get(key) for key in NUMBERS}


# ------------------------------------------------------------------- out of memory at a request


@pytest.mark.parametrize(
    ("wrapper", "masked_by"),
    [
        ("KeyError: 'chatcmpl-a51c0661bfb6c12e-0-80f8be6a'", "KeyError in update_from_output"),
        ("KeyError: 'cmpl-a51c0661bfb6c12e-0-80f8be6a'", "KeyError in update_from_output"),
        (
            f"RuntimeError: Worker failed with error '{OOM[24:]}', please check the stack trace above for the root cause",
            "RuntimeError: Worker failed with error",
        ),
        ("TimeoutError: RPC call to sample_tokens timed out.", "TimeoutError: RPC call timed out"),
    ],
    ids=["keyerror-chat", "keyerror", "runtime-error", "rpc-timeout"],
)
def test_an_oom_at_a_request_is_found_under_what_the_engine_dies_of(shape, read, wrapper, masked_by):
    """V1 runner, the one before 2026-05-28, V2 runner, or the rank without output: one cause, one set of numbers."""
    calls = (("vllm/v1/executor/multiproc_executor.py", "worker_busy_loop"), *FORWARD)
    failure, said = read(
        [
            *shape.boot(workers=("Worker_TP0", "Worker_TP1")),
            shape.error("Worker_TP1", "WorkerProc hit an exception.", calls, OOM),
            shape.log("EngineCore", "Dumping scheduler output for model execution: SchedulerOutput(x)", "ERROR"),
            shape.error("EngineCore", "EngineCore encountered a fatal error.", ENGINE_STEP, wrapper),
            *shape.dead(),
        ],
        Phase.REQUEST,
    )

    assert failure.cause == Cause.OOM_AT_REQUEST
    assert numbers(failure) == NUMBERS
    assert failure.details["stage"] == "request"
    assert failure.details["rank"] == 1
    assert failure.details["frame"] == "vllm/third_party/flash_linear_attention/ops/chunk_o.py:chunk_fwd_o"
    assert failure.details["code"] == "return __call___inner(*args)"
    assert failure.masked_by == failure.details["masked_by"] == masked_by
    assert "torch.OutOfMemoryError" in said
    assert "Worker failed" not in said


def test_an_oom_of_one_rank_explains_the_other_ranks_nccl_error(shape, read):
    """Rank 0 waits in NCCL for a rank that is gone, minutes later everything times out: the OOM was the root."""
    failure, _ = read(
        [
            *shape.boot(),
            shape.error("Worker_TP1", "WorkerProc hit an exception.", FORWARD, OOM),
            shape.log("EngineCore", "No available shared memory broadcast block found in 60 seconds. This", "INFO"),
            shape.error(
                "Worker_TP0",
                "WorkerProc hit an exception.",
                FORWARD,
                "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
            ),
            shape.error("EngineCore", "EngineCore encountered a fatal error.", ENGINE_STEP, "TimeoutError: RPC call to execute_model timed out."),
            *shape.dead(),
        ],
        Phase.REQUEST,
    )  # fmt: skip

    assert (failure.cause, failure.details["rank"]) == (Cause.OOM_AT_REQUEST, 1)
    assert failure.masked_by == "TimeoutError: RPC call timed out"


def test_the_old_form_and_the_allocators_own_line_tell_the_same(shape, read):
    """PyTorch before 2.1 has brackets; new ones warn with exact bytes; both behind a bare KeyError."""
    old = (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.63 GiB (GPU 0; 44.56 GiB total capacity; "
        "42.10 GiB already allocated; 1.20 GiB free; 42.60 GiB reserved in total by PyTorch) If reserved memory is >>"
    )
    exact = (
        "[rank1]:[W828 17:15:54.544007289 CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device 1 "
        "while trying to allocate 180355072 bytes (free: 170328064, total: 16611278848)."
    )
    end = [shape.error("EngineCore", "EngineCore encountered a fatal error.", ENGINE_STEP, "KeyError: 'chatcmpl-1'")]

    first, _ = read([*shape.boot(), shape.log("Worker_TP0", old, "ERROR"), *end], Phase.REQUEST)
    second, said = read([*shape.boot(), shape.raw("Worker_TP1", exact), *end], Phase.REQUEST)

    assert [first.details[key] for key in ("asked_mib", "free_mib", "capacity_gib", "gpu")] == [
        1669.12,
        1228.8,
        44.56,
        0,
    ]
    assert [second.details[key] for key in ("asked_mib", "free_mib", "capacity_gib", "gpu")] == [
        172.0,
        162.44,
        15.47,
        1,
    ]
    assert second.cause == Cause.OOM_AT_REQUEST
    assert "memory allocation failed with OOM" in said


def test_a_keyerror_without_an_oom_is_a_dead_engine_and_no_oom(shape, read):
    """The lookup that masks OOMs fails for other reasons too (KV connectors)."""
    failure, _ = read(
        [
            *shape.boot(),
            shape.error("EngineCore", "EngineCore encountered a fatal error.", ENGINE_STEP, "KeyError: 'cmpl-1-0'"),
            *shape.dead(),
        ],
        Phase.REQUEST,
    )

    assert failure.cause == Cause.CRASH
    assert "KeyError in update_from_output" in failure.message
    assert "stage" not in failure.details


def test_an_oom_that_only_the_engine_repeats_has_no_frame(shape, read):
    """The worker's own words are lost: the numbers stand, the engine's frames are not where memory was asked for."""
    failure, _ = read(
        [
            *shape.boot(),
            shape.error(
                "EngineCore",
                "EngineCore encountered a fatal error.",
                ENGINE_STEP,
                f"RuntimeError: Worker failed with error '{OOM[24:]}', please check the stack trace above for the root cause",
            ),
        ],
        Phase.REQUEST,
    )

    assert failure.cause == Cause.OOM_AT_REQUEST
    assert numbers(failure) == NUMBERS
    assert "frame" not in failure.details


# ---------------------------------------------------------------------- out of memory at start

_LOAD = (("vllm/v1/worker/gpu_worker.py", "load_model"), ("vllm/model_executor/models/qwen3_next.py", "__init__"))
_PROFILE = (
    ("vllm/v1/worker/gpu_worker.py", "determine_available_memory"),
    ("vllm/v1/worker/gpu_model_runner.py", "profile_run"),
    ("vllm/v1/worker/gpu_model_runner.py", "_dummy_run"),
)
_PROFILE_V2 = (
    ("vllm/v1/worker/gpu_worker.py", "determine_available_memory"),
    ("vllm/v1/worker/gpu/model_runner.py", "capture_model"),
)
_KV = (
    ("vllm/v1/worker/gpu_worker.py", "initialize_from_config"),
    ("vllm/v1/worker/gpu_model_runner.py", "initialize_kv_cache"),
)
_GRAPHS = (
    ("vllm/v1/worker/gpu_worker.py", "compile_or_warm_up_model"),
    ("vllm/v1/worker/gpu_model_runner.py", "capture_model"),
    ("vllm/v1/worker/gpu_model_runner.py", "_dummy_run"),
)
_WARM = (
    ("vllm/v1/worker/gpu_worker.py", "compile_or_warm_up_model"),
    ("vllm/model_executor/warmup/kernel_warmup.py", "kernel_warmup"),
    ("vllm/v1/worker/gpu_model_runner.py", "execute_model"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("until", "calls", "stage"),
    [
        ("load", _LOAD, "load"),
        ("loaded", _PROFILE, "profiling"),
        ("loaded", _PROFILE_V2, "profiling"),
        ("tokens", _KV, "kv_fit"),
        ("warm_up", _GRAPHS, "graph_capture"),
        ("tokens", _WARM, "warm_up"),
    ],
    ids=["load", "profile", "profile-v2-graphs", "kv", "graphs", "warm-up"],
)
def test_the_stage_of_an_oom_at_start_is_read_from_the_frames(shape, read, until, calls, stage):
    """What the server was doing is known from who asked for memory, in each stage of a boot."""
    failure, said = read(
        [
            *shape.boot(until, workers=("Worker_TP0", "Worker_TP1")),
            shape.error("Worker_TP1", "WorkerProc failed to start.", calls, OOM),
            shape.error(
                "EngineCore",
                "EngineCore failed to start.",
                (("vllm/v1/engine/core.py", "_initialize_kv_caches"),),
                f"RuntimeError: Worker failed with error '{OOM[24:]}', please check the stack trace above for the root cause",
            ),
            *shape.failed_boot(),
        ],
        Phase.BOOT,
    )

    assert (failure.cause, failure.details["stage"]) == (Cause.OOM_AT_START, stage)
    assert numbers(failure) == NUMBERS
    assert failure.masked_by == "RuntimeError: Worker failed with error"
    assert "Worker_TP1" in said


@pytest.mark.parametrize(
    ("until", "stage"),
    [
        ("start", None),
        ("load", "load"),
        ("loaded", "profiling"),
        ("tokens", None),
        ("warm_up", "warm_up"),
        ("capture", "graph_capture"),
        ("captured", "warm_up"),
        ("init", None),
    ],
)
def test_without_frames_the_progress_tells_the_stage_or_nothing_does(shape, read, until, stage):
    """A bare line of the allocator: the boot's last step counts, and between two steps nothing is claimed."""
    workers = ("EngineCore",) if shape.minor < 33 else ("Worker_TP0",)
    failure, _ = read(
        [*shape.boot(until, workers=workers), shape.raw(workers[0], OOM), *shape.failed_boot()], Phase.BOOT
    )

    assert failure.cause == Cause.OOM_AT_START
    assert failure.details.get("stage") == stage


def test_ranks_that_are_not_at_one_place_do_not_tell_a_strangers_stage(shape, read):
    """A line of no process, one rank loading and one profiling: no stage."""
    lines = [
        *shape.boot("load", workers=("Worker_TP0", "Worker_TP1")),
        shape.log("Worker_TP0", "Model loading took 9 GiB"),
    ]
    failure, _ = read([*lines, OOM, *shape.failed_boot()], Phase.BOOT)

    assert failure.cause == Cause.OOM_AT_START
    assert "stage" not in failure.details


def test_weights_that_do_not_fit_are_an_oom_at_load(shape, read):
    """VLLM words it and quotes PyTorch's numbers; then the exception itself follows."""
    text = f"Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization (original error: {OOM[24:]})"
    failure, _ = read(
        [
            *shape.boot("load"),
            shape.log("Worker_TP0", text, "ERROR"),
            shape.error("Worker_TP0", "WorkerProc failed to start.", _LOAD, OOM),
            *shape.failed_boot(),
        ],
        Phase.BOOT,
    )

    assert (failure.cause, failure.details["stage"]) == (Cause.OOM_AT_START, "load")
    assert numbers(failure) == NUMBERS


@pytest.mark.parametrize(("outer", "stage"), [(_WARM[:1], "warm_up"), (_PROFILE[:2], "profiling")])
def test_an_oom_of_the_sampler_is_placed_by_the_traceback_around_it(shape, read, outer, stage):
    """The sampler is tried while profiling and while warming up; only the outer frames tell which it was."""
    sampler = ("vllm/v1/worker/gpu_model_runner.py", "_dummy_sampler_run")
    text = "\n".join(
        [
            "WorkerProc hit an exception.",
            *frames((sampler, ("torch/nn/modules/module.py", "__call__"))),
            OOM,
            "",
            "The above exception was the direct cause of the following exception:",
            "",
            *frames((*outer, sampler)),
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try lowering",
        ]
    )
    failure, said = read([*shape.boot("kv"), shape.log("Worker_TP0", text, "ERROR"), *shape.failed_boot()], Phase.BOOT)

    assert (failure.cause, failure.details["stage"]) == (Cause.OOM_AT_START, stage)
    assert numbers(failure) == NUMBERS
    assert "torch.OutOfMemoryError" in said


@pytest.mark.parametrize(("who", "open_"), [("models's", "("), ("model's", "("), ("model's", "")])
def test_a_kv_cache_that_is_too_small_says_how_much_is_missing(shape, read, who, open_):
    """With a pin this is a real signal: the bytes of a token grew."""
    text = (
        f"ValueError: To serve at least one request with the {who} max seq len (188160), {open_}3.05 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (2.90 GiB). Based on the available memory, the estimated maximum "
        "model length is 178880. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`"
    )
    calls = (("vllm/v1/core/kv_cache_utils.py", "_check_enough_kv_cache_memory"),)
    failure, _ = read(
        [
            *shape.boot("kv"),
            shape.error("EngineCore", "EngineCore failed to start.", calls, text),
            *shape.failed_boot(),
        ],
        Phase.BOOT,
    )

    assert (failure.cause, failure.details["stage"]) == (Cause.OOM_AT_START, "kv_fit")
    assert failure.details["needed_kv_mib"] == 3123.2
    assert failure.details["available_kv_mib"] == 2969.6
    assert failure.details["possible_tokens"] == 178880
    assert failure.masked_by == "RuntimeError: Engine core initialization failed"


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing",
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token.",
    ],
)
def test_no_room_at_all_for_the_kv_cache_is_for_want_of_memory(shape, read, text):
    """Nothing is left after the weights; how much less than nothing comes from the boot's own line."""
    lines = [line.replace("3.04 GiB", "-1.32 GiB") for line in shape.boot("kv", pinned=False)]
    failure, _ = read(
        [*lines, shape.error("EngineCore", "EngineCore failed to start.", _PROFILE[:1], text), *shape.failed_boot()],
        Phase.BOOT,
    )

    assert (failure.cause, failure.details["stage"]) == (Cause.OOM_AT_START, "kv_fit")
    assert failure.details["available_kv_mib"] == -1351.68
