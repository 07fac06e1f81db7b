"""A suite file: the model, the servers, the scenarios, the targets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from pydantic import BaseModel

from imagebisect.config import model_sizes, variables
from imagebisect.config.problems import Problems
from imagebisect.config.reading import read
from imagebisect.config.scenarios import read_scenario
from imagebisect.config.schema import (
    NAME,
    DeadlinesEntry,
    ModelEntry,
    ServerEntry,
    SuiteFile,
    TargetEntry,
    VariantEntry,
)
from imagebisect.config.servers import check_lengths, read_server
from imagebisect.config.targets import read_target
from imagebisect.config.variants import check_lengths as check_variant_lengths
from imagebisect.config.variants import read_variant
from imagebisect.config.yaml import Document, load
from imagebisect.domain import Deadlines, LinearAttention, ModelSpec, Suite, TargetRole

M = TypeVar("M", bound=BaseModel)

_BY_ENTRY = ("base", "servers", "variants", "scenarios", "targets", "model", "deadlines")
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
    if "vars" in document.data:
        data["vars"] = {} if isinstance(document.data["vars"], (dict, NoneType)) else document.data["vars"]
    sections = {
        name: found if isinstance(found := data.get(name), dict) else {}
        for name in ("servers", "variants", "scenarios", "targets")
    }
    _check_names(document, sections, problems)
    # entry by entry, so that one that cannot be read hides nothing in the others
    by_itself: dict[str, Any] = {
        name: {} for name, found in data.items() if name in _BY_ENTRY and isinstance(found, (dict, NoneType))
    }
    file = read(SuiteFile, {**data, **by_itself}, (), problems) or SuiteFile.model_construct()
    base = _part(ServerEntry, "base", data, problems)
    written = tuple(sections["servers"])
    servers = tuple(
        read_server(name, base, entry, problems, add_args=add_args, envs=envs or {})
        for name, raw in sections["servers"].items()
        if (entry := read(ServerEntry, raw, ("servers", name), problems)) is not None
    )
    scenarios = tuple(
        scenario
        for name, raw in sections["scenarios"].items()
        if (scenario := read_scenario(name, raw, problems, written, sections["variants"], base=path.parent)) is not None
    )
    check_lengths(scenarios, servers, problems)
    entries = {
        name: target_entry
        for name, raw in sections["targets"].items()
        if (target_entry := read(TargetEntry, raw, ("targets", name), problems)) is not None
    }
    targets = tuple(
        target
        for name, entry in entries.items()
        if (target := read_target(name, entry, problems, scenarios, tuple(sections["scenarios"]))) is not None
    )
    if entries and all(entry.role is TargetRole.WATCH for entry in entries.values()):
        problems.add(("targets",), "at least one target needs `role: bisect`: watched ones cost no start of their own")
    model = None
    if data.get("model") is not None:
        model = _model(_part(ModelEntry, "model", data, problems), document, problems, base=path.parent)
    else:
        for server in servers:
            if any("${model}" in arg for arg in server.args):
                problems.add(("servers", server.name), "its args use ${model}, but the suite has no `model`")
    variants = tuple(
        made
        for name, raw in sections["variants"].items()
        if (variant := read(VariantEntry, raw, ("variants", name), problems)) is not None
        and (made := read_variant(name, variant, servers, problems, written)) is not None
    )
    check_variant_lengths(variants, scenarios, servers, problems)
    deadlines = _part(DeadlinesEntry, "deadlines", data, problems)
    problems.raise_any()
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


def _part(model: type[M], key: str, data: Mapping[str, Any], problems: Problems) -> M:
    """A section that is one entry; its defaults where it is missing or cannot be read, which is noted."""
    raw = data.get(key)
    return (read(model, raw, (key,), problems) if isinstance(raw, dict) else None) or model()


def _check_names(document: Document, sections: Mapping[str, Mapping[str, Any]], problems: Problems) -> None:
    """Note sections without entries, and names that measurements could not be called by."""
    for section, entries in sections.items():
        if section != "variants" and section in document.data and not document.data[section]:
            problems.spoil((section,), "is empty")
        for name in entries:
            if not re.fullmatch(NAME, name) or "." in name:
                problems.add((section, name), f"expected a name of letters, digits, '-' and '_', found {name!r}")


def _model(entry: ModelEntry, document: Document, problems: Problems, *, base: Path) -> ModelSpec | None:
    if problems.touched(("model", "path"), ("model", "hf_cache")):
        return None
    if (entry.path is None) == (entry.hf_cache is None):
        problems.add(("model",), "expected either `path` or `hf_cache`")
        return None
    if entry.hf_cache is not None:
        cache = entry.hf_cache
        model = ModelSpec(
            path=_resolved(cache.path, _written(document, "model", "hf_cache", "path"), base),
            at=HF_AT,
            repo=cache.repo,
            revision=cache.revision,
            offline=cache.offline,
        )
    else:
        assert entry.path is not None
        if not entry.at.startswith("/"):
            problems.add(("model", "at"), f"expected a path in the container that begins with '/', found {entry.at!r}")
        model = ModelSpec(path=_resolved(entry.path, _written(document, "model", "path"), base), at=entry.at)
    given = entry.linear_attention
    sizes = LinearAttention(**given.model_dump()) if given is not None else model_sizes.linear_attention(model)
    return replace(model, linear_attention=sizes)


def _written(document: Document, *keys: str) -> object:
    """What the file has at a place, before variables are put in; None where a key is misspelt."""
    node: Any = document.data
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _resolved(text: str, written: object, base: Path) -> str:
    """A path from the file is relative to the file; one that came in through a variable, to where we run."""
    start = Path.cwd() if isinstance(written, str) and "${" in written else base
    return str((start / Path(text).expanduser()).resolve())
