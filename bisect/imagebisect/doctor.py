"""Is this host ready? Each check says what it saw and what to do about it; none changes anything."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebisect.domain import ImageSource, SimulatedSource, VenvSource

if TYPE_CHECKING:
    from imagebisect.domain import ModelSpec, Plan, Server

IMAGE_GB = 30
"""Room that one vllm-openai image needs unpacked (28.6 GB at v0.12)."""

_LIMITS = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE, "stack": resource.RLIMIT_STACK}


class Level(StrEnum):
    """How bad it is: `fail` keeps a run from working."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at."""

    name: str
    level: Level
    what: str
    next_step: str = ""


def _ok(name: str, what: str) -> Check:
    return Check(name=name, level=Level.OK, what=what)


def _warn(name: str, what: str, next_step: str) -> Check:
    return Check(name=name, level=Level.WARN, what=what, next_step=next_step)


def _fail(name: str, what: str, next_step: str) -> Check:
    return Check(name=name, level=Level.FAIL, what=what, next_step=next_step)


def checks(plan: Plan | None, results: Path) -> tuple[Check, ...]:
    """All checks that make sense for a plan; for no plan those of docker, disk and the loopback."""
    found: list[Check] = []
    images = plan is None or any(isinstance(build.source, ImageSource) for build in plan.builds)
    info: Mapping[str, Any] | None = None
    if images:
        docker, info = _docker()
        found.append(docker)
    if plan is not None:
        found += _builds(plan)
        for server in plan.suite.servers:
            found += _gpus(plan, server, info)
            found += _ulimits(server)
        if plan.suite.model is not None:
            found += _model(plan.suite.model)
    found += _disk(info, results, count=len(plan.builds) if plan is not None and images else 1)
    found.append(_loopback())
    return tuple(found)


def _docker() -> tuple[Check, Mapping[str, Any] | None]:
    from imagebisect.errors import EnvironmentFault
    from imagebisect.runtime import survey

    try:
        info = survey.docker_info()
    except EnvironmentFault as fault:
        return _fail("docker", fault.what, fault.next_step), None
    return _ok("docker", f"engine {info.get('ServerVersion')}, storage {info.get('Driver')}"), info


def _builds(plan: Plan) -> Iterator[Check]:
    from imagebisect.config import unpinned

    loose = unpinned(plan.builds)
    if loose:
        names = ", ".join(build.name for build in loose)
        yield _fail("digests", f"not pinned: {names}", f"bisect images resolve --images {plan.images_file}")
    elif isinstance(plan.builds[0].source, ImageSource):
        yield _ok("digests", f"{len(plan.builds)} builds by full digest")
    for build in plan.builds:
        if isinstance(build.source, VenvSource) and build.same_as is None:
            program = Path(build.source.path) / "bin" / "vllm"
            if os.access(program, os.X_OK):
                yield _ok("environment", f"{build.name}: {program}")
            else:
                yield _fail(
                    "environment", f"{build.name}: {program} is not a program", "install vllm there, or fix the path"
                )


def _gpus(plan: Plan, server: Server, info: Mapping[str, Any] | None) -> Iterator[Check]:
    from imagebisect.measure import gpu

    name = f"gpu {server.name}"
    if server.gpus == "none":
        yield _ok(name, "the server asks for no GPU")
        return
    if isinstance(plan.builds[0].source, SimulatedSource):
        yield _ok(name, "simulated cards")
        return
    if info is not None and "nvidia" not in (info.get("Runtimes") or {}):
        yield _warn(
            "nvidia runtime",
            "docker knows no runtime `nvidia`; `--gpus` may fail",
            "install nvidia-container-toolkit, `nvidia-ctk runtime configure`, restart docker",
        )
    probe = gpu.choose(server, plan.builds[0].source, plan.suite.gpu_probe, Path())
    cards = probe.read()
    needed = server.tensor_parallel_size
    if not cards:
        yield _fail(
            name, f"no GPU can be read here ({probe.source}); {needed} needed", "is the driver loaded? see `nvidia-smi`"
        )
        return
    if len(cards) < needed or (isinstance(server.gpus, tuple) and len(cards) < len(server.gpus)):
        yield _fail(
            name,
            f"{len(cards)} of the cards asked for are here; TP={needed}",
            "change `gpus` or --tensor-parallel-size",
        )
        return
    for card in cards:
        text = f"GPU {card.index} {card.name}: {card.free_mib:,.0f} of {card.total_mib:,.0f} MiB free"
        if card.processes:
            on_it = ", ".join(f"pid {pid} {mib:,.0f} MiB" for pid, mib in card.processes)
            yield _warn(name, f"{text}; on it: {on_it}", "it may stay if it does not grow; better end it")
        else:
            yield _ok(name, text)


