"""Command: a program of the user's against the running server; the place for chat, multimodal or accuracy checks."""

from __future__ import annotations

import math
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from imagebisect.domain import Failure, JsonValue, Measurement, Phase
from imagebisect.measure import validity
from imagebisect.measure.context import Context
from imagebisect.measure.gpu import Lowest, sampling
from imagebisect.measure.validity import MOST_REPEATS
from imagebisect.outcome import Cause
from imagebisect.runtime.program import GRACE_S, Program
from imagebisect.scenario import Command, MetricKind
from imagebisect.secrets import hide
from imagebisect.vllm import failures
from imagebisect.vllm.aftermath import wait_for_end

CANNOT_TELL = 125
"""The program's way to say that this build cannot be tested, as for `git bisect run`."""

SHELL = ("sh", "-c")
"""What a command given as one line is run by."""

BY_SIGNAL = range(129, 193)
"""What a shell says of a program that died of a signal: 128 and its number."""

NOT_RUN = (126, 127)
"""What a shell says of a program that it cannot run."""

DEADLINE_S = 600.0
_POLL_S = 0.05
_TAIL_BYTES = 8192
_MOST_OUTPUT_BYTES = 64 << 20


def environment(scenario: Command, context: Context) -> dict[str, str]:
    """What the program is told, besides what our own environment holds."""
    spec = context.running.spec
    return {
        "BISECT_URL": context.url,
        "BISECT_MODEL_ID": context.model_id,
        "BISECT_BUILD": spec.build.name,
        "BISECT_SERVER": context.server.name,
        "BISECT_SCENARIO": scenario.name,
        "BISECT_RUN_FOLDER": str(spec.run_folder.resolve()),
        "BISECT_START_FOLDER": str(spec.start_folder.resolve()),
        "BISECT_LOG": str(context.log.resolve()),
        "BISECT_SEED": str(context.seed),
    }


_NUMBER = re.compile(r"[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?%?")
"""`61.5%`, `1,234.5`, `2e-3`; a comma that parts no groups of three is no number, since it may be a decimal one."""


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def last_number(text: str) -> float | None:
    """The number that ends the last line that is not empty; None for anything else."""
    words = last_line(text).split()
    if not words or not _NUMBER.fullmatch(words[-1]):
        return None
    value = float(words[-1].rstrip("%").replace(",", ""))
    return value if math.isfinite(value) else None


def _tail(path: Path) -> str:
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL_BYTES))
        return stream.read().decode("utf-8", errors="replace")


def _wait(program: Program, output: Path, context: Context, deadline_s: float) -> str | None:
    """Wait for the program; why it was cut short, or None. Raises Interrupted when a stop is asked for."""
    deadline = time.monotonic() + deadline_s
    while program.poll() is None:
        if time.monotonic() > deadline:
            return f"it did not end within {deadline_s:.0f} s"
        if output.stat().st_size > _MOST_OUTPUT_BYTES:
            return f"it printed more than {_MOST_OUTPUT_BYTES >> 20} MiB"
        if context.running.exit_state() is not None:
            # it may be about to say why; a program that retries for ever may not
            program.wait(GRACE_S)
            return "the server ended meanwhile"
        context.stop.wait(_POLL_S)
    return None


def _failure(cause: Cause, message: str, **details: JsonValue) -> Failure:
    return Failure(cause=cause, phase=Phase.REQUEST, message=message, details=details)


