"""YAML with a place for every key and value: `file:line:column`, duplicate keys refused."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from imagebisect.domain import Location
from imagebisect.errors import ConfigError, Problem, UsageError

PathIn = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A file as plain Python values, and where each of them stands."""

    file: str
    data: Any
    keys: dict[PathIn, Location] = field(default_factory=dict)
    values: dict[PathIn, Location] = field(default_factory=dict)

    def at(self, path: PathIn) -> Location:
        """Where a key path stands, or the nearest thing around it."""
        for cut in range(len(path), -1, -1):
            found = self.keys.get(path[:cut]) or self.values.get(path[:cut])
            if found is not None:
                return found
        return Location(file=self.file, line=1, column=1)


def read_text(path: Path) -> str:
    """A text file of the user's. UsageError when it cannot be read as such."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}", next_step="name it with --images, --suite or --vars") from error
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a folder, not a file", next_step="name the YAML file in it") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})", next_step="save it as UTF-8") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", next_step="check its permissions") from error


def load(path: Path) -> Document:
    """Read a YAML file whose top is a mapping. ConfigError with the place of what is wrong."""
    text = read_text(path)
    reader = YAML(typ="rt", pure=True)
    reader.allow_duplicate_keys = False

    def refuse(line: int, column: int, message: str) -> ConfigError:
        place = Location(file=str(path), line=line, column=column)
        return ConfigError((Problem(location=place, key="", message=message),))

    try:
        data = reader.load(text)
    except DuplicateKeyError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        what = (
            str(error.problem or "")
            .partition(" with value")[0]
            .replace("found duplicate key", "this key stands twice:")
        )
        raise refuse(line, column, f"{what.strip()} (remove or rename one)") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        raise refuse(line, column, f"this is no YAML: {error.problem or error.context}") from error
    except (YAMLError, ValueError) as error:
        raise refuse(1, 1, f"this is no YAML: {' '.join(str(error).split())[:200]}") from error
    if data is None:
        raise refuse(1, 1, "the file is empty")
    if not isinstance(data, CommentedMap):
        raise refuse(
            1, 1, f"expected keys and values at the top, found {type(data).__name__.removeprefix('Commented').lower()}"
        )
    document = Document(file=str(path), data=None)
    plain = _plain(data, (), document)
    return Document(file=str(path), data=plain, keys=document.keys, values=document.values)


def _plain(node: Any, path: PathIn, document: Document) -> Any:
    if isinstance(node, (CommentedMap, CommentedSeq)):
        document.values.setdefault(path, Location(file=document.file, line=node.lc.line + 1, column=node.lc.col + 1))
    if isinstance(node, CommentedMap):
        marks = node.lc.data or {}
        found = {}
        for key, value in node.items():
            name = str(key)
            if key in marks:
                key_line, key_column, line, column = marks[key]
                document.keys[(*path, name)] = Location(file=document.file, line=key_line + 1, column=key_column + 1)
                document.values[(*path, name)] = Location(file=document.file, line=line + 1, column=column + 1)
            found[name] = _plain(value, (*path, name), document)
        return found
    if isinstance(node, CommentedSeq):
        marks = node.lc.data or {}
        for index in range(len(node)):
            if index in marks:
                line, column = marks[index][:2]
                document.values[(*path, index)] = Location(file=document.file, line=line + 1, column=column + 1)
        return [_plain(item, (*path, index), document) for index, item in enumerate(node)]
    if isinstance(node, (dt.date, dt.datetime)):
        return node.isoformat()
    if isinstance(node, bool) or node is None:
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node
