"""Process groups that outlive us can be found again: who is in one, whose it is, and how it is ended.

A group is known by its id and by when its leader started (clock ticks since boot): an id is not given out again
while the group has members, and a leader with another start time is somebody else's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

_KILL_S = 10.0
"""How long the kernel may take to bury a killed group (a GPU driver can hold a process for seconds)."""


def _stat(pid: int) -> tuple[str, int, int] | None:
    """(state, process group, start time in ticks) of a process, None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[2]), int(fields[19])


def start_ticks(pid: int) -> int | None:
    """When a living process started, in clock ticks since boot; None when there is none (a zombie counts as gone)."""
    found = _stat(pid)
    return found[2] if found is not None and found[0] != "Z" else None


def boot_id() -> str:
    """This boot of the machine; process ids of another boot mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def pid_namespace() -> str:
    """Where process ids mean what they mean to us; a harness inside a container has its own."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process that owns something, so that a later one can tell whether it still lives.

    `boot` is the boot and the PID namespace, `boot-id/pid:[number]`.
    """

    pid: int
    ticks: int
    boot: str

    @classmethod
    def this(cls) -> Owner:
        """This process."""
        return cls(pid=os.getpid(), ticks=start_ticks(os.getpid()) or 0, boot=f"{boot_id()}/{pid_namespace()}")

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Read `str(owner)`; None when it is not one."""
        pid, _, rest = text.partition(":")
        ticks, _, boot = rest.partition(":")
        return cls(pid=int(pid), ticks=int(ticks), boot=boot) if pid.isdigit() and ticks.isdigit() else None

    def __str__(self) -> str:
        return f"{self.pid}:{self.ticks}:{self.boot}"

    @property
    def alive(self) -> bool:
        """Whether that very process still runs; one of another PID namespace cannot be seen and counts as alive."""
        boot, _, namespace = self.boot.partition("/")
        if boot != boot_id():
            return False
        if namespace not in ("", pid_namespace()):
            return True
        return start_ticks(self.pid) == self.ticks


MARKER = "BISECT_COMMAND_ID"
"""The env variable that marks the processes of a command."""


def marked(marker: str) -> list[int]:
    """Living processes whose env has this marker; none for an empty one. Those of other users cannot be read."""
    if not marker:
        return []
    wanted = f"\0{MARKER}={marker}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in b"\0" + (entry / "environ").read_bytes() + b"\0":
                found.append(int(entry.name))
    return found


@dataclass(frozen=True, kw_only=True)
class Group:
    """A process group on record: a server's, or a command's of the suite.

    `cache` is a folder that goes with it. `marker` is in the env of all its processes, so that one which left the group
    is found, too; empty for servers.
    """

    run_id: str
    start_id: str
    pgid: int
    ticks: int
    boot: str
    owner: str
    cache: str
    marker: str = ""

    def members(self) -> list[int]:
        """Its living processes; empty when it is gone or the id is somebody else's now."""
        if self.boot != boot_id():
            return []
        return sorted({*self._in_group(), *marked(self.marker)})

    def _in_group(self) -> list[int]:
        leader = _stat(self.pgid)
        if leader is not None and leader[2] != self.ticks:
            return []
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                seen = _stat(int(entry.name))
                if seen is not None and seen[0] not in "ZX" and seen[1] == self.pgid:
                    found.append(int(entry.name))
        return found

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group, if it is still ours."""
        if self.boot != boot_id():
            return
        if self._in_group():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pgid, number)
        for pid in marked(self.marker):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def kill(self) -> bool:
        """Kill it and wait until nobody is left; False when somebody stays."""
        deadline = time.monotonic() + _KILL_S
        while self.members():
            self.signal(signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def host_folder() -> Path:
    """Where all processes of this host look, whatever their TMPDIR: IMAGEBISECT_STATE_DIR, or /tmp."""
    return Path(os.environ.get("IMAGEBISECT_STATE_DIR", "/tmp"))  # noqa: S108


def _folder() -> Path:
    """Where groups are on record, host-wide, for this user."""
    return host_folder() / f"imagebisect-groups-{os.getuid()}"


def _path(group: Group) -> Path:
    return _folder() / f"{group.run_id}--{group.start_id}--{group.pgid}.json"


def put_on_record(group: Group) -> None:
    """Write a group down before its program may run."""
    _folder().mkdir(mode=0o700, exist_ok=True)
    path = _path(group)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(group)), encoding="utf-8")
    partial.replace(path)


def strike_off(group: Group) -> None:
    """Take an ended group off the record."""
    _path(group).unlink(missing_ok=True)


def on_record() -> list[Group]:
    """All groups on record; unreadable ones are left alone."""
    found = []
    for path in sorted(_folder().glob("*.json")):
        try:
            found.append(Group(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue
    return found


def reap(run_id: str | None) -> tuple[str, ...]:
    """End what is on record and has no living owner, of all runs or of one; of one run, also what this process left.

    What another living process owns stays: two folders may hold a run of one name. Returns what was removed, in words.
    """
    this = Owner.this()
    removed = []
    for group in on_record():
        owner = Owner.parse(group.owner)
        ours = run_id is not None and owner == this
        if (run_id is not None and group.run_id != run_id) or (owner is not None and owner.alive and not ours):
            continue
        if group.members():
            if not group.kill():
                continue
            removed.append(f"process group {group.pgid} of start {group.start_id} of run {group.run_id}")
        if group.cache:
            shutil.rmtree(group.cache, ignore_errors=True)
        strike_off(group)
    return tuple(removed)
