"""What a growing log gained since the last look."""

from __future__ import annotations

import os
from pathlib import Path

from imagebisect.vllm.loglines import LONGEST_LINE_BYTES

LONGEST_READ_BYTES = 1 << 20
"""One look takes in no more than this; the rest is for the next."""


class LogTail:
    """Reads complete new lines of a file that another process appends to, in constant memory.

    A line is cut to LONGEST_LINE_BYTES; a log that was truncated or replaced is read anew from its start.

    Args:
        path: the log; it need not exist yet.
        from_end: start with what is written from now on.

    Attributes:
        offset: bytes of the file that were read.
        last_line: the last line that was not blank.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path = path
        self.last_line = ""
        self.offset = 0
        self._file: tuple[int, int] | None = None
        self._torn = bytearray()
        if from_end:
            try:
                found = path.stat()
            except OSError:
                return
            self.offset, self._file = found.st_size, (found.st_dev, found.st_ino)

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as stream:
                found = os.fstat(stream.fileno())
                file = (found.st_dev, found.st_ino)
                if found.st_size < self.offset or self._file not in {None, file}:
                    self.offset = 0
                    self._torn.clear()
                self._file = file
                stream.seek(self.offset)
                chunk = stream.read(LONGEST_READ_BYTES)
        except OSError:
            return b""
        self.offset += len(chunk)
        return chunk

    def new_lines(self) -> list[str]:
        """The lines finished since the last call, undecodable bytes replaced."""
        chunk = self._read()
        if not chunk:
            return []
        first, *rest = chunk.split(b"\n")
        self._torn += first[: LONGEST_LINE_BYTES - len(self._torn)]
        if not rest:
            return []
        *whole, torn = [bytes(self._torn), *rest]
        self._torn = bytearray(torn[:LONGEST_LINE_BYTES])
        lines = [line[:LONGEST_LINE_BYTES].decode("utf-8", errors="replace").rstrip("\r") for line in whole]
        self.last_line = next((line for line in reversed(lines) if line.strip()), self.last_line)
        return lines
