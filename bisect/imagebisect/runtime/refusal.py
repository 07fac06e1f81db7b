"""What the engine says when it refuses a container, and whose fault that is: always the host's or the suite's."""

from __future__ import annotations

from docker.errors import APIError, ImageNotFound

from imagebisect.errors import EnvironmentFault
from imagebisect.outcome import Cause
from imagebisect.runtime.base import StartSpec

_RULES: tuple[tuple[str, Cause, str, str], ...] = (
    (
        "could not select device driver",
        Cause.NO_GPU,
        "docker cannot give a container GPUs on this host: it has no NVIDIA runtime",
        "install the NVIDIA driver and nvidia-container-toolkit (`nvidia-ctk runtime configure`), restart docker",
    ),
    (
        "unsatisfied condition: cuda",
        Cause.DRIVER,
        "the GPU driver is too old for this image's CUDA",
        "install a newer driver (CUDA 13 images need R580 or later)",
    ),
    (
        "nvidia-container-cli",
        Cause.NO_GPU,
        "the NVIDIA container runtime cannot set up the GPUs",
        "check `nvidia-smi` on the host and that the card numbers in `gpus` exist",
    ),
    (
        "unknown or invalid runtime",
        Cause.ENGINE_REFUSED,
        "docker does not know the runtime that the suite asks for",
        "install it, or remove it from `docker:` in the suite",
    ),
    (
        "address already in use",
        Cause.PORT,
        "the port on 127.0.0.1 was taken meanwhile",
        "nothing to do: it is tried again with another one",
    ),
    ("port is already allocated", Cause.PORT, "the port on 127.0.0.1 was taken meanwhile", "it is tried again"),
    (
        "rlimit",
        Cause.ENGINE_REFUSED,
        "the engine cannot set the suite's `ulimits`: they are above the docker daemon's own hard limits",
        "lower `ulimits` in the suite or leave them out, or raise the daemon's limits",
    ),
    (
        "no space left on device",
        Cause.DISK_FULL,
        "no disk space is left where docker stores its containers",
        "remove images you do not need (`docker system df`), then `bisect resume`",
    ),
    (
        "is already in use by container",
        Cause.ENGINE_REFUSED,
        "a container of that name exists",
        "`bisect clean` removes leftovers of dead runs",
    ),
)


def refusal(error: APIError, spec: StartSpec) -> EnvironmentFault:
    """The engine's refusal of a start as an error with its cause and what to do."""
    text = " ".join(str(error.explanation or error).split())
    for pattern, cause, what, next_step in _RULES:
        if pattern in text.lower():
            return EnvironmentFault(
                f"{what} (docker: {text[:300]})", where=spec.container_name, next_step=next_step, cause=cause
            )
    if isinstance(error, ImageNotFound):
        return EnvironmentFault(
            f"the image went away between pull and start (docker: {text[:200]})",
            where=spec.container_name,
            next_step="something prunes images on this host; stop it, then `bisect resume`",
            cause=Cause.ENGINE_REFUSED,
        )
    return EnvironmentFault(
        f"the container engine refuses this start: {text[:400]}",
        where=spec.container_name,
        next_step="`bisect plan` prints the exact `docker run` line to try by hand",
        cause=Cause.ENGINE_REFUSED,
    )
