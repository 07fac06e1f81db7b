"""What a container engine's error means: the host's fault with advice, or the build's own. Pure.

Engines say it in prose, the same for all API statuses; the wording is that of engines 20.10 to 28.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagebisect.domain import Failure, Phase
from imagebisect.errors import EnvironmentFault, StartFailed
from imagebisect.outcome import Cause


@dataclass(frozen=True, kw_only=True)
class _Refusal:
    """One known complaint of an engine: how it reads, what it is, and what helps."""

    pattern: re.Pattern[str]
    cause: Cause
    what: str
    next_step: str


def _known(pattern: str, cause: Cause, what: str, next_step: str) -> _Refusal:
    return _Refusal(pattern=re.compile(pattern, re.IGNORECASE), cause=cause, what=what, next_step=next_step)


_TOOLKIT = (
    "install nvidia-container-toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker`, restart docker, "
    "and try `docker run --rm --gpus all ubuntu nvidia-smi`; a suite with `gpus: none` asks for no GPU"
)

_NO_SPACE = _known(
    r"no space left on device|disk quota exceeded",
    Cause.DISK_FULL,
    "no disk space is left for docker",
    "free some (`docker system df` shows what is there, `bisect clean` removes what is ours), then `bisect resume`",
)

_AT_START = (
    _known(
        r"could not select device driver|unresolvable CDI devices|failed to discover GPU vendor",
        Cause.NO_GPU,
        "docker cannot give a container a GPU: it has no NVIDIA runtime",
        _TOOLKIT,
    ),
    _known(
        r"nvidia-container-cli: device error|unknown device|no cuda-capable device",
        Cause.NO_GPU,
        "docker does not know a GPU that the suite asks for",
        "`nvidia-smi -L` lists the cards by number; correct `gpus` in the suite",
    ),
    _known(
        r"unsatisfied condition: \w+|driver/library version mismatch|driver not loaded|nvml error|nvidia-container-cli",
        Cause.DRIVER,
        "the GPU driver of this host is broken or too old for the image",
        "see `nvidia-smi` on the host; update the driver (a reboot mends a library mismatch), then `bisect resume`",
    ),
    _known(
        r"address already in use|port is already allocated",
        Cause.PORT,
        "the port was taken before the container could have it",
        "it is tried again at another port",
    ),
    _known(
        r"setting rlimits?\b|RLIMIT_|operation not permitted.*rlimit",
        Cause.ENGINE_REFUSED,
        "docker cannot give a container such ulimits: they are above the hard limit of its daemon",
        "lower or remove `ulimits` in the suite, or raise the daemon's own limits (LimitMEMLOCK=, LimitNOFILE=)",
    ),
    _known(
        r"bind source path does not exist|invalid mount config",
        Cause.ENGINE_REFUSED,
        "a folder that the suite mounts is not on this host",
        "correct `model.path` or `mounts` in the suite",
    ),
    _known(
        r"is already in use by container",
        Cause.ENGINE_REFUSED,
        "a container of that name runs for somebody else",
        "two runs of one name cannot go on at once: wait for the other, or start a run under another --name",
    ),
    _known(
        r"no such image",
        Cause.DAEMON,
        "the image was removed while the run needed it",
        "keep other clean-up jobs away from it, then `bisect resume`",
    ),
    _known(
        r"context deadline exceeded|transport is closing|connection refused|shutting down",
        Cause.DAEMON,
        "docker's own parts did not answer each other",
        "see the daemon's log (`journalctl -u docker`), then `bisect resume`",
    ),
    _NO_SPACE,
)

_NO_PROGRAM = re.compile(r"executable file not found|exec: \\?\"[^\"]*\\?\": (stat|permission denied)|no such file or")

_ANY_REFUSAL = _known(
    "",
    Cause.ENGINE_REFUSED,
    "docker refuses to start such a container",
    "correct the suite's options; `bisect plan` prints the `docker run` line to try by hand",
)


def one_line(message: str) -> str:
    """An engine's message without line breaks and without the API's envelope."""
    text = " ".join(message.split())
    return re.sub(r"^(\d{3} )?(Client|Server) Error for \S+ [^(]*\(\"(.*)\"\)$", r"\3", text)


def refused_start(message: str, *, where: str) -> EnvironmentFault | StartFailed:
    """The error for a container that the engine would not create or start."""
    said = one_line(message)
    for refusal in _AT_START:
        if refusal.pattern.search(said):
            return _fault(refusal, said, where)
    if _NO_PROGRAM.search(said):
        return StartFailed(
            Failure(
                cause=Cause.IMPORT_ERROR, phase=Phase.START, message=f"the image does not hold its program: {said}"
            )
        )
    return _fault(_ANY_REFUSAL, said, where)


def _fault(refusal: _Refusal, said: str, where: str) -> EnvironmentFault:
    what = f"{refusal.what} ({said})" if said else refusal.what
    return EnvironmentFault(what, where=where, next_step=refusal.next_step, cause=refusal.cause)


_GONE = re.compile(
    r"manifest unknown|manifest for .* not found|not found: manifest|no matching manifest|name unknown|"
    r"repository name not known|: not found\b|unsupported manifest|does not match the specified platform",
    re.IGNORECASE,
)

_AT_PULL = (
    _NO_SPACE,
    _known(
        r"toomanyrequests|429|rate limit",
        Cause.REGISTRY,
        "the registry gives no more for now: too many pulls",
        "`docker login` has a higher limit; or wait for the window to pass (hours) and `bisect resume`",
    ),
    _known(
        r"pull access denied|unauthorized|authentication required|denied|no basic auth credentials|forbidden",
        Cause.REGISTRY,
        "the registry does not let us have the image",
        "check the repository's name, and `docker login` to a private one",
    ),
    _known(
        r"x509|certificate|server gave HTTP response to HTTPS client",
        Cause.REGISTRY,
        "the registry's certificate is not trusted",
        "install its certificate for docker, or list it under `insecure-registries`",
    ),
)

_ANY_PULL = _known(
    "",
    Cause.REGISTRY,
    "the registry could not be reached, or broke off",
    "`docker pull` the image by hand to see it fail, mend the network, then `bisect resume`",
)


def failed_pull(message: str, *, reference: str, status: int | None = None) -> EnvironmentFault | StartFailed:
    """The error for a pull that failed: the build's own if the registry no longer has it, else the host's."""
    said = one_line(message)
    first = next((refusal for refusal in _AT_PULL if refusal.pattern.search(said)), None)
    if first is None and (_GONE.search(said) or status == 404):  # noqa: PLR2004 - not found
        return StartFailed(
            Failure(cause=Cause.PULL_FAILED, phase=Phase.PULL, message=f"the registry does not have {reference}: {said}")
        )
    return _fault(first or _ANY_PULL, said, reference)


def silent_pull(reference: str, idle_s: float) -> EnvironmentFault:
    """The error for a pull that brings nothing any more."""
    return EnvironmentFault(
        f"no byte of the image came for {idle_s:g} s",
        where=reference,
        next_step="`docker pull` it by hand to see whether the registry answers; `deadlines.pull_idle` sets how long to wait",
        cause=Cause.REGISTRY,
    )


def silent_daemon(detail: str, *, doing: str) -> EnvironmentFault:
    """The error for an engine that does not answer."""
    said = one_line(detail)
    if "permission denied" in said.lower():
        advice = "you may not talk to docker: join the group `docker` (`sudo usermod -aG docker $USER`, then log in again)"
    else:
        advice = "start it (`sudo systemctl start docker`) and see that `docker ps` answers, then `bisect resume`"
    return EnvironmentFault(
        f"the docker daemon did not answer ({said})", where=doing, next_step=advice, cause=Cause.DAEMON
    )
