"""Why a server failed, from its whole log: the root cause, whatever wraps it.

A crash that is not a lack of GPU memory is never called one; `unknown` is an allowed answer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from imagebisect.domain import Failure, JsonValue, Phase
from imagebisect.outcome import Cause
from imagebisect.runtime.base import ExitState
from imagebisect.vllm import loglines, oom, signs, stages
from imagebisect.vllm.loglines import LogLine
from imagebisect.vllm.stages import Progress, Stage, Told, Traceback

LONGEST_MESSAGE = 600
"""Characters of a failure's message."""

MOST_PROCESSES = 64
"""Tracebacks are followed for no more processes than this at once."""

_GPU_MEMORY = Cause.OOM_AT_START
_KILLED_BY = {-9: 9, 137: 9, -15: 15, 143: 15}
_CRASHED_BY = {
    -11: "SIGSEGV",
    139: "SIGSEGV",
    -6: "SIGABRT",
    134: "SIGABRT",
    -7: "SIGBUS",
    135: "SIGBUS",
    -4: "SIGILL",
    132: "SIGILL",
}
_NOT_RUN = {
    126: "its program was found but cannot be executed",
    127: "its program was not found",
}
"""What exit codes of a shell or a container engine mean where no server ever spoke."""

_LOUD = frozenset({"ERROR", "CRITICAL"})
_QUIET_SIGNS = tuple(sign for sign in signs.SIGNS if sign.quiet)
_NO_ROOM = re.compile(r"Available KV cache memory: (-?[\d.]{1,20}) GiB")


WANTED = tuple(word.encode() for word in (*signs.WORDS, *signs.SERVING_WORDS, *stages.WORDS, "Traceback (", '  File "'))
"""One of these is in every line that can matter here."""


@dataclass(kw_only=True)
class _Held:
    """The best sign so far, and what its line says. `raised`: that line is an exception's. `outlived`: its process went on."""

    sign: signs.Sign | None = None
    line: int = 0
    process: str = ""
    level: str = ""
    raised: bool = False
    outlived: bool = False
    says: str = ""
    details: dict[str, JsonValue] = field(default_factory=dict)
    stage: Told | None = None


@dataclass(kw_only=True)
class _Scan:
    """What one pass over a log found; everything in it is bounded.

    `late` holds what was said from line `late_from` on: after the end of an engine was announced (`marker_line`), else
    in the last traceback that nobody logged.
    """

    held: _Held = field(default_factory=_Held)
    late: _Held = field(default_factory=_Held)
    late_from: int = 0
    started: bool = False
    progress: Progress = field(default_factory=Progress)
    wrappers: set[int] = field(default_factory=set)
    marker_line: int = 0
    marker_process: str = ""
    engine_ended: bool = False
    exception: str = ""
    exception_line: int = 0
    exception_after_marker: bool = False
    fatal: bool = False
    progressed: int = 0
    last_text: str = ""
    available_kv_mib: float | None = None
    tracebacks: defaultdict[str, Traceback] = field(default_factory=lambda: defaultdict(Traceback))

    def anew(self, *, started: bool) -> _Scan:
        """A scan of what follows, which keeps only what the boot found out."""
        return _Scan(available_kv_mib=self.available_kv_mib, started=started)

    @property
    def holds_any(self) -> bool:
        """Whether anything was found that a server may have survived."""
        return bool(self.held.sign or self.exception or self.marker_line)


def is_fatal(line: str) -> bool:
    """Whether no answer will come after this line of a log. Warnings, whatever they quote, are not fatal."""
    if not any(word in line for word in signs.WORDS):
        return False
    return any(map(_ends_all, loglines.pieces(line[: loglines.LONGEST_LINE_BYTES])))


def _ends_all(seen: LogLine) -> bool:
    if seen.is_quiet:
        return False
    if signs.FATAL.search(seen.text):
        return True
    found = _sign_in(seen)
    if found is None:
        return False
    if found[0].cause is Cause.UNKNOWN_FLAG:
        return True
    return found[0].cause is _GPU_MEMORY and found[0].rank == signs.ROOT and seen.level in _LOUD


