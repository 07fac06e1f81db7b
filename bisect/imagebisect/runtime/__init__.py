"""Start a build under a server: containers by digest, or processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagebisect.domain import Build
    from imagebisect.runtime.base import Runtime


def for_builds(builds: Sequence[Build]) -> Runtime:
    """The runtime that starts these builds; they are all of one kind (the builds file sees to it)."""
    if builds[0].source.kind == "image":
        from imagebisect.runtime.docker import DockerRuntime

        return DockerRuntime()
    from imagebisect.runtime.process import ProcessRuntime

    return ProcessRuntime()


def every_runtime() -> tuple[Runtime, ...]:
    """Every runtime this host can ask for leftovers."""
    from imagebisect.runtime.docker import DockerRuntime
    from imagebisect.runtime.process import ProcessRuntime

    return (ProcessRuntime(), DockerRuntime())
