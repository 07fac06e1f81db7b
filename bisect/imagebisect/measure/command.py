"""Command: a program of the user's against the running server; the place for chat, multimodal or accuracy checks."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from pathlib import Path

from imagebisect.domain import Failure, JsonValue, Measurement, Phase
from imagebisect.measure.context import Context
from imagebisect.measure.gpu import sampling
from imagebisect.outcome import Cause
from imagebisect.scenario import Command, MetricKind
from imagebisect.vllm import failures
from imagebisect.vllm.aftermath import wait_for_end

CANNOT_TELL = 125
"""The program's way to say that this build cannot be tested, as for `git bisect run`."""

NOT_RUN = (126, 127)
"""What a shell says of a program that it cannot run."""

DEADLINE_S = 600.0
_POLL_S = 0.05
_GRACE_S = 5.0
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


def last_number(text: str) -> float | None:
    """The number on the last line that is not empty: the line is one, or its last word is; None for anything else."""
    line = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    words = line.split()
    if not words:
        return None
    try:
        value = float(words[-1].rstrip("%").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _tail(path: Path) -> str:
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL_BYTES))
        return stream.read().decode("utf-8", errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program and everything it started, asked first, then by force."""
    for how, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            if how is signal.SIGKILL:
                return


def _wait(process: subprocess.Popen[bytes], output: Path, context: Context, deadline_s: float) -> str | None:
    """Wait for the program; why it was cut short, or None. Raises Interrupted when a stop is asked for."""
    deadline = time.monotonic() + deadline_s
    while process.poll() is None:
        if time.monotonic() > deadline:
            return f"it did not end within {deadline_s:.0f} s"
        if output.stat().st_size > _MOST_OUTPUT_BYTES:
            return f"it printed more than {_MOST_OUTPUT_BYTES >> 20} MiB"
        if context.running.exit_state() is not None:
            # it may be about to say why; a program that retries for ever may not
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            return "the server ended meanwhile"
        context.stop.wait(_POLL_S)
    return None


def _failure(cause: Cause, message: str, **details: JsonValue) -> Failure:
    return Failure(cause=cause, phase=Phase.REQUEST, message=message, details=details)


def _judge(scenario: Command, code: int, cut: str | None, printed: str) -> tuple[dict[str, float], Failure | None]:
    """Metrics and failure of a program that ended by itself (or was cut) while the server lived."""
    last = next((line for line in reversed(printed.splitlines()) if line.strip()), "")[:300]
    if cut is not None:
        return {}, _failure(Cause.COMMAND_FAILED, f"{scenario.name}: {cut}; last line: {last!r}", last_line=last)
    if code in NOT_RUN:
        message = f"{scenario.name}: {scenario.run[0]} cannot be run (exit code {code}): {last}"
        return {}, _failure(Cause.COMMAND_BROKEN, message, exit_code=code)
    if code == CANNOT_TELL:
        return {}, _failure(
            Cause.COMMAND_FAILED, f"{scenario.name}: cannot tell (exit code 125): {last}", exit_code=code
        )
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        message = f"{scenario.name}: the program died of signal {number}; last line: {last!r}"
        return {}, _failure(Cause.COMMAND_FAILED, message, exit_code=code)
    metric = scenario.metrics()[0]
    if metric.kind is MetricKind.EVENT:
        return {metric.name: 1.0 if code == 0 else 0.0}, None
    value = last_number(printed) if code == 0 else None
    if value is None:
        said = f"exit code {code}" if code else "its last line is no number"
        return {}, _failure(Cause.COMMAND_FAILED, f"{scenario.name}: {said}: {last!r}", exit_code=code)
    return {metric.name: value}, None


def measure(scenario: Command, context: Context) -> Measurement:
    """Run the program once. A server that dies meanwhile is the failure, whatever the program says.

    Its whole output is kept beside the server's log. Raises Interrupted; the program is ended on every path.
    """
    began = time.monotonic()
    output = context.running.spec.start_folder / f"{scenario.name.replace('/', '_')}.output.log"
    env = {**os.environ, **environment(scenario, context)}
    cut: str | None = None
    printed = ""
    try:
        with (
            output.open("wb") as sink,
            sampling(context.probe, own=context.own_pids, known=context.known_processes) as lowest,
        ):
            process = subprocess.Popen(
                scenario.run,
                cwd=scenario.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                cut = _wait(process, output, context, scenario.deadline_s or DEADLINE_S)
            finally:
                _end(process)
        code = process.returncode
        printed = _tail(output)
    except OSError as error:
        message = f"{scenario.name}: {scenario.run[0]} cannot be run: {error.strerror}"
        return Measurement(scenario=scenario.name, metrics={}, failure=_failure(Cause.COMMAND_BROKEN, message))
    samples: dict[str, JsonValue] = {"exit_code": code, "output": output.name, "tail": printed[-1000:]}
    if lowest.worst_mib is not None:
        samples["min_free_mib"] = lowest.worst_mib
    if context.running.exit_state() is not None:
        ended = wait_for_end(context.running, context.log, context.stop)
        observed = f"the server ended while {scenario.name} ran"
        failure: Failure | None = failures.classify(
            context.log, phase=Phase.REQUEST, exit_state=ended, observed=observed
        )
        found: dict[str, float] = {}
    else:
        found, failure = _judge(scenario, code, cut, printed)
    return Measurement(
        scenario=scenario.name, metrics=found, samples=samples, failure=failure, seconds=time.monotonic() - began
    )
