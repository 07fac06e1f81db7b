"""The labels that mark containers and volumes as ours, and who may remove what."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from imagebisect.runtime.base import StartSpec
from imagebisect.runtime.groups import Owner

PREFIX = "org.imagebisect."
OWNER = f"{PREFIX}owner"
RUN = f"{PREFIX}run"
START = f"{PREFIX}start"
BUILD = f"{PREFIX}build"
CACHE = f"{PREFIX}cache"
PID_NAMESPACE = f"{PREFIX}pid-namespace"


def pid_namespace() -> str:
    """Where our process ids hold; those of another container mean nothing here."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return "unknown"


def of_start(spec: StartSpec) -> dict[str, str]:
    """What every container and volume of a start carries."""
    return {
        OWNER: str(Owner.this()),
        PID_NAMESPACE: pid_namespace(),
        RUN: spec.run_id,
        START: spec.start_id,
        BUILD: spec.build.name,
        CACHE: spec.server.cache,
    }


def abandoned(labels: Mapping[str, str]) -> bool:
    """Whether the process that owns it is dead, or is this one. In doubt it is alive."""
    owner = Owner.parse(labels.get(OWNER, ""))
    if owner is None:
        return False
    if owner == Owner.this():
        return True
    if owner.boot != Owner.this().boot:
        return True
    return labels.get(PID_NAMESPACE) == pid_namespace() and not owner.alive


def reapable(labels: Mapping[str, str], run_id: str | None) -> bool:
    """Whether it is a leftover: of this run, or of any run when `run_id` is None; never one with a living owner.

    A cache that a build keeps for its whole run outlives the process that made it and goes only with `None`.
    """
    if run_id is not None and labels.get(RUN) != run_id:
        return False
    return abandoned(labels)
