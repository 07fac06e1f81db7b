"""From what pydantic found to what a person can act on: the place, the key, what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

from imagebisect.config.yaml import Document, PathIn
from imagebisect.errors import ConfigError, Problem

_WORDS = {
    "missing": "is missing",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "string_type": "expected text (put it in quotes)",
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "dict_type": "expected keys and values",
    "model_type": "expected keys and values",
    "model_attributes_type": "expected keys and values",
}


class Problems:
    """Collects everything wrong in one file before anything is raised."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.found: list[Problem] = []

    def add(self, path: PathIn, message: str) -> None:
        """Note one problem at a key path."""
        self.found.append(Problem(location=self.document.at(path), key=dotted(path), message=message))

    def raise_any(self, *, next_step: str = "") -> None:
        """Raise ConfigError with all problems in the order of the file, if there are any."""
        if self.found:
            ordered = sorted(set(self.found), key=lambda p: (p.location.line, p.location.column, p.message))
            raise ConfigError(tuple(ordered), next_step=next_step)

    def add_validation(self, error: ValidationError, model: type[BaseModel], prefix: PathIn = ()) -> None:
        """Note what pydantic found, each at its place."""
        for item in error.errors(include_url=False):
            path = (*prefix, *self._known(prefix, item["loc"]))
            kind = item["type"]
            if kind == "extra_forbidden":
                self.add(path, unknown_key(str(path[-1]), _keys_beside(model, item["loc"])))
            elif kind == "missing":
                self.add((*path, str(item["loc"][-1])), "is missing")
            elif kind in ("union_tag_not_found", "union_tag_invalid"):
                expected = item.get("ctx", {}).get("expected_tags", "'idle-memory', 'prefill', 'decode', 'oom-probe'")
                self.add((*path, "kind"), f"expected one of {expected}")
            else:
                found = item.get("input")
                text = _WORDS.get(kind) or str(item["msg"]).removeprefix("Value error, ")
                said = (
                    f", found {found!r}" if isinstance(found, (str, int, float, bool)) and kind != "value_error" else ""
                )
                self.add(path, f"{text}{said}")

    def _known(self, prefix: PathIn, loc: Iterable[int | str]) -> PathIn:
        """The part of pydantic's location that is a path in the file (it also names union branches)."""
        node: Any = self.document.data
        for step in prefix:
            node = node[step]
        path: list[str | int] = []
        for part in loc:
            inside = part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))
            if inside:
                node = node[part]
                path.append(part)
        return tuple(path)


def prune(data: Any, error: ValidationError) -> bool:
    """Take out of `data` the entries (two levels deep) that pydantic refused, so that the rest can be looked at too.

    False when something else than an entry was refused.
    """
    for item in error.errors(include_url=False):
        match item["loc"]:
            case (section, entry, *_) if isinstance(data.get(section), dict):
                data[section].pop(entry, None)
            case (section, int(entry), *_) if isinstance(data.get(section), list):
                data[section][entry] = None
            case _:
                return False
    return True


def dotted(path: PathIn) -> str:
    """A key path as text: `servers.bt4096.args[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def unknown_key(key: str, known: Iterable[str]) -> str:
    """What to say of a key that nobody knows."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"expected one of: {', '.join(names)}"
    return f"there is no such key; {hint}"


def _keys_beside(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The keys that a model knows where an unknown one stands."""
    current = [model]
    for part in loc[:-1]:
        current = _descend(current, part)
    return [field.alias or name for found in current for name, field in found.model_fields.items()]


def _descend(models: list[type[BaseModel]], part: int | str) -> list[type[BaseModel]]:
    """The models one step further down a location: a field's, or of several the one with this `kind`."""
    of_kind = [model for model in models if part in _kinds(model)]
    if len(models) > 1 and of_kind:
        return of_kind
    for model in models:
        for name, field in model.model_fields.items():
            if part in (name, field.alias):
                return _inner(field.annotation)
    return models


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("kind")
    return getattr(field.annotation, "__args__", ()) if field is not None else ()


def _inner(annotation: Any) -> list[type[BaseModel]]:
    """The models inside list[...], dict[str, ...], unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _inner(argument)]
