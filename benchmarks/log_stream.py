"""Follow a log that grows by gigabytes, and read one of 200 MB, in constant memory.

    python benchmarks/log_stream.py [--bytes 2GB] [--read-bytes 200MB] [--json]

The stream is written in pieces of 16 MB into one file that is truncated once it was followed, as a rotated log is, so
that the disk holds no more than one piece. It holds what a busy server logs: mostly access lines and statistics, now
and then a progress bar, binary bytes, a line of 3 MB, one JIT warning and, last of all, a fatal line.
Exit code 1 if a line, a mark or the fatal line was missed, or memory grew by more than 32 MB.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imagebisect.domain import Phase
from imagebisect.runtime.base import ExitState
from imagebisect.vllm import facts, failures, logmarks
from imagebisect.vllm.logtail import LogTail

PIECE_BYTES = 16_000_000
MOST_GROWTH_MB = 32.0
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_ACCESS = b'(APIServer pid=1428) INFO:     127.0.0.1:53106 - "POST /v1/completions HTTP/1.1" 200 OK\n'
_STATS = (
    b"(APIServer pid=1428) INFO 11-30 23:12:23 [loggers.py:310] Engine 000: Avg prompt throughput: 17033.2 tokens/s, "
    b"Avg generation throughput: 1.1 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 9.8%, Prefix cache "
    b"hit rate: 0.0%\n"
)
_JIT = (
    b"(EngineCore pid=1535) WARNING 11-30 23:12:14 [jit_monitor.py:135] Triton kernel JIT compilation during inference: "
    b"batch_memcpy_kernel. This causes a latency spike\n"
)
_BAR = b"".join(b"\rCapturing CUDA graphs: %3d%%|####      |" % i for i in range(100)) + b"\n"
_FATAL = b"(EngineCore pid=1535) ERROR 11-30 23:57:09 [core.py:1332] EngineCore encountered a fatal error.\n"


def size(text: str) -> int:
    """Bytes, from `200MB`, `2GB`, `1000`."""
    hit = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip().upper())
    if not hit:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 2GB or 200MB")
    return int(hit[1]) * _UNITS[hit[2]]


_BLOCK = (_ACCESS * 40 + _STATS) * 400
_ODD = _BAR + bytes(range(256)).replace(b"\n", b" ") * 4 + b"\n" + b"x" * 3_000_000 + b"\n" + _JIT


def stream(total: int) -> Iterator[list[bytes]]:
    """Pieces of a busy server's log, each of whole lines, `total` bytes in all (and one more line)."""
    given = 0
    while given < total:
        piece = [_ODD, *[_BLOCK] * max(1, (min(PIECE_BYTES, total - given) - len(_ODD)) // len(_BLOCK))]
        given += sum(map(len, piece))
        yield piece
    yield [_FATAL]


def peak_rss_mb() -> float:
    """The most memory this process ever held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def follow(path: Path, total: int) -> dict[str, Any]:
    """Follow the stream as a measurement does: new lines, fatal or not, marks."""
    path.write_bytes(b"")
    tail, marks = LogTail(path), logmarks.Marks()
    written = lines = expected = fatal = 0
    seconds = 0.0
    for piece in stream(total):
        path.write_bytes(b"")  # the follower was at the end of the piece before
        tail.new_lines()
        with path.open("wb") as log:
            log.writelines(piece)
        written += sum(map(len, piece))
        expected += sum(part.count(b"\n") for part in piece)
        began = time.perf_counter()
        while path.stat().st_size > tail.offset:
            new = tail.new_lines()
            lines += len(new)
            fatal += sum(map(failures.is_fatal, new))
            marks.add(new)
        seconds += time.perf_counter() - began
    found = marks.take()
    return {
        "bytes": written,
        "mb_s": round(written / 1e6 / seconds, 1),
        "lines": lines,
        "complete": lines == expected and fatal == 1 and found == ("JIT compilation: batch_memcpy_kernel",),
    }


def read(path: Path, total: int) -> dict[str, Any]:
    """Name the failure and the facts of one log of that size."""
    with path.open("wb") as log:
        for piece in stream(total):
            log.writelines(piece)
    megabytes = path.stat().st_size / 1e6
    began = time.perf_counter()
    failure = failures.classify(path, phase=Phase.REQUEST, exit_state=ExitState(exit_code=1, oom_killed=False))
    classified = time.perf_counter()
    facts.read(path)
    ended = time.perf_counter()
    return {
        "bytes": round(megabytes * 1e6),
        "classify_mb_s": round(megabytes / (classified - began), 1),
        "facts_mb_s": round(megabytes / (ended - classified), 1),
        "cause": failure.cause,
    }


def say(text: str) -> None:
    """One line of output."""
    sys.stdout.write(text + "\n")


def main() -> int:
    """Run both and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=size, default=size("2GB"), help="length of the followed stream (2GB)")
    parser.add_argument("--read-bytes", type=size, default=size("200MB"), help="length of the log read at once (200MB)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of words")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        before = peak_rss_mb()
        followed = follow(path, given.bytes)
        followed["rss_growth_mb"] = round(peak_rss_mb() - before, 1)
        before = peak_rss_mb()
        whole = read(path, given.read_bytes) if given.read_bytes else {}
        if whole:
            whole["rss_growth_mb"] = round(peak_rss_mb() - before, 1)
    growth = max(followed["rss_growth_mb"], whole.get("rss_growth_mb", 0.0))
    good = followed["complete"] and growth < MOST_GROWTH_MB
    if given.json:
        say(json.dumps({"good": good, "follow": followed, "read": whole}))
    else:
        say(
            f"followed {followed['bytes'] / 1e6:,.0f} MB at {followed['mb_s']:.0f} MB/s, {followed['lines']:,} lines, memory grew "
            f"by {followed['rss_growth_mb']:.1f} MB" + ("" if followed["complete"] else "; LINES WERE MISSED")
        )
        if whole:
            say(
                f"read {whole['bytes'] / 1e6:,.0f} MB: cause at {whole['classify_mb_s']:.0f} MB/s, facts at "
                f"{whole['facts_mb_s']:.0f} MB/s, memory grew by {whole['rss_growth_mb']:.1f} MB"
            )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
