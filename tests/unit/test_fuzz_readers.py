"""Readers of what a server writes, given anything: they end in time, in bounded memory, and never raise.

An out-of-memory that others wrote into is still one, and a healthy log cut off anywhere never becomes one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebisect.domain import Phase
from imagebisect.measure import load
from imagebisect.outcome import Cause
from imagebisect.runtime.base import ExitState
from imagebisect.vllm import facts, failures, loglines, logmarks, metrics
from imagebisect.vllm.logtail import LogTail
from imagebisect.vllm.transport import get_text
from raw_server import answering
from vllm_shapes import OOM

ROOT = Path(__file__).parent.parent.parent
RECORDED = ROOT / "tests" / "fixtures"
HEALTHY = sorted(RECORDED.glob("*/boot-and-prefill-ok.log"))
SCRAPES = sorted(RECORDED.glob("*/*.prom"))
GONE = ExitState(exit_code=1, oom_killed=False)
PIECES = [
    *sorted({line[:400] for path in RECORDED.glob("*/*.log") for line in path.read_bytes().split(b"\n")[::23]}),
    OOM.encode(),
    b"(Worker_TP1 pid=7) ERROR 11-30 23:57:09 [a.py:1] ",
    b"[rank1]:[E828 17:15:54.54 ProcessGroupNCCL.cpp:1] ",
    b"Traceback (most recent call last):",
    b'  File "x.py", line 1, in load_model',
    b"\x1b[31mERROR\x1b[0m",
    b"\x00" * 40,
    b"\xff\xfe",
    b"(A pid=",
    b"\r\n",
    b"\r",
    b"[" * 500,
    b"Tried to allocate 99999999999999999999.999999 TiB",
]
noise = st.one_of(st.sampled_from(PIECES), st.binary(max_size=200))
quick = settings(max_examples=120, deadline=None)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Where logs are written to."""
    return tmp_path_factory.mktemp("logs") / "server.log"


def read_all(path: Path) -> None:
    """Everything that is ever done with a log."""
    for phase in (Phase.BOOT, Phase.REQUEST):
        failure = failures.classify(path, phase=phase, exit_state=GONE)
        assert failure.cause in set(Cause)
        assert len(failure.message) <= failures.LONGEST_MESSAGE
        json.dumps(dict(failure.details))
    json.dumps(facts.read(path), default=str)
    lines = LogTail(path).new_lines()
    logmarks.marks(lines)
    for line in lines:
        failures.is_fatal(line)


# --------------------------------------------------------------------------------- logs


@quick
@given(st.lists(noise, max_size=30), st.sampled_from([b"\n", b"\r\n", b"", b" "]))
def test_any_log_can_be_read(log, pieces, between):
    """Torn, binary, coloured, NUL: a failure of some kind, facts of some kind, no exception."""
    log.write_bytes(between.join(pieces))
    read_all(log)


_HEALTHY_LINES = [
    line
    for line in HEALTHY[0].read_bytes().split(b"\n")
    if line.startswith(b"(") and len(line) < 400 and not any(word in line for word in (b"ROR", b"startup complete"))
]


@quick
@given(st.data())
def test_an_oom_that_another_process_wrote_into_is_still_an_oom(log, data):
    """Two processes' lines, each cut once and laid into each other in any order."""
    failed = b"(Worker_TP1 pid=77) ERROR 11-30 23:57:09 [multiproc_executor.py:1007] " + OOM.encode() + b"\n"
    routine = data.draw(st.sampled_from(_HEALTHY_LINES)) + b"\n"
    cut = data.draw(st.integers(0, len(failed)))
    other = data.draw(st.integers(0, len(routine)))
    order = data.draw(st.sampled_from(["abAB", "aAbB", "abBA", "baBA", "bBaA", "baAB"]))
    parts = {"a": failed[:cut], "A": failed[cut:], "b": routine[:other], "B": routine[other:]}
    log.write_bytes(b"".join(_HEALTHY_LINES[:9]) + b"\n" + b"".join(parts[key] for key in order) + routine)

    failure = failures.classify(log, phase=Phase.REQUEST, exit_state=GONE)

    assert failure.cause == Cause.OOM_AT_REQUEST, log.read_bytes()[-len(failed) - 2 * len(routine) :]


