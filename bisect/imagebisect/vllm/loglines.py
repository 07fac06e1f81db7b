"""A vLLM log as lines without their dress: colour, `(Process pid=N)`, level, time and source position.

Reading is streaming and bounded, so a log may be huge, torn or binary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 16

LONGEST_LINE_BYTES = 1 << 15
"""What goes beyond this in one line is dropped; the longest line vLLM is known to write has about 8,000."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PROCESS = re.compile(r"\((?P<process>[A-Za-z][\w.-]{0,60}) pid=\d+\) ?")
_LEVEL = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[[^\]]{1,300}\] ?"
)
_LIBRARY_LEVEL = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+ - (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) - [^ ]{1,100} - "
)
_UVICORN_LEVEL = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):\s+")
_TORCH_LEVEL = re.compile(r"(?:\[rank\d+\]:)?\[(?P<letter>[IWEF])\d{3,4} [^\]]{1,200}\] ?")
_LETTERS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line: `number` from 1, the process that wrote it, its level (each empty where the line has none), its text."""

    number: int
    process: str
    level: str
    text: str

    @property
    def is_quiet(self) -> bool:
        """Whether the server itself calls it less than an error, so that it cannot be why it died."""
        return self.level in {"DEBUG", "INFO", "WARNING"}


def undress(raw: str, *, number: int = 0) -> LogLine:
    """Take the dress off one line."""
    text = _ANSI.sub("", raw).rstrip("\r\n")
    process = ""
    found = _PROCESS.match(text)
    if found:
        process, text = found["process"], text[found.end() :]
    for pattern in (_LEVEL, _UVICORN_LEVEL, _LIBRARY_LEVEL):
        found = pattern.match(text)
        if found:
            return LogLine(number=number, process=process, level=found["level"], text=text[found.end() :])
    found = _TORCH_LEVEL.match(text)
    if found:
        return LogLine(number=number, process=process, level=_LETTERS[found["letter"]], text=text[found.end() :])
    return LogLine(number=number, process=process, level="", text=text)


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each line, cut to LONGEST_LINE_BYTES; the last one may lack its end."""
    number, held, full = 1, bytearray(), False
    with path.open("rb") as stream:
        left = stream.seek(0, 2)  # what is written from now on is for the next reader: it may never end
        stream.seek(0)
        while chunk := stream.read(min(CHUNK_BYTES, left)):
            left -= len(chunk)
            first, *rest = chunk.split(b"\n")
            if not full:
                held += first[: LONGEST_LINE_BYTES - len(held)]
                full = len(held) >= LONGEST_LINE_BYTES
            for piece in rest:
                yield number, bytes(held)
                number += 1
                held = bytearray(piece[:LONGEST_LINE_BYTES])
                full = len(held) >= LONGEST_LINE_BYTES
    if held:
        yield number, bytes(held)


def read(path: Path) -> Iterator[LogLine]:
    """All lines of a log; none when there is no such file. A progress bar's redraws count as one line's parts."""
    if not path.is_file():
        return
    for number, raw in _raw_lines(path):
        for part in raw.decode("utf-8", errors="replace").split("\r"):
            if part:
                yield undress(part, number=number)