def _sign_in(line: LogLine) -> tuple[signs.Sign, re.Match[str]] | None:
    for sign in _QUIET_SIGNS if line.is_quiet else signs.SIGNS:
        hit = sign.pattern.search(line.text)
        if hit and "UserWarning" not in line.text:
            return sign, hit
    return None


def _follow_traceback(scan: _Scan, line: LogLine) -> None:
    """Keep the innermost frames of the traceback that this process prints; its exception's line ends it."""
    if line.process not in scan.tracebacks and len(scan.tracebacks) >= MOST_PROCESSES:
        return
    seen = scan.tracebacks[line.process]
    if line.text.startswith("Traceback (most recent call last)"):
        chained = seen.chained and seen.over
        scan.tracebacks[line.process] = Traceback(chained=chained)
        if not (scan.marker_line or line.level or chained):
            scan.late, scan.late_from = _Held(), line.number
    elif seen.add(line.text):
        for held in (scan.held, scan.late):
            _refine_stage(held, line, seen)
        seen.chained = False


def _refine_stage(held: _Held, line: LogLine, seen: Traceback) -> None:
    """Let the traceback around an out-of-memory tell the stage that its own frames left open."""
    told = seen.frames.told
    if seen.chained and told and told.sure and line.process == held.process and not (held.stage and held.stage.sure):
        held.stage = told


def _gpu_memory_details(scan: _Scan, line: LogLine) -> dict[str, JsonValue]:
    found = oom.details(line.text)
    rank = oom.rank(line.process)
    if rank is not None:
        found["rank"] = rank
    seen = scan.tracebacks.get(line.process)
    if seen and seen.frame and not seen.over and not signs.PASSED_ON.search(line.text):
        found["frame"] = seen.model_frame or seen.frame
        if seen.code:
            found["code"] = seen.code
    return found


def _told_stage(scan: _Scan, line: LogLine, sign: signs.Sign) -> Told | None:
    """What the line's own words, else the frames above it, else the boot's progress say about the stage."""
    if sign.stage is not None and sign.stage.sure:
        return sign.stage
    seen = scan.tracebacks.get(line.process)
    told = seen.frames.told if seen and not seen.over else None
    if told is not None:
        return told
    if sign.stage is not None:
        return sign.stage
    reached = None if scan.started else scan.progress.stage(line.process)
    return None if reached is None else Told(stage=reached, sure=False)


def _add_to_sign(held: _Held, line: LogLine, sign: signs.Sign) -> None:
    """Take numbers that the sign held lacks from another line about the same card."""
    if held.sign is None or not held.sign.cause is sign.cause is _GPU_MEMORY:
        return
    found = oom.details(line.text)
    if held.details.get("gpu") == found.get("gpu", held.details.get("gpu")):
        for key, value in found.items():
            held.details.setdefault(key, value)


def _take_sign(scan: _Scan, held: _Held, line: LogLine, sign: signs.Sign, hit: re.Match[str]) -> _Held:
    """The better evidence of this sign and the one held, with the numbers of both."""
    if held.sign is not None and held.sign.rank <= sign.rank:
        _add_to_sign(held, line, sign)
        return held
    found = _Held(
        sign=sign,
        line=line.number,
        process=line.process,
        level=line.level,
        raised=bool(signs.EXCEPTION.match(line.text)),
        stage=_told_stage(scan, line, sign) if sign.cause is _GPU_MEMORY else None,
    )
    if sign.says == "{oom}":
        found.details = _gpu_memory_details(scan, line)
        return found
    groups = {name: (value or "").strip() for name, value in hit.groupdict().items()}
    if "needed" in groups:
        found.details = {
            "needed_kv_mib": round(float(groups["needed"]) * 1024, 2),
            "available_kv_mib": round(float(groups["available"]) * 1024, 2),
        }
        if groups["possible"]:
            found.details["possible_tokens"] = int(groups["possible"])
    found.says = sign.says.format_map(groups).strip()
    return found


