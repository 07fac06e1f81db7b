"""A suite's scenarios, from what pydantic read to the values that are measured."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

from imagebisect.config.problems import Problems, as_found, nearest
from imagebisect.config.reading import read
from imagebisect.config.schema import (
    KINDS,
    AnyScenario,
    CommandEntry,
    DecodeEntry,
    GrowthEntry,
    IdleMemoryEntry,
    LadderEntry,
    OomProbeEntry,
    PrefillEntry,
    StartupEntry,
)
from imagebisect.config.yaml import PathIn
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

PASSED = "passed"
SHELL = ("sh", "-c")
"""What a command given as one line is run by."""


def read_scenario(
    name: str, raw: object, problems: Problems, servers: Sequence[str], variants: Mapping[str, Any], *, base: Path
) -> Scenario | None:
    """One scenario; None when nothing can be made of it. What is wrong is noted. `base` is the suite's folder.

    `servers` and `variants` are those that the file has, well-formed or not.
    """
    place = ("scenarios", name)
    entry = _entry(raw, place, problems)
    on = entry.on if entry is not None else raw.get("on") if isinstance(raw, dict) else None
    if isinstance(on, str) and servers and on not in servers:
        _wrong_server(on, place, problems, servers, variants)
    return _scenario(name, entry, problems, base) if entry is not None else None


def _entry(raw: object, place: PathIn, problems: Problems) -> AnyScenario | None:
    """The entry by its `kind`; a misspelt kind is noted and taken for what it was meant to be."""
    if not isinstance(raw, dict):
        problems.spoil(place, f"expected keys and values, found {as_found(raw)}")
        return None
    kind = raw.get("kind")
    if isinstance(kind, str) and kind in KINDS:
        return read(KINDS[kind], raw, place, problems)
    if problems.touched((*place, "kind")):
        return None
    found = f", found {as_found(kind)}" if "kind" in raw else ", found none"
    meant = nearest(kind, KINDS) if isinstance(kind, str) else None
    hint = f"; did you mean {meant}?" if meant else ""
    problems.spoil((*place, "kind"), f"expected one of {', '.join(KINDS)}{found}{hint}")
    return read(KINDS[meant], {**raw, "kind": meant}, place, problems) if meant else None


def _wrong_server(
    on: str, place: PathIn, problems: Problems, servers: Sequence[str], variants: Mapping[str, Any]
) -> None:
    """Say why a scenario cannot run there."""
    at = (*place, "on")
    if on not in variants:
        problems.add(at, f"expected a server ({', '.join(servers)}), found {on!r}")
        return
    of = variants[on].get("of") if isinstance(variants[on], dict) else None
    next_step = f"write `on: {of}`" if of in servers else "name that one"
    problems.add(at, f"{on} is a variant, and a variant does every scenario of its server: {next_step}")


def _scenario(name: str, entry: AnyScenario, problems: Problems, base: Path) -> Scenario:
    place = ("scenarios", name)
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
        at = ("scenarios", name, "prints", "name")
        if "." in entry.prints.name:
            problems.spoil(at, f"expected a name of letters, digits, '-' and '_', found {entry.prints.name!r}")
        elif entry.prints.name == PASSED:
            problems.spoil(at, f"{PASSED} is what a command without `prints` yields; call the number something else")
        prints = Metric(name=entry.prints.name, unit=entry.prints.unit, kind=MetricKind(entry.prints.compare))
    return Command(
        name=name,
        on=entry.on,
        run=run,
        folder=str(folder),
        prints=prints,
        worse=entry.prints.worse if entry.prints is not None else None,
        deadline_s=entry.deadline,
    )
