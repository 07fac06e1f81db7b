"""A vLLM log as lines without their dress: colour, `(Process pid=N)`, level, time and source position.

Reading is streaming and bounded, so a log may be huge, torn or binary. Where several processes wrote into one
line, it is taken apart again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

CHUNK_BYTES = 1 << 16

LONGEST_LINE_BYTES = 1 << 15
"""What goes beyond this in one line is dropped; the longest line vLLM is known to write has about 8,000."""

FOLLOWING_LINES = 3
"""Read after each wanted line: the source line and the marks under a traceback's frame."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PROCESS = re.compile(r"(?:\((?P<process>[A-Za-z][\w.-]{0,60}) pid=\d+(?:, ip=[\d.]{7,15})?\) ?){1,3}")
"""An engine repeats the lines of Ray's workers behind its own name: the last one wrote them."""
_RANK = re.compile(r"\[(?P<process>rank\d{1,6})\]: ?")
_LEVEL = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[[^\]]{1,300}\] ?"
)
_LIBRARY_LEVEL = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+ - (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) - [^ ]{1,100} - "
)
_UVICORN_LEVEL = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):\s+")
_TORCH_LEVEL = re.compile(r"\[(?P<letter>[IWEF])\d{3,4} [^\]]{1,200}\] ?")
_LETTERS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_QUIET = frozenset({"DEBUG", "INFO", "WARNING"})

_DRESS = re.compile(
    r"\([A-Za-z][\w.-]{0,60} pid=\d{1,9}\) |(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d"
    r"|\[rank\d{1,6}\]:|\[[IWEF]\d{3,4} \d\d:\d\d:"
)
"""How a line of vLLM or torch begins; within a line, it is another process that wrote into it."""

_SUSPECT = re.compile(r"(?:ERROR|CRITICAL) \d\d-|\[rank\d{1,6}\]:|\[[EF]\d{3,4} ")


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
        return self.level in _QUIET


def undress(raw: str, *, number: int = 0) -> LogLine:
    """Take the dress off one line."""
    text = (_ANSI.sub("", raw) if "\x1b" in raw else raw).rstrip("\r\n")
    process = ""
    found = _PROCESS.match(text) or _RANK.match(text)
    if found:
        process, text = found["process"], text[found.end() :]
        within = _RANK.match(text)
        text = text[within.end() :] if within else text
    for pattern in (_LEVEL, _UVICORN_LEVEL, _LIBRARY_LEVEL):
        found = pattern.match(text)
        if found:
            return LogLine(number=number, process=process, level=found["level"], text=text[found.end() :])
    found = _TORCH_LEVEL.match(text)
    if found:
        return LogLine(number=number, process=process, level=_LETTERS[found["letter"]], text=text[found.end() :])
    return LogLine(number=number, process=process, level="", text=text)


def _cuts(text: str) -> list[int]:
    """Where in a line another process began to write: where a dress follows anything but one, or begins again."""
    places: list[int] = []
    dressed_to, levelled = 0, False
    for hit in _DRESS.finditer(text):
        named = hit[0].startswith("(")
        if hit.start() > dressed_to or (named and levelled):
            places.append(hit.start())
        dressed_to, levelled = hit.end(), not named
    return places


def pieces(raw: str, *, number: int = 0) -> list[LogLine]:
    """One line, taken apart where several processes wrote into it.

    Whose the rest of a line is that was cut into cannot be known, so none of its pieces is quieter than the loudest.
    """
    text = _ANSI.sub("", raw) if "\x1b" in raw else raw
    own = 1 if text.startswith("(") else 0
    cuts = _cuts(text) if text.count(" pid=") > own or _SUSPECT.search(text, 1) else []
    if not cuts:
        return [undress(text, number=number)]
    ends = [*cuts, len(text)]
    found = [
        undress(text[start:end], number=number) for start, end in zip([0, *cuts], ends, strict=True) if end > start
    ]
    if all(line.is_quiet for line in found):
        return found
    return [replace(line, level="") if line.is_quiet else line for line in found]


@dataclass(kw_only=True)
class _Lines:
    """Lines put together from chunks, cut to LONGEST_LINE_BYTES, those that nobody wants left out early.

    A progress bar's redraws are parts of one line: the number goes up at each LF only.
    """

    words: tuple[bytes, ...] | None
    number: int = 1
    held: bytearray = field(default_factory=bytearray)
    follow: int = 0
    skipped: tuple[int, bytes] | None = None

    def _wanted(self, line: bytes, words: Sequence[bytes]) -> bool:
        if any(word in line for word in words):
            self.follow = FOLLOWING_LINES
        elif not self.follow:
            if not line.isspace():
                self.skipped = self.number, line
            return False
        else:
            self.follow -= 1
        self.skipped = None
        return True

    def _parts(self, segment: bytes, words: Sequence[bytes] | None, *, ended: bool) -> Iterator[tuple[int, bytes]]:
        """The parts that end in this piece of a line; what does not is held until it does."""
        *whole, rest = segment.split(b"\r") if b"\r" in segment else (segment,)
        if ended:
            whole, rest = [*whole, rest], b""
        for part in whole:
            line, among = part[:LONGEST_LINE_BYTES], words
            if self.held:
                line = bytes(self.held) + part[: LONGEST_LINE_BYTES - len(self.held)]
                among = self.words  # a word may lie across the border of two chunks
                self.held.clear()
            if line and (among is None or self._wanted(line, among)):
                yield self.number, line
        self.held += rest[: LONGEST_LINE_BYTES - len(self.held)]

    def take(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """The next lines."""
        words = None if self.words is None else [word for word in self.words if word in chunk]
        first, newline, rest = chunk.partition(b"\n")
        yield from self._parts(first, words, ended=bool(newline))
        if not newline:
            return
        self.number += 1
        if words is not None and not words and not self.follow:
            body, newline, last = rest.rpartition(b"\n")
            if body.strip():
                body = body.rstrip()
                self.skipped = self.number + body.count(b"\n"), body[body.rfind(b"\n") + 1 :][:LONGEST_LINE_BYTES]
            self.number += rest.count(b"\n")
            yield from self._parts(last, words, ended=False)
            return
        *whole, last = rest.split(b"\n")
        for line in whole:
            yield from self._parts(line, words, ended=True)
            self.number += 1
        yield from self._parts(last, words, ended=False)

    def end(self) -> Iterator[tuple[int, bytes]]:
        """The line without an end, or the last one that was left out: what a log ends with tells something."""
        if self.held and not self.held.isspace():
            yield self.number, bytes(self.held)
        elif self.skipped is not None:
            yield self.skipped


def _raw_lines(path: Path, words: tuple[bytes, ...] | None) -> Iterator[tuple[int, bytes]]:
    lines = _Lines(words=words)
    with path.open("rb") as stream:
        left = stream.seek(0, 2)  # what is written from now on is for the next reader: it may never end
        stream.seek(0)
        while left > 0 and (chunk := stream.read(min(CHUNK_BYTES, left))):
            left -= len(chunk)
            yield from lines.take(chunk)
    yield from lines.end()


def read(path: Path, *, wanted: tuple[bytes, ...] | None = None) -> Iterator[LogLine]:
    """All lines of a log; none when there is no such file.

    Args:
        path: the log.
        wanted: if given, only lines that hold one of these words come, FOLLOWING_LINES after each, and the last.
            Gigabytes of other lines then cost next to nothing.
    """
    if not path.is_file():
        return
    for number, raw in _raw_lines(path, wanted):
        yield from pieces(raw.decode("utf-8", errors="replace"), number=number)
