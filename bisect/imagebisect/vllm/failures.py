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
from imagebisect.vllm.stages import Frames, Progress, Stage, Told

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
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]{1,400})", line \d+, in (?P<function>.{1,120})')
_MODEL_CODE = re.compile(r"vllm/(?:model_executor|third_party)/|flash_linear_attention|/fla/|flashinfer/")
_PACKAGES = re.compile(r".*/(?:dist|site)-packages/")
_CHAINED = re.compile(r"(?:The above exception was the direct cause|During handling of the above exception)")
_QUIET_SIGNS = tuple(sign for sign in signs.SIGNS if sign.quiet)
_NO_ROOM = re.compile(r"Available KV cache memory: (-?[\d.]{1,20}) GiB")


WANTED = tuple(word.encode() for word in (*signs.WORDS, *stages.WORDS, "Traceback (", '  File "'))
"""One of these is in every line that can matter here."""


@dataclass(kw_only=True)
class _Traceback:
    """The frames being printed by one process: the innermost, and the innermost of model or kernel code.

    `chained`: it tells how the one before it was dealt with.
    """

    frame: str = ""
    model_frame: str = ""
    code: str = ""
    frames: Frames = field(default_factory=Frames)
    chained: bool = False
    over: bool = False


@dataclass(kw_only=True)
class _Scan:
    """What one pass over a log found; everything in it is bounded."""

    sign: signs.Sign | None = None
    sign_line: int = 0
    sign_process: str = ""
    says: str = ""
    details: dict[str, JsonValue] = field(default_factory=dict)
    stage: Told | None = None
    started: bool = False
    progress: Progress = field(default_factory=Progress)
    wrappers: set[int] = field(default_factory=set)
    marker_line: int = 0
    exception: str = ""
    exception_line: int = 0
    exception_after_marker: bool = False
    fatal: bool = False
    last_text: str = ""
    available_kv_mib: float | None = None
    tracebacks: defaultdict[str, _Traceback] = field(default_factory=lambda: defaultdict(_Traceback))


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
    return found[0].cause is _GPU_MEMORY and found[0].rank == signs.ROOT and seen.level in {"ERROR", "CRITICAL"}


def _sign_in(line: LogLine) -> tuple[signs.Sign, re.Match[str]] | None:
    for sign in _QUIET_SIGNS if line.is_quiet else signs.SIGNS:
        hit = sign.pattern.search(line.text)
        if hit and "UserWarning" not in line.text:
            return sign, hit
    return None


def _short_path(path: str) -> str:
    return _PACKAGES.sub("", path)


def _follow_traceback(scan: _Scan, line: LogLine) -> None:
    """Keep the innermost frames of the traceback that this process prints; its exception's line ends it."""
    if line.process not in scan.tracebacks and len(scan.tracebacks) >= MOST_PROCESSES:
        return
    seen = scan.tracebacks[line.process]
    if line.text.startswith("Traceback (most recent call last)"):
        scan.tracebacks[line.process] = _Traceback(chained=seen.chained and seen.over)
        return
    if _CHAINED.match(line.text):
        seen.chained = True
        return
    hit = _FRAME.match(line.text)
    if hit:
        function = hit["function"].strip()
        seen.frame = f"{_short_path(hit['file'])}:{function}"
        seen.frames.add(function)
        if _MODEL_CODE.search(hit["file"]):
            seen.model_frame = seen.frame
        seen.code, seen.over = "", False
    elif line.text.startswith(" "):
        if seen.frame and not seen.code and line.text.startswith("    "):
            seen.code = line.text.strip()[:200]
    elif line.text and not seen.over:
        seen.over = True
        _refine_stage(scan, line, seen)
        seen.chained = False


def _refine_stage(scan: _Scan, line: LogLine, seen: _Traceback) -> None:
    """Let the traceback around an out-of-memory tell the stage that its own frames left open."""
    told = seen.frames.told
    if (
        seen.chained
        and told
        and told.sure
        and line.process == scan.sign_process
        and not (scan.stage and scan.stage.sure)
    ):
        scan.stage = told


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


def _add_to_sign(scan: _Scan, line: LogLine, sign: signs.Sign) -> None:
    """Take numbers that the sign held lacks from another line about the same card."""
    if scan.sign is None or not scan.sign.cause is sign.cause is _GPU_MEMORY:
        return
    found = oom.details(line.text)
    if scan.details.get("gpu") == found.get("gpu", scan.details.get("gpu")):
        for key, value in found.items():
            scan.details.setdefault(key, value)