def _ulimits(server: Server) -> Iterator[Check]:
    for limit, wanted in server.ulimits.items():
        number = _LIMITS.get(limit)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY and (wanted < 0 or wanted > hard):
            yield _warn(
                f"ulimit {server.name}",
                f"{limit}={wanted} is above this host's hard limit of {hard}; the engine may refuse it",
                f"lower `ulimits.{limit}` or raise the docker daemon's limit",
            )


def _model(model: ModelSpec) -> Iterator[Check]:
    root = Path(model.path)
    if not root.is_dir():
        yield _fail(
            "model", f"the folder {root} is not there", "set `model.path` (or its variable) to the model's folder"
        )
        return
    if model.repo is not None:
        snapshots = root / "hub" / f"models--{model.repo.replace('/', '--')}" / "snapshots"
        if not snapshots.is_dir():
            yield _fail(
                "model", f"{model.repo} is not in the cache at {root}", "download it first, or set `offline: false`"
            )
            return
        root = snapshots / model.revision if model.revision else snapshots
        mounted = Path(model.path)
    else:
        mounted = root
        if not (root / "config.json").is_file():
            yield _warn("model", f"{root} has no config.json", "is it the model's own folder?")
    dangling, outside = links(root, mounted)
    if dangling:
        yield _fail("model", f"{len(dangling)} links lead nowhere, e.g. {dangling[0]}", "download the model again")
    if outside:
        yield _fail(
            "model",
            f"{len(outside)} files are links out of {mounted}, e.g. {outside[0]}: a container would see them broken",
            "a Hugging Face snapshot links to ../../blobs: use `hf_cache` with the cache folder, or copy with `cp -rL`",
        )
    if not dangling and not outside:
        yield _ok("model", f"{root} is readable, no dangling links")


def links(root: Path, mounted: Path) -> tuple[list[str], list[str]]:
    """Links below `root` that lead nowhere, and those that lead out of `mounted` (broken inside a container)."""
    dangling, outside = [], []
    top = mounted.resolve()
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            target = path.resolve()
            if not target.exists():
                dangling.append(str(path.relative_to(root)))
            elif not target.is_relative_to(top):
                outside.append(str(path.relative_to(root)))
    return dangling, outside


def _disk(info: Mapping[str, Any] | None, results: Path, *, count: int) -> Iterator[Check]:
    places = [("disk results", results if results.exists() else Path.cwd(), 1.0)]
    root = Path(str((info or {}).get("DockerRootDir", "")))
    if info is not None and root.is_dir():
        places.append(("disk images", root, float(IMAGE_GB)))
    for name, place, needed in places:
        free = shutil.disk_usage(place).free / 1e9
        text = f"{free:,.0f} GB free at {place}"
        if free < needed:
            yield _warn(
                name, f"{text}; one image needs about {needed:,.0f} GB, the list has {count} builds", "free some space"
            )
        else:
            yield _ok(name, text)


def _loopback() -> Check:
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
    except OSError as error:
        return _fail(
            "loopback", f"no port on 127.0.0.1 can be bound: {error.strerror}", "check the host's network set-up"
        )
    return _ok("loopback", "ports on 127.0.0.1 can be bound")
