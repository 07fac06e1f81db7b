"""A suite file: the model, the servers, the scenarios, the targets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from imagebisect.config import model_sizes, variables
from imagebisect.config.problems import Problems, prune
from imagebisect.config.scenarios import read_scenario
from imagebisect.config.schema import NAME, ModelEntry, ServerEntry, SuiteFile, TargetEntry
from imagebisect.config.variants import check_gpus, read_variant
from imagebisect.config.yaml import Document, PathIn, load
from imagebisect.domain import (
    Deadlines,
    Floor,
    LinearAttention,
    ModelSpec,
    Mount,
    Server,
    Suite,
    Target,
    TargetRole,
)
from imagebisect.scenario import MetricKind, Scenario
from imagebisect.secrets import secret_names

_OWN_FLAGS = ("--host", "--port", "--uds")
_OWN_OPTIONS = ("detach", "remove", "auto_remove", "ports", "name", "labels", "tty", "image", "command")
HF_AT = "/root/.cache/huggingface"


def load_suite(
    path: Path,
    *,
    sets: Mapping[str, str] | None = None,
    vars_file: Path | None = None,
    add_args: tuple[str, ...] = (),
    envs: Mapping[str, str] | None = None,
) -> Suite:
    """Read a suite. ConfigError with every problem in it, each with its place.

    `add_args` and `envs` are overlays on every server; they are kept as the suite's `deltas`.
    """
    document = load(path)
    problems = Problems(document)
    from_file = variables.vars_from_file(vars_file)
    values = variables.resolve(document.data.get("vars"), sets or {}, from_file, problems)
    data = variables.substitute({k: v for k, v in document.data.items() if k != "vars"}, values, problems)
    if isinstance(document.data.get("vars"), dict):
        data["vars"] = {name: entry for name, entry in document.data["vars"].items() if isinstance(entry, dict)}
    try:
        file = SuiteFile.model_validate(data)
    except ValidationError as error:
        problems.add_validation(error, SuiteFile)
        if not prune(data, error):
            problems.raise_any()
        try:
            file = SuiteFile.model_validate(data)
        except ValidationError:
            problems.raise_any()
            raise
    for section in ("servers", "variants", "scenarios", "targets"):
        entries = getattr(file, section)
        if section != "variants" and not document.data.get(section):
            problems.add((section,), "is empty")
        for name in entries:
            if not re.fullmatch(NAME, name) or "." in name:
                problems.add((section, name), "expected a name of letters, digits, '-' and '_'")
    servers = tuple(
        _server(name, file.base, entry, problems, add_args=add_args, envs=envs or {})
        for name, entry in file.servers.items()
    )
    written = list(document.data["servers"])
    scenarios = tuple(
        read_scenario(name, entry, problems, written, base=path.parent) for name, entry in file.scenarios.items()
    )
    targets = tuple(
        target
        for name, entry in file.targets.items()
        if (target := _target(name, entry, problems, scenarios)) is not None
    )
    if targets and all(target.role is TargetRole.WATCH for target in targets):
        problems.add(("targets",), "at least one target needs `role: bisect`: watched ones cost no start of their own")
    model = _model(file.model, document, problems, base=path.parent)
    if model is None:
        for name, server in zip(file.servers, servers, strict=True):
            if any("${model}" in arg for arg in server.args):
                problems.add(("servers", name), "its args use ${model}, but the suite has no `model`")
    variants = tuple(
        made
        for name, variant in file.variants.items()
        if (made := read_variant(name, variant, servers, problems)) is not None
    )
    problems.raise_any()
    deadlines = file.deadlines
    return Suite(
        name=path.stem,
        file=str(path),
        model=model,
        servers=servers,
        scenarios=scenarios,
        targets=targets,
        deadlines=Deadlines(
            pull_idle_s=deadlines.pull_idle, boot_s=deadlines.boot, request_s=deadlines.request, stop_s=deadlines.stop
        ),
        seed=file.seed,
        gpu_probe=file.gpu_probe,
        variants=variants,
        deltas=(
            *(f"--add-arg {arg} on every server" for arg in add_args),
            *(f"--env {name}={value} on every server" for name, value in (envs or {}).items()),
            *(f"--set {name}={value}" for name, value in (sets or {}).items()),
        ),
    )


def _server(
    name: str,
    base: ServerEntry,
    entry: ServerEntry,
    problems: Problems,
    *,
    add_args: tuple[str, ...],
    envs: Mapping[str, str],
) -> Server:
    """A server: its own keys over those of `base`; `args+` of both and the overlays appended, env merged."""
    place: PathIn = ("servers", name)
    given = {**base.model_dump(exclude_unset=True), **entry.model_dump(exclude_unset=True)}
    args = (*(given.get("args") or ()), *base.args_added, *entry.args_added, *add_args)
    for position, arg in enumerate(args):
        if not arg.strip():
            problems.add((*place, "args"), f"argument {position + 1} is empty")
        elif arg.partition("=")[0] in _OWN_FLAGS:
            problems.add((*place, "args"), f"{arg.partition('=')[0]} is set by bisect for each start; remove it")
    for key, owner in ((place, entry), (("base",), base)):
        for secret in secret_names(owner.env):
            problems.add((*key, "env", secret), "looks like a secret: pass it by name with `pass_env`, never by value")
    for secret in secret_names(envs):
        problems.add(place, f"--env {secret}=... looks like a secret: pass it by name with `pass_env`, never by value")
    mounts = entry.mounts if entry.mounts is not None else (base.mounts or [])
    options = given.get("docker") or {}
    for option in options:
        if option in _OWN_OPTIONS:
            problems.add((*place, "docker", option), "is set by bisect for each start; remove it")
    gpus = given.get("gpus", "none")
    server = Server(
        name=name,
        args=args,
        env={**base.env, **entry.env, **envs},
        pass_env=tuple(given.get("pass_env") or ()),
        gpus=tuple(gpus) if isinstance(gpus, list) else gpus,
        ipc=given.get("ipc"),
        shm_size=given.get("shm_size"),
        ulimits=given.get("ulimits") or {},
        memory=given.get("memory"),
        cpuset=given.get("cpuset"),
        mounts=tuple(
            Mount(source=str(Path(m.source).expanduser().resolve()), target=m.target, read_only=m.read_only)
            for m in mounts
        ),
        entrypoint=tuple(given["entrypoint"]) if given.get("entrypoint") else None,
        network=given.get("network"),
        docker_options=options,
        endpoint=given.get("endpoint") or "completions",
        cache=given.get("cache") or "fresh",
        container_port=given.get("container_port") or 8000,
    )
    check_gpus(server, place, problems)
    return server


def _target(name: str, entry: TargetEntry, problems: Problems, scenarios: tuple[Scenario, ...]) -> Target | None:
    place: PathIn = ("targets", name)
    scenario_name, _, metric_name = entry.metric.partition(".")
    scenario = next((s for s in scenarios if s.name == scenario_name), None)
    if scenario is None and scenario_name in problems.document.data["scenarios"]:
        return None  # it has a problem of its own
    if scenario is None:
        known = ", ".join(s.name for s in scenarios)
        problems.add(
            (*place, "metric"), f"expected <scenario>.<metric> with a scenario of {known}; found {entry.metric!r}"
        )
        return None
    metrics = {metric.name: metric for metric in scenario.metrics()}
    if metric_name not in metrics:
        known = ", ".join(f"{scenario_name}.{metric}" for metric in metrics)
        problems.add(
            (*place, "metric"), f"{scenario_name} has no such metric; expected one of {known}; found {entry.metric!r}"
        )
        return None
    metric = metrics[metric_name]
    floor = _floor(entry.floor, metric.kind, place, problems)
    if floor is None:
        return None
    return Target(name=name, scenario=scenario_name, metric=metric, worse=entry.worse, floor=floor, role=entry.role)


def _floor(text: str | None, kind: MetricKind, place: PathIn, problems: Problems) -> Floor | None:
    if kind is MetricKind.EVENT:
        if text is not None:
            problems.add((*place, "floor"), "an event either happens or not: remove the floor")
        return Floor(value=0.0, relative=False)
    if text is None:
        example = "256 (MiB)" if kind is MetricKind.LEVEL else "10%"
        problems.add((*place, "floor"), f"is missing: the smallest change that matters, such as {example}")
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", text)
    if match is None or float(match[1]) <= 0:
        problems.add((*place, "floor"), f"expected a share such as 10% or an amount such as 256, found {text!r}")
        return None
    relative = match[2] == "%"
    return Floor(value=float(match[1]) / 100 if relative else float(match[1]), relative=relative)


def _model(entry: ModelEntry | None, document: Document, problems: Problems, *, base: Path) -> ModelSpec | None:
    if entry is None:
        return None
    if (entry.path is None) == (entry.hf_cache is None):
        problems.add(("model",), "expected either `path` or `hf_cache`")
        return None
    if entry.hf_cache is not None:
        cache = entry.hf_cache
        raw = document.data["model"]["hf_cache"]["path"]
        model = ModelSpec(
            path=_resolved(cache.path, raw, base),
            at=HF_AT,
            repo=cache.repo,
            revision=cache.revision,
            offline=cache.offline,
        )
    else:
        assert entry.path is not None
        if not entry.at.startswith("/"):
            problems.add(("model", "at"), f"expected a path in the container that begins with '/', found {entry.at!r}")
        model = ModelSpec(path=_resolved(entry.path, document.data["model"]["path"], base), at=entry.at)
    given = entry.linear_attention
    sizes = LinearAttention(**given.model_dump()) if given is not None else model_sizes.linear_attention(model)
    return replace(model, linear_attention=sizes)


def _resolved(text: str, written: object, base: Path) -> str:
    """A path from the file is relative to the file; one that came in through a variable, to where we run."""
    start = Path.cwd() if isinstance(written, str) and "${" in written else base
    return str((start / Path(text).expanduser()).resolve())