def _take_exception(scan: _Scan, line: LogLine) -> None:
    """Keep the exception that ended the engine: the first after it was announced, else the last in the log."""
    hit = signs.EXCEPTION.match(line.text)
    if not hit or signs.NEVER_ROOT.search(hit["name"]):
        return
    if scan.exception_after_marker:
        return
    scan.exception, scan.exception_line = line.text.strip(), line.number
    scan.exception_after_marker = bool(scan.marker_line)


def _lines_before(log: Path, offset: int) -> int:
    """Lines that end in the first `offset` bytes of a log."""
    count = 0
    try:
        with log.open("rb") as stream:
            while offset > 0 and (piece := stream.read(min(offset, loglines.CHUNK_BYTES))):
                count += piece.count(b"\n")
                offset -= len(piece)
    except OSError:
        pass
    return count


def _served_on(scan: _Scan, line: LogLine) -> bool:
    """Whether this line shows that the server lived through what was found so far.

    A worker that lost its way may leave a server that still accepts requests, and an account of 10 s reaches back: where
    a worker announced its end, only two accounts of progress are proof.
    """
    if scan.engine_ended or scan.fatal or not scan.holds_any:
        return False
    account = signs.PROGRESSED.search(line.text)
    if account:
        scan.progressed += float(account["prompt"]) + float(account["generation"]) > 0
        return scan.progressed >= (2 if scan.marker_line else 1)
    return not scan.marker_line and bool(signs.ANSWERED.search(line.text))


def _older(earlier: _Scan | None, scan: _Scan) -> _Scan | None:
    """Of two scans of what a server survived, the one that tells more of why a request failed, if any does."""
    sign = scan.held.sign
    if sign is None or sign.rank != signs.ROOT or sign.cause in signs.CAUGHT:
        return earlier
    if earlier is None or (_ran_out(scan) and not _ran_out(earlier)):
        return scan
    return earlier


def _ran_out(scan: _Scan) -> bool:
    sign = scan.held.sign
    return sign is not None and sign.cause is _GPU_MEMORY and sign.rank == signs.ROOT


def _note(scan: _Scan, line: LogLine) -> None:
    """Take in one line."""
    text = line.text.strip()
    if text:
        scan.last_text = text
    if not scan.started:
        scan.progress.add(line)
    if line.is_quiet and line.process and line.process == scan.held.process and not scan.marker_line:
        scan.held.outlived = scan.held.outlived or line.number > scan.held.line
    if not any(word in text for word in signs.WORDS):
        if not line.is_quiet:
            _follow_traceback(scan, line)
        return
    room = _NO_ROOM.search(line.text)
    if room:
        scan.available_kv_mib = round(float(room[1]) * 1024, 2)
    found = _sign_in(line)
    if found:
        scan.held = _take_sign(scan, scan.held, line, *found)
        if scan.late_from and (scan.marker_line or not line.level):
            scan.late = _take_sign(scan, scan.late, line, *found)
    if line.is_quiet:
        return
    _follow_traceback(scan, line)
    if signs.MARKERS.search(line.text):
        scan.engine_ended = scan.engine_ended or bool(signs.ENDS_ENGINE.search(line.text))
        if not scan.marker_line:
            scan.marker_line, scan.marker_process = line.number, line.process
            scan.late, scan.late_from = _Held(), line.number
    wrapper = next((i for i, (_, pattern, _) in enumerate(signs.WRAPPERS) if pattern.search(line.text)), None)
    if wrapper is not None:
        scan.wrappers.add(wrapper)
    elif not found or found[0].rank > signs.LOST:
        _take_exception(scan, line)
    scan.fatal = scan.fatal or bool(signs.FATAL.search(line.text))


