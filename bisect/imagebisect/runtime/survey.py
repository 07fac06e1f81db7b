"""What docker says of itself, and what of ours is left on this host. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebisect.runtime import groups


def docker_info() -> Mapping[str, Any]:
    """The engine's own description of itself. EnvironmentFault when none answers."""
    import docker
    from imagebisect.runtime.docker import _daemon

    with _daemon():
        client = docker.from_env(timeout=10)
        try:
            info: Mapping[str, Any] = client.info()
        finally:
            client.close()
    return info


def _dead(owner: str) -> bool:
    found = groups.Owner.parse(owner)
    return found is None or not found.alive


def leftover_groups() -> tuple[str, ...]:
    """Process groups of ours that no living run owns, in words."""
    return tuple(
        f"process group {group.pgid} of start {group.start_id} of run {group.run_id}"
        for group in groups.on_record()
        if _dead(group.owner) and group.members()
    )


def leftover_containers() -> tuple[str, ...]:
    """Containers and volumes of ours that no living run owns, in words. EnvironmentFault without an engine."""
    import docker
    from imagebisect.runtime.docker import CALL_S, LABEL, _daemon

    owner = f"{LABEL}.owner"
    with _daemon():
        client = docker.from_env(timeout=int(CALL_S))
        try:
            containers = client.containers.list(all=True, filters={"label": owner}, ignore_removed=True)
            volumes = client.volumes.list(filters={"label": owner})
        finally:
            client.close()
    found = [f"container {c.name}" for c in containers if _dead(c.labels.get(owner, ""))]
    found += [f"volume {v.name}" for v in volumes if _dead((v.attrs.get("Labels") or {}).get(owner, ""))]
    return tuple(found)