@quick
@given(st.sampled_from(HEALTHY), st.data())
def test_a_healthy_log_cut_off_anywhere_is_no_oom(log, path, data):
    """A full disk, a killed follower: whatever is left of a healthy log never says that memory ran out."""
    whole = path.read_bytes()
    end = data.draw(st.integers(0, len(whole)))
    log.write_bytes(whole[data.draw(st.integers(0, end)) : end])

    for phase in (Phase.BOOT, Phase.REQUEST):
        failure = failures.classify(log, phase=phase, exit_state=GONE)
        assert failure.cause not in {Cause.OOM_AT_START, Cause.OOM_AT_REQUEST, Cause.HOST_OOM}
    facts.read(log)


@quick
@given(st.sampled_from(sorted(RECORDED.glob("*/oom-*.log"))), st.data())
def test_a_failed_log_cut_off_anywhere_is_an_oom_or_not_known(log, path, data):
    """What was cut off cannot be told, and nothing else is made of the rest; no fact is wrong for it."""
    whole = path.read_bytes()
    log.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])

    failure = failures.classify(log, phase=Phase.BOOT, exit_state=GONE)

    assert failure.cause in {Cause.OOM_AT_START, Cause.UNKNOWN, Cause.CRASH, Cause.KILLED}
    if failure.cause == Cause.OOM_AT_START and "asked_mib" in failure.details:
        assert failure.details["asked_mib"] in {266.0, 96.0, 544.0}


