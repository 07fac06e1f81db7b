"""A suite's scenarios, from what pydantic read to the values that are measured."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import assert_never

from imagebisect.config.problems import Problems
from imagebisect.config.schema import (
    CommandEntry,
    DecodeEntry,
    GrowthEntry,
    IdleMemoryEntry,
    LadderEntry,
    OomProbeEntry,
    PrefillEntry,
    ScenarioEntry,
    StartupEntry,
)
from imagebisect.scenario import (
    Command,
    Decode,
    Growth,
    IdleMemory,
    Ladder,
    Metric,
    MetricKind,
    OomProbe,
    Prefill,
    Scenario,
    Startup,
)

SHELL = ("sh", "-c")
"""What a command given as one line is run by."""


def read_scenario(name: str, entry: ScenarioEntry, problems: Problems, known: list[str], *, base: Path) -> Scenario:
    """One scenario; what is wrong with it is noted. `known` are the servers' names, `base` the suite's folder."""
    place = ("scenarios", name)
    if entry.on not in known:
        problems.add((*place, "on"), f"expected a server ({', '.join(known)}), found {entry.on!r}")
    if isinstance(entry, PrefillEntry | DecodeEntry) and len(set(entry.concurrency)) != len(entry.concurrency):
        problems.add((*place, "concurrency"), f"a concurrency stands twice in {list(entry.concurrency)}")
    if isinstance(entry, LadderEntry) and sorted(set(entry.prompt_tokens)) != entry.prompt_tokens:
        problems.add((*place, "prompt_tokens"), f"expected lengths that ascend, found {list(entry.prompt_tokens)}")
    match entry:
        case IdleMemoryEntry():
            return IdleMemory(
                name=name, on=entry.on, samples=entry.samples, interval_s=entry.interval, deadline_s=entry.deadline
            )
        case StartupEntry():
            return Startup(name=name, on=entry.on, deadline_s=entry.deadline)
        case PrefillEntry():
            return Prefill(
                name=name,
                on=entry.on,
                prompt_tokens=entry.prompt_tokens,
                concurrency=tuple(entry.concurrency),
                reps=entry.reps,
                deadline_s=entry.deadline,
            )
        case LadderEntry():
            return Ladder(
                name=name,
                on=entry.on,
                prompt_tokens=tuple(entry.prompt_tokens),
                concurrency=entry.concurrency,
                reps=entry.reps,
                deadline_s=entry.deadline,
            )
        case DecodeEntry():
            return Decode(
                name=name,
                on=entry.on,
                prompt_tokens=entry.prompt_tokens,
                output_tokens=entry.output_tokens,
                concurrency=tuple(entry.concurrency),
                reps=entry.reps,
                deadline_s=entry.deadline,
            )
        case GrowthEntry():
            return Growth(
                name=name,
                on=entry.on,
                prompt_tokens=entry.prompt_tokens,
                output_tokens=entry.output_tokens,
                concurrency=entry.concurrency,
                rounds=entry.rounds,
                samples=entry.samples,
                interval_s=entry.interval,
                deadline_s=entry.deadline,
            )
        case CommandEntry():
            return _command(name, entry, problems, base)
        case OomProbeEntry():
            return OomProbe(
                name=name, on=entry.on, ladder=tuple(entry.ladder), repeats=entry.repeats, deadline_s=entry.deadline
            )
        case _:
            assert_never(entry)


def _command(name: str, entry: CommandEntry, problems: Problems, base: Path) -> Command:
    run = (*SHELL, entry.run) if isinstance(entry.run, str) else tuple(entry.run)
    folder = base.resolve()
    program = run[0]
    beside = folder / Path(program).expanduser()
    found = os.access(beside, os.X_OK) and beside.is_file() if "/" in program else shutil.which(program) is not None
    if not program.strip() or not run[-1].strip():
        problems.add(("scenarios", name, "run"), "expected a program and its arguments, or a line for `sh -c`")
    elif not found:
        where = f"there is no program {beside}" if "/" in program else f"no program {program!r} on the PATH"
        problems.add(("scenarios", name, "run"), f"{where} that can be run (paths are relative to the suite's folder)")
    prints = None
    if entry.prints is not None:
        if "." in entry.prints.name:
            problems.add(("scenarios", name, "prints", "name"), "expected a name of letters, digits, '-' and '_'")
        prints = Metric(name=entry.prints.name, unit=entry.prints.unit, kind=MetricKind(entry.prints.compare))
    return Command(name=name, on=entry.on, run=run, folder=str(folder), prints=prints, deadline_s=entry.deadline)
