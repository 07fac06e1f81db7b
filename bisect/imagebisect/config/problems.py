"""Everything that is wrong in one file, each thing with its place, told at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from imagebisect.config.yaml import Document, PathIn
from imagebisect.errors import ConfigError, Problem


class Problems:
    """Collects everything wrong in one file before anything is raised."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.found: list[Problem] = []
        self._spoilt: set[PathIn] = set()

    def add(self, path: PathIn, message: str) -> None:
        """Note what a value means wrongly, unless the value itself has a problem already."""
        if not any(path[: len(spoilt)] == spoilt for spoilt in self._spoilt):
            self._note(path, message)

    def spoil(self, path: PathIn, message: str | None = None) -> None:
        """Note that a value cannot be used (None: said elsewhere), so that nothing is concluded from it."""
        if message is not None:
            self._note(path, message)
        self._spoilt.add(path)

    def touched(self, *paths: PathIn) -> bool:
        """Whether a value that cannot be used stands at, above or below one of these places."""
        return any(
            path[: len(spoilt)] == spoilt or spoilt[: len(path)] == path for path in paths for spoilt in self._spoilt
        )

    def spoilt_keys(self, place: PathIn) -> set[str]:
        """The keys of an entry in which something cannot be used."""
        return {
            str(path[len(place)]) for path in self._spoilt if len(path) > len(place) and path[: len(place)] == place
        }

    def raise_any(self, *, next_step: str = "") -> None:
        """Raise ConfigError with all problems in the order of the file, if there are any."""
        if self.found:
            ordered = sorted(set(self.found), key=lambda p: (p.location.line, p.location.column, p.message))
            raise ConfigError(tuple(ordered), next_step=next_step)

    def _note(self, path: PathIn, message: str) -> None:
        self.found.append(Problem(location=self.document.at(path), key=dotted(path), message=message))


def dotted(path: PathIn) -> str:
    """A key path as text: `servers.bt4096.args[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that this one was probably meant to be."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def unknown_key(key: str, known: Iterable[str]) -> str:
    """What to say of a key that nobody knows."""
    names = sorted(known)
    near = nearest(key, names)
    hint = f"did you mean {near}?" if near else f"expected one of: {', '.join(names)}"
    return f"there is no such key; {hint}"


def as_found(value: object) -> str:
    """A value out of a YAML file in a sentence."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "keys and values"
    return "a list" if isinstance(value, (list, tuple)) else repr(value)