@pytest.mark.parametrize(
    "filler", [b"x", b"\x00", b"\r", b"[", b"(A pid=1) ", b" ERROR 11-30 23:57:09 [", os.urandom(997)]
)
def test_a_line_of_50_mb_costs_neither_memory_nor_minutes(log, filler):
    """Whatever it is made of, what follows it is still read."""
    block = filler * ((1 << 16) // len(filler))
    with log.open("wb") as stream:
        for _ in range(800):
            stream.write(block.replace(b"\n", b"x"))
        stream.write(b"\n(Worker_TP1 pid=77) ERROR 11-30 23:57:09 [a.py:1] " + OOM.encode() + b"\n")
    began = time.monotonic()
    tracemalloc.start()
    try:
        tail = LogTail(log)
        seen = [line for _ in range(80) for line in tail.new_lines()]
        fatal = [failures.is_fatal(line) for line in seen]
        logmarks.marks(seen)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    failure = failures.classify(log, phase=Phase.REQUEST, exit_state=GONE)

    assert failure.cause == Cause.OOM_AT_REQUEST
    assert fatal[-1]
    assert peak < 16 << 20
    assert time.monotonic() - began < 20


def test_a_stream_of_200_mb_is_followed_in_constant_memory():
    """The benchmark's stream, shorter: every line, the mark and the fatal line are seen, in under 32 MB."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "log_stream.py", "--bytes", "200MB", "--read-bytes", "20MB", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["follow"]["complete"]
    assert said["follow"]["rss_growth_mb"] < 32
    assert said["read"]["rss_growth_mb"] < 32


# ------------------------------------------------------------------------------ metrics


@quick
@given(
    st.sampled_from(SCRAPES), st.lists(st.tuples(st.integers(0, 60000), st.binary(max_size=6)), max_size=8), st.data()
)
def test_any_scrape_can_be_read(path, strikes, data):
    """Torn anywhere, with bytes struck out or in: figures or None, and a difference to a whole one."""
    whole = path.read_bytes()
    torn = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for at, what in strikes:
        torn[at : at + 3] = what
    seen = metrics.parse(torn.decode("utf-8", errors="replace"))
    metrics.delta(metrics.parse(whole.decode()), seen)
    metrics.delta(seen, metrics.parse(whole.decode()))


@quick
@given(st.text(max_size=300))
def test_any_text_can_be_read_as_a_scrape(text):
    """Names we know with whatever behind them."""
    metrics.parse(f"vllm:prompt_tokens_total{text}\nvllm:cache_config_info{{{text}}} 1\n{text}")


# ------------------------------------------------------------------------- HTTP answers

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_BODY = b'{"usage": {"prompt_tokens": 3, "completion_tokens": 1}}'


def endless(piece: bytes):
    """The same bytes for ever."""
    while True:
        yield piece


def drip(text: bytes):
    """A byte every 30 ms, then the last one for ever."""
    for at in range(10**6):
        time.sleep(0.03)
        yield text[at : at + 1] or text[-1:]


ANSWERS = {
    "closes-at-once": list,
    "torn-head": lambda: [_HEAD[:20]],
    "torn-body": lambda: [_HEAD, b"content-length: 5000\r\n\r\n", _BODY],
    "torn-chunk": lambda: [_HEAD, b"transfer-encoding: chunked\r\n\r\nffff\r\nabc"],
    "length-too-short": lambda: [_HEAD, b"content-length: 5\r\n\r\n", _BODY],
    "length-is-no-number": lambda: [_HEAD, b"content-length: many\r\n\r\n", _BODY],
    "length-is-negative": lambda: [_HEAD, b"content-length: -1\r\n\r\n", _BODY],
    "two-lengths": lambda: [_HEAD, b"content-length: 5\r\ncontent-length: 7\r\n\r\n", _BODY],
    "ssh": lambda: [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "binary": lambda: [os.urandom(3000)],
    "nul": lambda: [b"\x00" * 3000],
    "odd-status": lambda: [b"HTTP/1.1 99999 What\r\n\r\n"],
    "no-json": lambda: [_HEAD, b"\r\n", b"\xff\x00 no json"],
    "deep-json": lambda: [_HEAD, b"\r\n", b"[" * 200_000],
    "huge-number": lambda: [_HEAD, b"\r\n", b'{"usage": {"prompt_tokens": ' + b"9" * 9000 + b"}}"],
    "odd-usage": lambda: [_HEAD, b"\r\n", b'{"usage": {"prompt_tokens": [1], "prompt_tokens_details": 7}}'],
    "not-gzip": lambda: [_HEAD, b"content-encoding: gzip\r\n\r\n", _BODY],
    "endless-body": lambda: (x for part in ([_HEAD, b"\r\n"], endless(b"x" * 65536)) for x in part),
    "endless-chunks": lambda: (
        x for part in ([_HEAD, b"transfer-encoding: chunked\r\n\r\n"], endless(b"4\r\nabcd\r\n" * 4000)) for x in part
    ),
    "endless-head": lambda: (x for part in ([_HEAD], endless(b"x-a: b\r\n" * 4000)) for x in part),
    "endless-line": lambda: endless(b"x" * 65536),
    "endless-continue": lambda: endless(b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "slow-head": lambda: drip(_HEAD + b"x-a: " + b"a" * 90_000),
    "slow-body": lambda: (x for part in ([_HEAD, b"\r\n"], drip(_BODY)) for x in part),
    "silence": lambda: (time.sleep(0.2) or b"" for _ in range(100)),
}


@pytest.mark.parametrize("kind", sorted(ANSWERS))
def test_any_answer_ends_a_request_in_time(kind):
    """A round gets an answer or says why not, at its deadline at the latest, and keeps no more than 16 MiB of it."""
    with answering(ANSWERS[kind]) as url:
        tracemalloc.start()
        began = time.monotonic()
        try:
            done = load.send(url, [b"{}", b"{}"], endpoint="completions", guard=lambda: None, deadline_s=0.8)
            seconds = time.monotonic() - began
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert seconds < 6
    assert peak < 96 << 20
    assert [a.status for a in done.answers] == [200, 200] or all(a.error or a.status for a in done.answers)


@pytest.mark.parametrize("kind", sorted(ANSWERS))
def test_any_answer_ends_a_scrape_in_time(kind):
    """The text of a whole answer or None, at its deadline at the latest."""
    with answering(ANSWERS[kind]) as url:
        began = time.monotonic()
        seen = get_text(f"{url}/metrics", timeout_s=0.8)

    assert time.monotonic() - began < 3
    assert seen is None or len(seen) <= 17 << 20


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=80), st.sampled_from([_HEAD, b"\r\n\r\n", _BODY, b"content-length: 9\r\n"])))
)
def test_any_bytes_end_a_request(parts):
    """Bytes that a server might send after a crash, or another program on its port."""
    with answering(lambda: parts) as url:
        done = load.send(url, [b"{}"], endpoint="completions", guard=lambda: None, deadline_s=2)
        get_text(f"{url}/metrics", timeout_s=2)

    assert len(done.answers) == 1


def test_pieces_of_any_line_hold_all_of_it():
    """Taking a line apart loses nothing but dress."""
    for piece in PIECES:
        text = piece.decode(errors="replace")
        for line in loglines.pieces(text):
            assert line.text in text or "\x1b" in text