def _take_sign(scan: _Scan, line: LogLine, sign: signs.Sign, hit: re.Match[str]) -> None:
    """Keep this sign if it is better evidence than the one held; add numbers that the held one lacks."""
    if scan.sign is not None and scan.sign.rank <= sign.rank:
        _add_to_sign(scan, line, sign)
        return
    scan.sign, scan.sign_line, scan.sign_process = sign, line.number, line.process
    scan.stage = _told_stage(scan, line, sign) if sign.cause is _GPU_MEMORY else None
    if sign.says == "{oom}":
        scan.details = _gpu_memory_details(scan, line)
        scan.says = ""
        return
    groups = {name: (value or "").strip() for name, value in hit.groupdict().items()}
    scan.details = {}
    if "needed" in groups:
        scan.details = {
            "needed_kv_mib": round(float(groups["needed"]) * 1024, 2),
            "available_kv_mib": round(float(groups["available"]) * 1024, 2),
        }
        if groups["possible"]:
            scan.details["possible_tokens"] = int(groups["possible"])
    scan.says = sign.says.format_map(groups).strip()


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


def _scan(log: Path, phase: Phase, since: int) -> _Scan:
    scan = _Scan()
    survived = _lines_before(log, since)
    for line in loglines.read(log, wanted=WANTED):
        if survived and line.number > survived:
            # the server lived through all that was said so far
            survived = 0
            scan = _Scan(available_kv_mib=scan.available_kv_mib, started=scan.started)
        if signs.STARTED.search(line.text):
            scan.started = True
            if phase is Phase.REQUEST:
                # What went wrong before did not keep the server from starting, so it is not why a request failed.
                scan = _Scan(available_kv_mib=scan.available_kv_mib, started=True)
        text = line.text.strip()
        if text:
            scan.last_text = text
        if not scan.started:
            scan.progress.add(line)
        if not any(word in text for word in signs.WORDS):
            if not line.is_quiet:
                _follow_traceback(scan, line)
            continue
        room = _NO_ROOM.search(line.text)
        if room:
            scan.available_kv_mib = round(float(room[1]) * 1024, 2)
        found = _sign_in(line)
        if found:
            _take_sign(scan, line, *found)
        if line.is_quiet:
            continue
        _follow_traceback(scan, line)
        if signs.MARKERS.search(line.text) and not scan.marker_line:
            scan.marker_line = line.number
        wrapper = next((i for i, (_, pattern, _) in enumerate(signs.WRAPPERS) if pattern.search(line.text)), None)
        if wrapper is not None:
            scan.wrappers.add(wrapper)
        elif not found or found[0].rank > signs.LOST:
            _take_exception(scan, line)
        scan.fatal = scan.fatal or bool(signs.FATAL.search(line.text))
    return scan


def _masked_by(scan: _Scan, cause: Cause) -> str | None:
    """The most misleading thing thrown around the cause; nothing masks itself."""
    wrappers = [signs.WRAPPERS[i] for i in sorted(scan.wrappers)]
    return next((name for name, _, itself in wrappers if itself is not cause), None)


def _stage(scan: _Scan, phase: Phase) -> str | None:
    told = scan.stage
    if phase is Phase.REQUEST:
        boot = told is not None and told.sure and not scan.started
        return told.stage.value if told and boot else Stage.REQUEST.value
    return None if told is None or told.stage is Stage.REQUEST else told.stage.value


def _from_sign(scan: _Scan, phase: Phase) -> tuple[Cause, str, dict[str, JsonValue], int]:
    """Cause, message, numbers and line of the sign that was found."""
    assert scan.sign is not None
    cause, details = scan.sign.cause, dict(scan.details)
    message = scan.says
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
    return cause, message, details, scan.sign_line


def _from_exit(exit_state: ExitState, scan: _Scan) -> tuple[Cause, str]:
    """Cause and message when the log names none: what the end itself says."""
    code = exit_state.exit_code
    if code in _KILLED_BY:
        return (
            Cause.KILLED,
            f"the server was killed by signal {_KILLED_BY[code]} from outside; its log ends without a reason",
        )
    if code in _CRASHED_BY:
        return Cause.CRASH, f"the server crashed ({_CRASHED_BY[code]}); its log ends without a reason"
    return (
        Cause.UNKNOWN,
        f"the server ended with exit code {code} and its log does not say why; last line: {scan.last_text[:300]!r}",
    )


def _judge(
    scan: _Scan, phase: Phase, exit_state: ExitState | None, observed: str | None, fallback: Cause
) -> tuple[Cause, str, dict[str, JsonValue], int | None]:
    over = exit_state is not None or scan.fatal
    sign = scan.sign
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
        return (*_from_exit(exit_state, scan), {}, None)
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
    scan = _scan(log, phase, since)
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
