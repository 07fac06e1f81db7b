"""One entry of a file, read; what is wrong in it is noted in plain words and stood in for.

An entry with a bad value is still looked at: the value is replaced by a harmless one, and its place remembered as
spoilt, so that the rest of the entry, and what refers to it, can be checked in the same go.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, TypeVar, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from imagebisect.config.problems import Problems, as_found, nearest, unknown_key
from imagebisect.config.yaml import PathIn

M = TypeVar("M", bound=BaseModel)

_ROUNDS = 8
"""More than the entries of a file are deep: each round mends what the one before laid open."""

_WHOLE = "expected a whole number"
_EXPECTED = {
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "finite_number": "expected a number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "string_type": "expected text",
    "list_type": "expected a list",
    "dict_type": "expected keys and values",
    "model_type": "expected keys and values",
    "model_attributes_type": "expected keys and values",
    "string_pattern_mismatch": (
        "expected a name of letters, digits, '.', '-' and '_' (a letter or digit first, 63 at most)"
    ),
    "literal_error": "expected {expected}",
    "enum": "expected {expected}",
    "greater_than": "expected a number above {gt}",
    "greater_than_equal": "expected a number of {ge} or more",
    "less_than": "expected a number below {lt}",
}
_ITEMS = {"prompt_tokens": "length", "concurrency": "number", "ladder": "rung", "run": "word"}
STAND_IN_ARG = "--stand-in"


class _Refusal(NamedTuple):
    path: PathIn
    kind: str
    message: str


def read(model: type[M], raw: object, place: PathIn, problems: Problems) -> M | None:
    """The entry at `place`; None when nothing can be made of it. What is wrong is noted."""
    if not isinstance(raw, dict):
        problems.spoil(place, f"expected keys and values, found {as_found(raw)}")
        return None
    data = copy.deepcopy(raw)
    written: dict[PathIn, PathIn] = {}
    for _ in range(_ROUNDS):
        try:
            return model.model_validate(data)
        except ValidationError as error:
            for refusal in _refusals(error, model, data):
                if refusal.kind == "missing" and _path(data, refusal.path) == refusal.path:
                    continue  # it was there under a misspelt key
                path = _as_written(refusal.path, written)
                if not problems.touched((*place, *path)):
                    problems.spoil((*place, *path), refusal.message)
                _mend(model, data, refusal, written)
    return None


def _refusals(error: ValidationError, model: type[BaseModel], data: dict[str, Any]) -> list[_Refusal]:
    """What pydantic found, one for each place: of the branches of a union, the one that came furthest."""
    found: dict[PathIn, _Refusal] = {}
    for item in error.errors(include_url=False):
        path = _path(data, item["loc"])
        kind = item["type"]
        if kind == "missing":
            path = (*path, item["loc"][-1])
        beside = _keys_beside(model, item["loc"]) if kind == "extra_forbidden" else []
        refusal = _Refusal(path, kind, _sentence(item, path, beside))
        before = found.get(path)
        if before is None or before.kind.endswith("_type"):
            found[path] = refusal
    kept = [one for one in found.values() if not any(len(p) > len(one.path) and _inside(p, one.path) for p in found)]
    return sorted(kept, key=lambda one: one.kind != "extra_forbidden")


def _inside(path: PathIn, outer: PathIn) -> bool:
    return path[: len(outer)] == outer


def _path(data: object, loc: tuple[int | str, ...]) -> PathIn:
    """The part of pydantic's location that is a path in the data (it also names union branches)."""
    node: Any = data
    path: list[str | int] = []
    for part in loc:
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))
        if inside:
            node = node[part]
            path.append(part)
    return tuple(path)


def _sentence(item: ErrorDetails, path: PathIn, beside: list[str]) -> str:
    """What to say of one refusal."""
    kind, context = item["type"], item.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return unknown_key(str(path[-1]), beside)
        case "missing":
            return "is missing"
        case "value_error":
            return str(context["error"])
        case "too_short":
            least = context["min_length"]
            key = next((part for part in reversed(path) if isinstance(part, str)), "")
            items = _ITEMS.get(key, "item") + ("" if least == 1 else "s")
            return f"expected at least {least} {items}, found {context['actual_length'] or 'none'}"
    expected = _EXPECTED.get(kind, "expected something else").format(**context)
    return f"{expected}, found {as_found(item['input'])}"


def _as_written(path: PathIn, written: dict[PathIn, PathIn]) -> PathIn:
    """The path with a mended key as the file has it."""
    for cut in range(len(path), 0, -1):
        if path[:cut] in written:
            return (*written[path[:cut]], *path[cut:])
    return path


def _mend(model: type[BaseModel], data: dict[str, Any], refusal: _Refusal, written: dict[PathIn, PathIn]) -> None:
    """Change `data` so that the refused value no longer stands in the way of the rest."""
    path = refusal.path
    node: Any = data
    for part in path[:-1]:
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))
        if not inside:
            return  # mended with what was around it
        node = node[part]
    last = path[-1]
    if refusal.kind == "extra_forbidden":
        value = node.pop(last, None)
        meant = nearest(str(last), _keys_beside(model, path))
        if meant is not None and meant not in node:
            node[meant] = value
            written[(*path[:-1], meant)] = path
        return
    if len(path) > 1 and isinstance(node, list) and path[0] in ("args", "args+"):
        node[int(last)] = STAND_IN_ARG
    elif len(path) > 1 and _is_free(model, str(path[0])):
        data[str(path[0])].pop(path[1], None)
    else:
        _stand_in(model, data, str(path[0]))


def _stand_in(model: type[BaseModel], data: dict[str, Any], key: str) -> None:
    """Put a field's default, or what it gives as an example, in its place."""
    data.pop(key, None)
    for name, field in model.model_fields.items():
        if key not in (name, field.alias):
            continue
        data.pop(name, None)
        if field.is_required():
            origin = get_origin(field.annotation)
            data[key] = copy.deepcopy(field.examples[0]) if field.examples else {} if origin is dict else []


def _is_free(model: type[BaseModel], key: str) -> bool:
    """Whether a field's keys are the user's own, as those of `env` are."""
    return any(key in (name, f.alias) and get_origin(f.annotation) is dict for name, f in model.model_fields.items())


def _keys_beside(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The keys that a model knows where an unknown one stands."""
    return [field.alias or name for found in _walk(model, loc[:-1]) for name, field in found.model_fields.items()]


def _walk(model: type[BaseModel], path: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """The models at a place inside an entry."""
    models = [model]
    for part in path:
        for found in models:
            field = next((f for name, f in found.model_fields.items() if part in (name, f.alias)), None)
            if field is not None:
                models = _inner(field.annotation)
                break
    return models


def _inner(annotation: Any) -> list[type[BaseModel]]:
    """The models inside list[...], dict[str, ...], unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _inner(argument)]
