"""The run's folder: append-only events, written and fsynced before anything acts on them.

A torn last line (the power went, the process was killed) is cut off before the next append; a line that is
broken anywhere else is an error with its place. Locks are the kernel's (flock), so a stale one never blocks.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from imagebisect.domain import JsonValue, Plan
from imagebisect.errors import EnvironmentFault, UsageError
from imagebisect.noise import Noise
from imagebisect.runtime.groups import host_folder
from imagebisect.secrets import hide as without_secrets
from imagebisect.state import CompareSpec, Event, Purpose, RunCreated, RunState, SearchOptions, fold

SCHEMA = 1
EVENTS = "events.jsonl"


@cache
def _adapter() -> TypeAdapter[Event]:
    return TypeAdapter(Event)


def utc_now() -> str:
    """The wall clock in UTC, to the millisecond, ISO 8601."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _without(value: JsonValue, secret: tuple[str, ...]) -> JsonValue:
    """A JSON value with the secrets taken out of its texts, also what a cut left of one."""
    match value:
        case str():
            return without_secrets(value, secret)
        case list():
            return [_without(item, secret) for item in value]
        case dict():
            return {key: _without(item, secret) for key, item in value.items()}
        case _:
            return value


@dataclass(frozen=True)
class RunFolder:
    """One run under `results/`."""

    path: Path

    @property
    def run_id(self) -> str:
        """The run's name: its folder's."""
        return self.path.name

    @property
    def events_path(self) -> Path:
        """The ledger."""
        return self.path / EVENTS

    def exists(self) -> bool:
        """Whether there is a ledger."""
        return self.events_path.is_file()

    def created(self) -> tuple[str, str]:
        """When the run was created (UTC), and its name; a ledger without a beginning counts as the oldest."""
        try:
            with self.events_path.open("rb") as stream:
                first = json.loads(stream.readline())
            return str(first["started"]), self.run_id
        except (OSError, ValueError, KeyError, TypeError):
            return "", self.run_id

    def append(self, event: Event, hide: Iterable[str] = ()) -> None:
        """Write one event and wait until it is on disk. EnvironmentFault when it cannot be written.

        `hide` are secrets that a server may have printed: they become `***`.
        """
        line = _adapter().dump_json(event)
        secret = tuple(hide)
        if secret:
            line = json.dumps(_without(json.loads(line), secret), separators=(",", ":"), ensure_ascii=False).encode()
        line += b"\n"
        try:
            descriptor = os.open(self.events_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                _cut_torn_line(descriptor)
                written = 0
                while written < len(line):
                    written += os.write(descriptor, line[written:])
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise EnvironmentFault(
                f"the ledger cannot be written: {error.strerror}",
                where=str(self.events_path),
                next_step="free disk space or fix the permissions, then `bisect resume`",
                cause="disk_full",
            ) from error

    def events(self) -> Iterator[Event]:
        """All whole events. UsageError with the line for anything that is not one."""
        try:
            data = self.events_path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"no run can be read here: {error.strerror}",
                where=str(self.events_path),
                next_step="`bisect status --results DIR` lists the runs there are",
            ) from error
        lines = data.split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn, or empty
            try:
                yield _adapter().validate_json(line)
            except ValidationError as error:
                if number == len(lines) - 1 and line.strip(b"\0") == b"":
                    return  # a block that was allocated but never written
                raise UsageError(
                    "this line is no event of a run this version can read",
                    where=f"{self.events_path}:{number}",
                    next_step="restore the file from a copy, or start a new run",
                ) from error

    def load(self) -> RunState:
        """The state of the run. UsageError when the ledger is missing, broken or newer than we are."""
        try:
            state = fold(self.events())
        except (StopIteration, LookupError, RuntimeError) as error:
            raise UsageError(
                f"the ledger contradicts itself ({type(error).__name__}): it was changed by hand",
                where=str(self.events_path),
                next_step="restore the file from a copy, or start a new run",
            ) from error
        except ValueError as error:
            raise UsageError(
                "the ledger has no beginning: the run was killed before its first event was on disk",
                where=str(self.events_path),
                next_step="remove the folder and start a new run",
            ) from error
        if state.created.schema > SCHEMA:
            raise UsageError(
                f"the ledger has schema {state.created.schema}, this version reads {SCHEMA}",
                where=str(self.events_path),
                next_step="use the version that wrote it",
            )
        return state

    @contextmanager
    def lock(self, gpu_uuids: Iterable[str] = ()) -> Iterator[None]:
        """Hold the results folder and the cards for this process; UsageError when another run has them."""
        paths = [(self.path.parent / ".lock", f"another run is using {self.path.parent}")]
        shared = host_folder() / "imagebisect-locks"
        for uuid in sorted(gpu_uuids):
            name = re.sub(r"[^A-Za-z0-9-]", "_", uuid)
            paths.append((shared / f"{name}.lock", f"another run is using the GPU {uuid}"))
        with ExitStack() as held:
            for path, message in paths:
                if path.parent == shared and not shared.is_dir():
                    shared.mkdir(mode=0o777, exist_ok=True)
                    shared.chmod(0o777)
                try:
                    held.enter_context(FileLock(path, timeout=0, mode=0o666))
                except Timeout as error:
                    raise UsageError(
                        message,
                        where=str(path),
                        next_step="wait for it, stop it with Ctrl-C, or use another --results folder and other GPUs",
                    ) from error
            yield


