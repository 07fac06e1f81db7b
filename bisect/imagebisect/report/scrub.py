"""Nothing personal leaves in a report: secrets by value, home folders, user and host names."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from imagebisect import secrets

_SECRET_NAME = re.compile(secrets.WORDS + r"(?:$|_)", re.IGNORECASE)
_TOKEN = re.compile(r"\b(hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|sk-[A-Za-z0-9-]{16,})\b")
_BEARER = re.compile(r"(?i)(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_URL_AUTH = re.compile(r"(https?://)[^/\s:@]+:[^/\s@]+@")
_HOME = re.compile(r"(?<![\w.-])/(?:home|Users)/[^/\s:;,\"']+")
_SHORTEST = 4
"""Names shorter than this would blank out ordinary words."""

_NOBODY = ("root", "localhost", "user", "runner", "ubuntu")
"""Names that say nothing about anybody."""


class Scrubber:
    """Replaces what must not leave this host.

    `pass_env` names variables of `environ` whose values are secrets; `written` are variables that a file sets, of
    which those with a telling name are. `places` are folders of this host and what a reader is to see instead.
    """

    def __init__(
        self,
        pass_env: Iterable[str] = (),
        environ: Mapping[str, str] = os.environ,
        written: Mapping[str, str] | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        values = {environ[name] for name in pass_env if name in environ}
        for known in (environ, written or {}):
            values |= {value for name, value in known.items() if _SECRET_NAME.search(name)}
        self._exact = sorted((value for value in values if len(value) >= secrets.SHORTEST), key=len, reverse=True)
        self._places = sorted((places or {}).items(), key=lambda pair: -len(pair[0]))
        self._words: list[tuple[re.Pattern[str], str]] = []
        home = environ.get("HOME") or str(Path.home())
        if len(home) >= _SHORTEST and home != "/root":  # containers have a /root of their own
            self._words.append((re.compile(rf"{re.escape(home.rstrip('/'))}(?![\w.-])"), "~"))
        self._words.append((_HOME, "~"))
        for name, stands_for in ((socket.gethostname(), "<host>"), (_user(), "<user>")):
            if len(name) >= _SHORTEST and name not in _NOBODY:
                self._words.append((re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"), stands_for))

    def text(self, text: str) -> str:
        """One text without them."""
        for value in self._exact:
            text = text.replace(value, "***")
        for path, stands_for in self._places:
            text = text.replace(path, stands_for)
        for pattern, stands_for in self._words:
            text = pattern.sub(stands_for, text)
        text = _TOKEN.sub("***", text)
        text = _BEARER.sub(r"\1 ***", text)
        return _URL_AUTH.sub(r"\1***@", text)

    def value(self, value: Any) -> Any:
        """Any JSON value without them, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
