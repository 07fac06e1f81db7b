"""`${NAME}` in a suite: declared in `vars`, set by --set, the environment, a vars file or a default."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagebisect.config.problems import Problems, as_found, unknown_key
from imagebisect.config.reading import read
from imagebisect.config.schema import VarEntry
from imagebisect.config.yaml import PathIn, load

_USE = re.compile(r"\$\{([^}]*)\}")
MODEL = "model"
"""`${model}` is the runtime's: the model's place as the server sees it."""


def vars_from_file(path: Path | None) -> dict[str, str]:
    """Names and values of a vars file (YAML); ConfigError for anything nested."""
    if path is None:
        return {}
    document = load(path)
    problems = Problems(document)
    found = {}
    for name, value in document.data.items():
        if isinstance(value, (dict, list, bool)) or value is None:
            problems.add((name,), f"expected one text or number, found {as_found(value)}")
        else:
            found[name] = str(value)
    problems.raise_any()
    return found


def resolve(declared: Any, sets: Mapping[str, str], from_file: Mapping[str, str], problems: Problems) -> dict[str, str]:
    """The value of every declared variable; what is unset or undeclared is noted as a problem."""
    values: dict[str, str] = {}
    entries: dict[str, VarEntry] = {}
    for name, raw in (declared if isinstance(declared, dict) else {}).items():
        entry = read(VarEntry, raw if raw is not None else {}, ("vars", name), problems)
        if entry is None:
            continue
        entries[name] = entry
        value = (
            sets.get(name) or (os.environ.get(entry.env) if entry.env else None) or from_file.get(name) or entry.default
        )
        if value:
            values[name] = value
        elif entry.required:
            problems.add(("vars", name), _unset(name, entry))
        else:
            values[name] = ""
    for name in (*sets, *from_file):
        if name not in (declared if isinstance(declared, dict) else {}):
            problems.add(
                ("vars",), f"{name}: {unknown_key(name, entries) if entries else 'this suite has no variables'}"
            )
    return values


def _unset(name: str, entry: VarEntry) -> str:
    ways = [f"--set {name}=..."]
    if entry.env:
        ways.append(f"the environment variable {entry.env}")
    ways.append("a --vars file")
    about = f": {' '.join(entry.help.split())}" if entry.help else ""
    return f"is required and not set{about}; set it by {', '.join(ways[:-1])} or {ways[-1]}"


def substitute(node: Any, values: Mapping[str, str], problems: Problems, path: PathIn = ()) -> Any:
    """The document with every `${NAME}` replaced; unknown names are noted where they stand."""
    if isinstance(node, dict):
        return {key: substitute(value, values, problems, (*path, key)) for key, value in node.items()}
    if isinstance(node, list):
        return [substitute(item, values, problems, (*path, index)) for index, item in enumerate(node)]
    if not isinstance(node, str) or "${" not in node:
        return node

    declared = problems.document.data.get("vars")
    names = set(declared) if isinstance(declared, dict) else set()

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name == MODEL:
            return match[0]
        if name in values:
            return values[name]
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            problems.add(
                path, f"${{{name}}} is not declared in `vars` (declared: {known}; ${{model}} is the model's place)"
            )
        problems.spoil(path)
        return "1"

    return _USE.sub(replace, node)