def _cut_torn_line(descriptor: int) -> None:
    """Cut what follows the last newline, so that a new event never joins half an old one."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    chunk = 1 << 16
    end = size
    while end > 0:
        start = max(0, end - chunk)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            os.ftruncate(descriptor, start + found + 1)
            return
        end = start
    os.ftruncate(descriptor, 0)


def _how_to_go_on_with(folder: RunFolder) -> str:
    """What to do about a name that is taken: only an unfinished search or comparison can go on."""
    other = "choose another --name"
    try:
        state = folder.load()
    except UsageError:
        return other
    if state.finished is None and state.created.purpose != "probe":
        return f"`bisect resume {folder.run_id}` goes on with it; or {other}"
    return f"{other}; `bisect report {folder.run_id}` shows what is there"


def create(
    results: Path,
    plan: Plan,
    *,
    host: dict[str, JsonValue],
    model_fingerprint: str,
    tool_version: str,
    name: str | None = None,
    purpose: Purpose = "search",
    compare: CompareSpec | None = None,
    options: SearchOptions | None = None,
    noise: Mapping[str, Noise] | None = None,
) -> RunFolder:
    """Make a run's folder and write its first event. UsageError when the name is taken or unusable."""
    if name is not None and not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", name):
        raise UsageError(
            f"a run cannot be called {name!r}",
            next_step="use up to 63 lower-case letters, digits, '.', '_' and '-', a letter or digit first",
        )
    results = results.resolve()
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")
    run_id = name or f"{stamp}-{secrets.token_hex(2)}"
    folder = RunFolder(results / run_id)
    try:
        results.mkdir(parents=True, exist_ok=True)
        folder.path.mkdir()
    except FileExistsError as error:
        raise UsageError(
            f"{folder.path} exists",
            next_step=_how_to_go_on_with(folder),
        ) from error
    except OSError as error:
        raise EnvironmentFault(
            f"the run's folder cannot be made: {error.strerror}",
            where=str(folder.path),
            next_step="choose --results DIR",
        ) from error
    folder.append(
        RunCreated(
            run_id=run_id,
            tool_version=tool_version,
            started=utc_now(),
            plan=plan,
            host=host,
            model_fingerprint=model_fingerprint,
            purpose=purpose,
            compare=compare,
            options=options or SearchOptions(),
            noise=noise or {},
        )
    )
    for path in (folder.path, results):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return folder


def runs(results: Path) -> tuple[RunFolder, ...]:
    """All runs of a results folder, oldest first by when they were created."""
    if not results.is_dir():
        return ()
    found = [RunFolder(path.parent) for path in results.resolve().glob(f"*/{EVENTS}")]
    return tuple(sorted(found, key=lambda folder: folder.created()))


def find(results: Path, name: str | None) -> RunFolder:
    """The run of that name (or path), or the newest. UsageError when there is none."""
    if name is not None:
        for path in (results / name, Path(name)):
            folder = RunFolder(path.resolve())
            if folder.exists():
                return folder
        known = ", ".join(folder.run_id for folder in runs(results)[-8:]) or "none"
        raise UsageError(
            f"there is no run {name!r} in {results}",
            next_step=f"runs there: {known}; or name another folder with --results",
        )
    found = runs(results)
    if not found:
        raise UsageError(
            f"there is no run in {results}", next_step="start one with `bisect run`, or name --results DIR"
        )
    return found[-1]
