"""Causes of failure and the one table of what each leads to.

A failure is named before it is judged. `POLICY` is printed by `bisect plan --explain`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from imagebisect.scenario import MetricKind


class Effect(StrEnum):
    """What a failure leads to for a target."""

    BAD = "bad"
    SKIP = "skip"
    RETRY = "retry"
    STOP = "stop"


class Cause(StrEnum):
    """Why a start or a request failed."""

    PULL_FAILED = "pull_failed"
    UNKNOWN_FLAG = "unknown_flag"
    UNSUPPORTED_ARCHITECTURE = "unsupported_architecture"
    IMPORT_ERROR = "import_error"
    OOM_AT_START = "oom_at_start"
    OOM_AT_REQUEST = "oom_at_request"
    HOST_OOM = "host_oom"
    READY_TIMEOUT = "ready_timeout"
    CRASH = "crash"
    REQUEST_FAILED = "request_failed"
    STUCK = "stuck"
    KILLED = "killed"
    CUDA_ERROR = "cuda_error"
    NCCL = "nccl"
    RPC_TIMEOUT = "rpc_timeout"
    REQUEST_TIMEOUT = "request_timeout"
    COMMAND_FAILED = "command_failed"
    COMMAND_BROKEN = "command_broken"
    INVALID_MEASUREMENT = "invalid_measurement"
    UNKNOWN = "unknown"
    PORT = "port"
    REGISTRY = "registry"
    DAEMON = "daemon"
    NO_GPU = "no_gpu"
    DRIVER = "driver"
    GPU_BUSY = "gpu_busy"
    GPU_UNSTEADY = "gpu_unsteady"
    ENGINE_REFUSED = "engine_refused"
    DISK_FULL = "disk_full"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What one cause means. `event` holds for survival targets, `value` for all others.

    `own`: plainly the build's own fault, so it says nothing about the host.
    """

    meaning: str
    event: Effect
    value: Effect
    own: bool


def _skip(meaning: str, *, own: bool) -> Rule:
    return Rule(meaning=meaning, event=Effect.SKIP, value=Effect.SKIP, own=own)


def _oom(meaning: str) -> Rule:
    return Rule(meaning=meaning, event=Effect.BAD, value=Effect.SKIP, own=True)


def _retry(meaning: str) -> Rule:
    return Rule(meaning=meaning, event=Effect.RETRY, value=Effect.RETRY, own=False)


def _stop(meaning: str) -> Rule:
    return Rule(meaning=meaning, event=Effect.STOP, value=Effect.STOP, own=False)


POLICY: dict[Cause, Rule] = {
    Cause.OOM_AT_START: _oom("GPU memory ran out while the server started"),
    Cause.OOM_AT_REQUEST: _oom("GPU memory ran out while it served a request"),
    Cause.PULL_FAILED: _skip("the registry no longer has the image", own=True),
    Cause.UNKNOWN_FLAG: _skip("this build does not know one of the flags, or a flag's value", own=True),
    Cause.UNSUPPORTED_ARCHITECTURE: _skip("this build does not know the model", own=True),
    Cause.IMPORT_ERROR: _skip("the image is broken: something cannot be imported", own=True),
    Cause.READY_TIMEOUT: _skip("not ready within the boot deadline", own=False),
    Cause.CRASH: _skip("the server died of something that is not memory", own=False),
    Cause.REQUEST_FAILED: _skip("the server answered a request with an error", own=False),
    Cause.STUCK: _skip("healthy by name, but no answer within the request deadline", own=False),
    Cause.KILLED: _skip("the server was killed from outside", own=False),
    Cause.CUDA_ERROR: _skip("a GPU kernel or a CUDA library failed, and not for want of memory", own=False),
    Cause.NCCL: _skip("the GPUs of one server lost each other (NCCL), and the log gives no better reason", own=False),
    Cause.RPC_TIMEOUT: _skip("a worker no longer answered its engine, and the log gives no better reason", own=False),
    Cause.REQUEST_TIMEOUT: _skip("no answer within the request deadline, though the server made progress", own=False),
    Cause.COMMAND_FAILED: _skip("the suite's own command could not tell", own=False),
    Cause.INVALID_MEASUREMENT: _skip("no valid rep could be taken", own=False),
    Cause.UNKNOWN: _skip("it failed and the log does not say why", own=False),
    Cause.COMMAND_BROKEN: _stop("the suite's own command cannot be run"),
    Cause.HOST_OOM: _stop("the host's own memory ran out (not the GPU's)"),
    Cause.PORT: _retry("the port was taken meanwhile"),
    Cause.REGISTRY: _retry("the registry could not be reached"),
    Cause.DAEMON: _retry("the docker daemon did not answer"),
    Cause.NO_GPU: _stop("docker or the server sees no GPU"),
    Cause.DRIVER: _stop("the GPU driver is too old or broken for the image"),
    Cause.GPU_BUSY: _stop("something else holds memory on the GPU"),
    Cause.GPU_UNSTEADY: _retry("the GPU's free memory changed while the server looked at it"),
    Cause.ENGINE_REFUSED: _stop("the container engine refuses these options"),
    Cause.DISK_FULL: _stop("no disk space is left"),
    Cause.INTERRUPTED: _retry("the run was stopped during this start"),
}

MAX_RETRIES = 2
"""Times a start is tried again for a transient cause before the run stops."""


def effect(cause: str, kind: MetricKind) -> Effect:
    """What `cause` leads to for a target whose metric is of `kind`."""
    rule = POLICY[Cause(cause)]
    return rule.event if kind is MetricKind.EVENT else rule.value


def is_own(cause: str) -> bool:
    """Whether a cause is plainly the build's own, so that the host is not in doubt."""
    return POLICY[Cause(cause)].own


def stops(cause: str) -> bool:
    """Whether a cause ends the run because the host is at fault."""
    return POLICY[Cause(cause)].value is Effect.STOP


def is_transient(cause: str) -> bool:
    """Whether the same start is worth another try."""
    return POLICY[Cause(cause)].value is Effect.RETRY