def _scan(log: Path, phase: Phase, since: int) -> tuple[_Scan, _Scan | None]:
    """What was found, and what was found before in the same round and survived."""
    scan = _Scan()
    earlier: _Scan | None = None
    unseen = _lines_before(log, since)
    for line in loglines.read(log, wanted=WANTED):
        if unseen and line.number > unseen:
            # the server lived through all that was said so far
            unseen, earlier = 0, None
            scan = scan.anew(started=scan.started)
        if signs.STARTED.search(line.text):
            scan.started = True
            if phase is Phase.REQUEST:
                # What went wrong before did not keep the server from starting, so it is not why a request failed.
                scan, earlier = scan.anew(started=True), None
        if phase is Phase.REQUEST and _served_on(scan, line):
            earlier = _older(earlier, scan)
            scan = scan.anew(started=scan.started)
        _note(scan, line)
    return scan, earlier


def _is_weaker(scan: _Scan) -> bool:
    """Whether the sign held was caught and lived on with, and something else ended the engine."""
    held, late = scan.held, scan.late
    if held.sign is None or held.sign.rank > signs.BROKEN or held.line >= scan.late_from:
        return False
    raised = scan.exception if scan.exception_line > scan.late_from else ""
    named = late.sign is not None and late.sign.rank <= signs.BROKEN
    if not raised and not named:
        return False
    said = held.says.partition(": ")[2] or held.says
    if (late.sign is not None and late.sign.cause is held.sign.cause) or (said and said in raised):
        return False
    logged = held.level in _LOUD
    if not scan.marker_line:
        return logged and held.sign.cause in signs.CAUGHT
    if held.sign.cause is _GPU_MEMORY:
        return held.process.startswith("APIServer")
    if held.sign.cause is Cause.HOST_OOM and not logged:
        return False  # the kernel, or a library that gave up
    of_worker = signs.WORKER.match(held.process) and not signs.WORKER.match(scan.marker_process)
    return not (of_worker and held.raised and not held.outlived)


def _ended_by(scan: _Scan, exit_state: ExitState | None) -> bool:
    """Whether what was found since the server last served says why it ended."""
    sign = scan.late.sign if _is_weaker(scan) else scan.held.sign
    code = None if exit_state is None else exit_state.exit_code
    if code in _CRASHED_BY or (exit_state is not None and exit_state.oom_killed):
        return True
    over = exit_state is not None or scan.fatal
    return over and ((sign is not None and sign.rank <= signs.BROKEN) or scan.exception_after_marker)


def _settle(scan: _Scan, earlier: _Scan | None, exit_state: ExitState | None) -> _Scan:
    """The scan that holds why the server failed, its best sign in `held`."""
    if earlier is not None and not _ended_by(scan, exit_state):
        earlier.fatal = earlier.fatal or scan.fatal
        earlier.wrappers |= scan.wrappers
        earlier.last_text = scan.last_text
        scan = earlier
    if _is_weaker(scan):
        scan.held = scan.late
    return scan


def _masked_by(scan: _Scan, cause: Cause) -> str | None:
    """The most misleading thing thrown around the cause; nothing masks itself."""
    wrappers = [signs.WRAPPERS[i] for i in sorted(scan.wrappers)]
    return next((name for name, _, itself in wrappers if itself is not cause), None)


def _stage(scan: _Scan, phase: Phase) -> str | None:
    told = scan.held.stage
    if phase is Phase.REQUEST:
        boot = told is not None and told.sure and not scan.started
        return told.stage.value if told and boot else Stage.REQUEST.value
    return None if told is None or told.stage is Stage.REQUEST else told.stage.value


def _from_sign(scan: _Scan, phase: Phase) -> tuple[Cause, str, dict[str, JsonValue], int]:
    """Cause, message, numbers and line of the sign that was found."""
    held = scan.held
    assert held.sign is not None
    cause, details, message = held.sign.cause, dict(held.details), held.says
    if cause is _GPU_MEMORY:
        cause = Cause.OOM_AT_REQUEST if phase is Phase.REQUEST else Cause.OOM_AT_START
        if not message:
            message = oom.sentence(details)
            if "frame" in details:
                message += f", in {details['frame']}"
        elif scan.available_kv_mib is not None:
            details.setdefault("available_kv_mib", scan.available_kv_mib)
        stage = _stage(scan, phase)
        if stage:
            details["stage"] = stage
            message += f", {stages.SAYS[stages.Stage(stage)]}"
        masked = _masked_by(scan, cause)
        if masked:
            details["masked_by"] = masked
    return cause, message, details, held.line


