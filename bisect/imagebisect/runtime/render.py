"""A start as text: the command a person could paste, and the canonical form that all starts must share. Pure.

Canonical takes out exactly what may differ between builds (design: section 5): image reference or environment
path, container name, labels, host port, cache volume, and the build's listed rewrites and overrides.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagebisect.domain import Build, JsonValue, Rendered, Rewrite, Server
from imagebisect.runtime.base import StartSpec

MODEL = "${model}"
CACHE_AT = "/root/.cache"
HF_OFFLINE = "HF_HUB_OFFLINE"


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A server's arguments and env as one build gets them, and the same with the build's deviations undone."""

    args: tuple[str, ...]
    env: Mapping[str, str]
    canonical_args: tuple[str, ...]
    canonical_env: Mapping[str, str]


def _rewritten(arg: str, rewrite: Rewrite) -> str | None:
    """The argument after a rewrite: its name replaced and its value kept, or None when it is dropped."""
    if arg == rewrite.from_arg:
        return rewrite.to_arg
    name, equals, value = arg.partition("=")
    if equals and name == rewrite.from_arg:
        return f"{rewrite.to_arg}={value}" if rewrite.to_arg is not None else None
    return arg


def apply_build(server: Server, build: Build) -> Applied:
    """Apply a build's rewrites and overrides to a server, remembering what each argument was."""
    pairs: list[tuple[str | None, str]] = []
    for arg in server.args:
        now: str | None = arg
        for rewrite in build.rewrites:
            now = _rewritten(now, rewrite) if now is not None else None
        pairs.append((now, arg))
    extra = build.overrides.args if build.overrides else ()
    extra_env = build.overrides.env if build.overrides else {}
    return Applied(
        args=(*(now for now, _ in pairs if now is not None), *extra),
        env={**server.env, **extra_env},
        canonical_args=tuple(arg for _, arg in pairs),
        canonical_env=dict(server.env),
    )


def with_model(args: tuple[str, ...], reference: str) -> tuple[str, ...]:
    """Put the model's place, as this server sees it, for `${model}`."""
    return tuple(arg.replace(MODEL, reference) for arg in args)


def model_env(spec: StartSpec, cache_home: str) -> dict[str, str]:
    """The env that a model out of a Hugging Face cache needs."""
    if spec.model is None or spec.model.repo is None:
        return {}
    return {"HF_HOME": cache_home, **({HF_OFFLINE: "1"} if spec.model.offline else {})}


def canonical(
    kind: str, server: Server, applied: Applied, *, env: Mapping[str, str], mounts: tuple[str, ...]
) -> dict[str, JsonValue]:
    """What must be equal in all starts of a server. `env` is what the runtime adds for the model."""
    return {
        "runtime": kind,
        "args": list(applied.canonical_args),
        "env": {**applied.canonical_env, **env},
        "pass_env": sorted(server.pass_env),
        "mounts": sorted(mounts),
        "gpus": server.gpus if isinstance(server.gpus, str) else list(server.gpus),
        "ipc": server.ipc,
        "shm_size": server.shm_size,
        "ulimits": dict(server.ulimits),
        "memory": server.memory,
        "cpuset": server.cpuset,
        "entrypoint": list(server.entrypoint) if server.entrypoint is not None else None,
        "network": server.network,
        "docker_options": dict(server.docker_options),
        "cache": server.cache,
        "container_port": server.container_port,
    }