def _judge(scenario: Command, code: int, cut: str | None, printed: str) -> tuple[dict[str, float], Failure | None]:
    """Metrics and failure of a program that ended by itself (or was cut) while the server lived."""
    last = last_line(printed)[:300]

    def cannot_tell(why: str, cause: Cause = Cause.COMMAND_FAILED) -> tuple[dict[str, float], Failure]:
        said = f"; its last line: {last!r}" if last else ""
        return {}, _failure(cause, f"{scenario.name}: {why}{said}", exit_code=code, last_line=last)

    if cut is not None:
        return cannot_tell(cut)
    if code in NOT_RUN:
        program = scenario.run[-1] if scenario.run[:-1] == SHELL else scenario.run[0]
        return cannot_tell(f"`{program}` cannot be run (exit code {code})", Cause.COMMAND_BROKEN)
    if code == CANNOT_TELL:
        return cannot_tell("it says that it cannot tell (exit code 125)")
    if code < 0 or code in BY_SIGNAL:
        return cannot_tell(f"the program died of signal {-code if code < 0 else code - BY_SIGNAL.start + 1}")
    metric = scenario.metrics()[0]
    if metric.kind is MetricKind.EVENT:
        return {metric.name: 1.0 if code == 0 else 0.0}, None
    value = last_number(printed) if code == 0 else None
    if value is None:
        return cannot_tell(f"exit code {code}" if code else "its last line does not end in a number")
    return {metric.name: value}, None


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """One run of the program: how it ended, what it printed last (without secrets), what the cards showed."""

    code: int
    cut: str | None
    printed: str
    lowest: Lowest


def _try(scenario: Command, context: Context, output: Path) -> _Tried:
    spec = context.running.spec
    env = {**os.environ, **environment(scenario, context)}
    argv = (str(Path(scenario.run[0]).expanduser()), *scenario.run[1:])
    with (
        sampling(context.probe, own=context.own_pids, known=context.known_processes) as lowest,
        Program(
            argv, folder=scenario.folder, env=env, output=output, run_id=spec.run_id, start_id=spec.start_id
        ) as program,
    ):
        cut = _wait(program, output, context, scenario.deadline_s or DEADLINE_S)
        code = program.end()
    return _Tried(code=code, cut=cut, printed=hide(_tail(output), context.secrets), lowest=lowest)


def measure(scenario: Command, context: Context) -> Measurement:
    """Run the program; again, at most twice, while the instruments say that it must not count.

    A server that dies meanwhile is the failure, whatever the program says. The program's whole output is kept beside the
    server's log. Raises Interrupted; everything that the program started is ended on every path.
    """
    began = time.monotonic()
    output = context.running.spec.start_folder / f"{scenario.name}.output.log"
    timed = scenario.prints is not None
    spoiled: list[str] = []
    found: dict[str, float] = {}
    failure: Failure | None = None
    samples: dict[str, JsonValue] = {}
    for _ in range(MOST_REPEATS + 1):
        try:
            tried = _try(scenario, context, output)
        except OSError as error:
            message = f"{scenario.name}: {scenario.run[0]} cannot be run: {error.strerror}"
            return Measurement(scenario=scenario.name, metrics={}, failure=_failure(Cause.COMMAND_BROKEN, message))
        samples |= {"exit_code": tried.code, "output": output.name, "tail": tried.printed[-1000:]}
        if tried.lowest.worst_mib is not None:
            samples["min_free_mib"] = tried.lowest.worst_mib
        evidence = validity.cards_evidence(tried.lowest, timed=timed)
        if evidence:
            spoiled.append("; ".join(evidence))
            samples["invalid"] = list(spoiled)
        if context.running.exit_state() is not None:
            found, failure = {}, _death(scenario, context)
            break
        found, failure = _judge(scenario, tried.code, tried.cut, tried.printed)
        if not evidence:
            break
        failure = _failure(
            validity.cause_of(spoiled), f"{scenario.name} was invalid {len(spoiled)} times: {spoiled[-1]}"
        )
        found = {}
    if spoiled and failure is not None and validity.is_foreign_load(spoiled[-1:]):
        failure = replace(failure, cause=Cause.GPU_BUSY, message=f"{spoiled[-1]}; {failure.message}")
    return Measurement(
        scenario=scenario.name, metrics=found, samples=samples, failure=failure, seconds=time.monotonic() - began
    )


def _death(scenario: Command, context: Context) -> Failure:
    """Why the server ended while the program ran."""
    ended = wait_for_end(context.running, context.log, context.stop)
    return failures.classify(
        context.log, phase=Phase.REQUEST, exit_state=ended, observed=f"the server ended while {scenario.name} ran"
    )