def _from_exit(exit_state: ExitState, scan: _Scan, phase: Phase) -> tuple[Cause, str]:
    """Cause and message when the log names none: what the end itself says."""
    code = exit_state.exit_code
    if code in _KILLED_BY:
        return (
            Cause.KILLED,
            f"the server was killed by signal {_KILLED_BY[code]} from outside; its log ends without a reason",
        )
    if code in _CRASHED_BY:
        return Cause.CRASH, f"the server crashed ({_CRASHED_BY[code]}); its log ends without a reason"
    if code in _NOT_RUN and phase is not Phase.REQUEST and not scan.started:
        said = f"; last line: {scan.last_text[:300]!r}" if scan.last_text else ""
        return Cause.UNKNOWN, f"the server never ran: {_NOT_RUN[code]} (exit code {code}){said}"
    return (
        Cause.UNKNOWN,
        f"the server ended with exit code {code} and its log does not say why; last line: {scan.last_text[:300]!r}",
    )


def _judge(
    scan: _Scan, phase: Phase, exit_state: ExitState | None, observed: str | None, fallback: Cause
) -> tuple[Cause, str, dict[str, JsonValue], int | None]:
    over = exit_state is not None or scan.fatal
    sign = scan.held.sign
    rooted = sign is not None and sign.rank == signs.ROOT
    if sign is not None and rooted and (over or sign.cause is _GPU_MEMORY):
        return _from_sign(scan, phase)
    if exit_state is not None and exit_state.oom_killed:
        return (
            Cause.HOST_OOM,
            "the host's memory limit was reached and the kernel killed the server (or a part of it)",
            {},
            None,
        )
    if not over:
        return fallback, observed or f"no sign of failure in the log; its last line: {scan.last_text[:300]!r}", {}, None
    if sign is not None and sign.rank == signs.BROKEN:
        return _from_sign(scan, phase)
    killed = exit_state is not None and exit_state.exit_code in _KILLED_BY
    if scan.exception and (scan.exception_after_marker or not killed):
        return Cause.CRASH, scan.exception, {}, scan.exception_line
    if sign is not None and sign.rank in {signs.LOST, signs.HINT}:
        return _from_sign(scan, phase)
    faint = sign is not None and sign.rank == signs.FAINT and not killed
    if scan.wrappers and not killed:
        name, _, cause = signs.WRAPPERS[min(scan.wrappers)]
        if cause is not None or not faint:
            return cause or Cause.UNKNOWN, f"the engine died ({name}) and the log names no root cause", {}, None
    if faint and (exit_state is None or exit_state.exit_code):
        return _from_sign(scan, phase)
    if exit_state is not None:
        return (*_from_exit(exit_state, scan, phase), {}, None)
    return fallback, observed or "the engine died and the log names no root cause", {}, None


def classify(
    log: Path,
    *,
    phase: Phase,
    exit_state: ExitState | None,
    observed: str | None = None,
    fallback: Cause = Cause.UNKNOWN,
    since: int = 0,
) -> Failure:
    """Name why a server failed.

    Args:
        log: the server's whole output; it may be missing, torn or huge.
        phase: where in the start it happened; it decides between OOM at start and at request.
        exit_state: how it ended, None while it still runs.
        observed: what the caller saw (`HTTP 500`, `no answer in 30 s`).
        fallback: the cause where the server runs on and its log shows nothing.
        since: bytes of the log that the server is known to have survived; nothing in them is why it failed later.
    """
    scan = _settle(*_scan(log, phase, since), exit_state)
    cause, message, details, line = _judge(scan, phase, exit_state, observed, fallback)
    if observed:
        details = {**details, "observed": observed[:LONGEST_MESSAGE]}
    return Failure(
        cause=cause,
        phase=phase,
        message=message[:LONGEST_MESSAGE],
        details=details,
        masked_by=_masked_by(scan, cause),
        log_line=line,
        exit_code=None if exit_state is None else exit_state.exit_code,
    )