def digest(form: Mapping[str, JsonValue]) -> str:
    """The sha256 of a canonical form, as sorted compact JSON."""
    return hashlib.sha256(json.dumps(form, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def rendered(
    argv: tuple[str, ...], env: Mapping[str, str], mounts: tuple[str, ...], form: dict[str, JsonValue]
) -> Rendered:
    """Put the pieces together."""
    return Rendered(argv=argv, env=dict(env), mounts=mounts, canonical=form, canonical_sha256=digest(form))


def container_mounts(spec: StartSpec) -> tuple[str, ...]:
    """`source:target[:ro]` of the model and of the server's own mounts; the cache volume is not among them."""
    found = []
    if spec.model is not None:
        found.append(f"{spec.model.path}:{spec.model.at}:ro")
    found.extend(f"{m.source}:{m.target}{':ro' if m.read_only else ''}" for m in spec.server.mounts)
    return tuple(found)


def gpus_flag(server: Server) -> str | None:
    """The value of docker's `--gpus`, None where no GPU is asked for."""
    match server.gpus:
        case "none":
            return None
        case "all":
            return "all"
        case indices:
            return '"device=' + ",".join(str(index) for index in indices) + '"'


_FLAGS = {
    "devices": "device",
    "dns_opt": "dns-option",
    "extra_hosts": "add-host",
    "mem_reservation": "memory-reservation",
    "mem_swappiness": "memory-swappiness",
    "memswap_limit": "memory-swap",
    "pid_mode": "pid",
    "sysctls": "sysctl",
    "userns_mode": "userns",
    "uts_mode": "uts",
    "working_dir": "workdir",
}
"""Options of the docker SDK whose flag of `docker run` has another name."""

_PAIRED_BY_COLON = {"extra_hosts", "tmpfs"}


def _option(name: str, value: Any) -> list[str]:
    """A docker SDK option as the flag of `docker run`, as near as the two agree."""
    flag = "--" + _FLAGS.get(name, name.replace("_", "-"))
    if isinstance(value, bool):
        return [flag if value else f"{flag}=false"]
    if isinstance(value, list):
        return [part for item in value for part in (flag, str(item))]
    if isinstance(value, dict):
        between = ":" if name in _PAIRED_BY_COLON else "="
        return [part for key, item in value.items() for part in (flag, f"{key}{between}{item}")]
    return [flag, str(value)]


def cache_volume(spec: StartSpec) -> str:
    """The volume for compile and JIT caches: one a start, or one a build of this run."""
    if spec.server.cache == "per-build":
        return f"bisect-{spec.run_id}-{spec.build.name}-cache"
    return f"{spec.container_name}-cache"


def render_container(spec: StartSpec) -> Rendered:
    """The `docker run` line of a start, its env and mounts, and its canonical form."""
    server, source = spec.server, spec.build.source
    assert source.kind == "image"
    applied = apply_build(server, spec.build)
    env_of_model = model_env(spec, spec.model.at if spec.model else "")
    env = {**env_of_model, **applied.env}
    mounts = container_mounts(spec)
    argv = ["docker", "run", "--rm", "--init", "--name", spec.container_name]
    gpus = gpus_flag(server)
    argv += ["--gpus", gpus] if gpus else []
    for flag, value in (
        ("--ipc", server.ipc),
        ("--shm-size", server.shm_size),
        ("--memory", server.memory),
        ("--cpuset-cpus", server.cpuset),
        ("--network", server.network),
    ):
        argv += [flag, value] if value is not None else []
    for name, limit in server.ulimits.items():
        argv += ["--ulimit", f"{name}={limit}"]
    if server.network != "host":
        argv += ["-p", f"127.0.0.1::{server.container_port}"]
    for name, value in env.items():
        argv += ["-e", f"{name}={value}"]
    for name in server.pass_env:
        argv += ["-e", name]
    for mount in mounts:
        argv += ["-v", mount]
    argv += ["-v", f"{cache_volume(spec)}:{CACHE_AT}"]
    for name, value in server.docker_options.items():
        argv += _option(name, value)
    entrypoint_args: tuple[str, ...] = ()
    if server.entrypoint:
        argv += ["--entrypoint", server.entrypoint[0]]
        entrypoint_args = server.entrypoint[1:]
    reference = spec.model.reference if spec.model else ""
    argv += [source.reference, *entrypoint_args, *with_model(applied.args, reference)]
    shown = {**env, **{name: f"${{{name}}}" for name in server.pass_env}}
    form = canonical("docker", server, applied, env=env_of_model, mounts=mounts)
    return rendered(tuple(argv), shown, mounts, form)


def shell_line(start: Rendered) -> str:
    """The command, quoted for a shell."""
    return shlex.join(start.argv)


def diff_canonical(one: Mapping[str, JsonValue], other: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Each difference between two canonical forms, in words; empty when they are equal."""
    found = []
    for key in sorted({*one, *other}):
        before, after = one.get(key), other.get(key)
        if before == after:
            continue
        if isinstance(before, list) and isinstance(after, list):
            gone = [str(item) for item in before if item not in after]
            new = [str(item) for item in after if item not in before]
            parts = ([f"without {' '.join(gone)}"] if gone else []) + ([f"with {' '.join(new)}"] if new else [])
            found.append(f"{key}: {', '.join(parts) or 'in another order'}")
        elif isinstance(before, dict) and isinstance(after, dict):
            found.extend(
                f"{key} {name}: {before.get(name, 'unset')} there, {after.get(name, 'unset')} here"
                for name in sorted({*before, *after})
                if before.get(name) != after.get(name)
            )
        else:
            found.append(f"{key}: {before} there, {after} here")
    return tuple(found)
