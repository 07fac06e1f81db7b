"""What a growing log gained since the last look."""

from __future__ import annotations

from pathlib import Path

LONGEST_READ_BYTES = 1 << 22
"""One look takes in no more than this; the rest is for the next."""


class LogTail:
    """Reads complete new lines of a file that another process appends to.

    Args:
        path: the log; it need not exist yet.
        from_end: start with what is written from now on.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path = path
        self.last_line = ""
        self._offset = 0
        self._torn = b""
        if from_end:
            try:
                self._offset = path.stat().st_size
            except OSError:
                self._offset = 0

    def new_lines(self) -> list[str]:
        """The lines finished since the last call, undecodable bytes replaced; a file that shrank is read anew."""
        try:
            with self.path.open("rb") as stream:
                size = stream.seek(0, 2)
                if size < self._offset:
                    self._offset, self._torn = 0, b""
                stream.seek(self._offset)
                chunk = stream.read(LONGEST_READ_BYTES)
                self._offset += len(chunk)
        except OSError:
            return []
        *whole, torn = (self._torn + chunk).split(b"\n")
        if len(torn) > LONGEST_READ_BYTES:
            whole, torn = [*whole, torn], b""
        self._torn = torn
        lines = [line.decode("utf-8", errors="replace").rstrip("\r") for line in whole]
        self.last_line = next((line for line in reversed(lines) if line.strip()), self.last_line)
        return lines
