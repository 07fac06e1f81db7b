"""An `nvidia-smi`: this host's, a container's, or the stand-in's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from imagebisect.domain import CardMemory, JsonValue
from imagebisect.measure.cards import (
    IDLE_BIT,
    CardDetails,
    GpuProcess,
    Gpus,
    Sample,
    is_wanted,
    program,
    slowdown_words,
)
from imagebisect.runtime.base import Running

_CARD_KEYS = ("cards", "card_total_mib", "baseline_mib")
"""What of a simulated build's profile is about its cards."""

_COMMAND_S = 20.0
"""A wedged driver makes nvidia-smi hang; then the cards count as unreadable."""

_KILLED_S = 2.0
"""A killed command that is stuck inside the driver is waited for so long and then left behind."""

_CARD_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free")
_NEEDED = ("index", "memory.free")
_SAMPLE_FIELDS = (*_NEEDED, "clocks_event_reasons.active", "clocks.sm", "temperature.gpu", "power.draw")
_PROCESS_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")
_DETAIL_FIELDS = {
    "driver_version": "driver_version",
    "vbios_version": "vbios_version",
    "compute_capability": "compute_cap",
    "power_limit_w": "power.limit",
    "power_default_w": "power.default_limit",
    "max_sm_clock_mhz": "clocks.max.sm",
    "max_memory_clock_mhz": "clocks.max.memory",
    "application_sm_clock_mhz": "clocks.applications.graphics",
    "application_memory_clock_mhz": "clocks.applications.memory",
    "persistence_mode": "persistence_mode",
    "ecc": "ecc.mode.current",
    "mig": "mig.mode.current",
    "pcie_generation_max": "pcie.link.gen.max",
    "pcie_width_max": "pcie.link.width.max",
    "pcie_generation_now": "pcie.link.gen.current",
    "pcie_width_now": "pcie.link.width.current",
}
"""Our names of what a card is, and nvidia-smi's."""

_OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
"""Drivers before 535 know the reasons by another name."""

_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_CUDA_VERSION = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)")

Command = Callable[[tuple[str, ...]], tuple[int, str]]
"""Runs an argv; (exit code, output). Never raises: a command that cannot run has an exit code other than 0."""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_S)


def run_here(argv: tuple[str, ...], timeout_s: float = _COMMAND_S) -> tuple[int, str]:
    """Run a command on this host within `timeout_s`; what it says on stderr counts where it fails."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that it can be ended whole
        )
    except OSError:
        return 127, ""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return 127, ""
    finally:
        if process.returncode is None:
            _kill(process)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return process.returncode, (out if process.returncode == 0 else out + err).decode(errors="replace")


def _rows(text: str, width: int) -> Iterator[list[str]]:
    """The rows of nvidia-smi's CSV that have enough fields; warnings between them are passed over.

    Only the last field may hold commas of its own, for nvidia-smi quotes nothing.
    """
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", width - 1)]
        if len(cells) == width:
            yield cells


def _number(text: str) -> float | None:
    """A number, None for `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]` and the like."""
    try:
        return float(text)
    except ValueError:
        return None


def _enabled(text: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text)


def _said(text: str) -> str | None:
    return None if not text or text.startswith("[") or text == "N/A" else text


def parse_smi(cards_text: str, processes_text: str = "") -> list[CardMemory]:
    """The cards in `nvidia-smi --query-gpu=index,uuid,name,memory.total,memory.free --format=csv,noheader,nounits`."""
    processes: dict[str, list[tuple[int, float]]] = {}
    for uuid, pid, rest in _rows(processes_text, 3):
        if pid.isdigit():
            # WSL and MIG say [N/A] or [Insufficient Permissions] where the size should be.
            processes.setdefault(uuid, []).append((int(pid), _number(rest.partition(",")[0]) or 0.0))
    cards = []
    for index, uuid, name, total, free in _rows(cards_text, len(_CARD_FIELDS)):
        with contextlib.suppress(ValueError):
            cards.append(
                CardMemory(
                    index=int(index),
                    uuid=uuid,
                    name=name,
                    total_mib=float(total),
                    free_mib=float(free),
                    processes=tuple(processes.get(uuid, ())),
                )
            )
    return cards


class SmiProbe:
    """An `nvidia-smi`, by whatever runs it."""

    process_interval_s = 2.0
    host_pids = True

    def __init__(
        self,
        gpus: Gpus,
        *,
        argv: tuple[str, ...] = ("nvidia-smi",),
        command: Command = run_here,
        source: str = "nvidia-smi",
        interval_s: float = 0.5,
    ) -> None:
        self.gpus = gpus
        self.argv = argv
        self.command = command
        self.source = source
        self.interval_s = interval_s
        self._sample_fields: tuple[str, ...] = _SAMPLE_FIELDS
        self._indices: dict[str, int] = {}

    def _ask(self, query: str, fields: tuple[str, ...]) -> tuple[int, str]:
        return self.command((*self.argv, f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits"))

    def _ask_known(self, fields: tuple[str, ...], needed: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
        """Ask for the cards, without the fields that this driver does not know; (fields asked for, answer).

        An answer that fails for another reason is empty, and the fields are what they were.
        """
        tried = fields
        for _ in range(2 * len(fields)):
            code, text = self._ask("gpu", tried)
            if code == 0:
                return tried, text
            if code != 2:
                break
            unknown = _UNKNOWN_FIELD.search(text)
            name = unknown.group(1) if unknown else ""
            if name in tried and name not in needed:
                place = tried.index(name)
                instead = (_OLD_NAMES[name],) if name in _OLD_NAMES else ()
                tried = (*tried[:place], *instead, *tried[place + 1 :])
            elif tried != needed:
                tried = needed
            else:
                break
        return fields, ""

    def read(self) -> tuple[CardMemory, ...]:
        """See GpuProbe."""
        code, text = self._ask("gpu", _CARD_FIELDS)
        if code != 0:
            return ()
        code, apps = self._ask("compute-apps", _PROCESS_FIELDS)
        cards = parse_smi(text, apps if code == 0 else "")
        self._indices = {card.uuid: card.index for card in cards}
        return tuple(sorted((c for c in cards if is_wanted(c.index, self.gpus)), key=lambda card: card.index))

    def sample(self) -> Sample:
        """See GpuProbe. One command; fields that the driver does not know are not asked for again."""
        self._sample_fields, text = self._ask_known(self._sample_fields, _NEEDED)
        free: dict[int, float] = {}
        slow: list[str] = []
        clocks: dict[int, float] = {}
        found: dict[str, dict[int, float]] = {"temperature.gpu": {}, "power.draw": {}}
        for row in _rows(text, len(self._sample_fields)):
            cells = dict(zip(self._sample_fields, row, strict=True))
            if not cells["index"].isdigit() or not is_wanted(int(cells["index"]), self.gpus):
                continue
            index = int(cells["index"])
            numbers = {name: _number(cell) for name, cell in cells.items()}
            size, clock = numbers["memory.free"], numbers.get("clocks.sm")
            if size is not None:
                free[index] = size
            bits = _bits(cells)
            slow += slowdown_words(index, bits or 0)
            if clock is not None and bits is not None and not bits & IDLE_BIT:
                clocks[index] = clock
            for name, values in found.items():
                number = numbers.get(name)
                if number is not None:
                    values[index] = number
        return Sample(
            free_mib=free,
            slowdowns=tuple(slow),
            sm_clock_mhz=clocks,
            temperature_c=found["temperature.gpu"],
            power_w=found["power.draw"],
        )

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """See GpuProbe: what computes; nvidia-smi has no query for what draws."""
        code, text = self._ask("compute-apps", _PROCESS_FIELDS)
        if code != 0:
            return None
        rows = [row for row in _rows(text, len(_PROCESS_FIELDS)) if row[1].isdigit()]
        if any(row[0] not in self._indices for row in rows):
            self._learn_indices()
        found = []
        for uuid, pid, used, name in rows:
            index = self._indices.get(uuid)
            if index is not None and is_wanted(index, self.gpus):
                found.append(GpuProcess(index=index, pid=int(pid), used_mib=_number(used) or 0.0, name=program(name)))
        return tuple(sorted(found, key=lambda process: process.key))

    def _learn_indices(self) -> None:
        code, text = self._ask("gpu", ("index", "uuid"))
        if code == 0:
            self._indices |= {uuid: int(index) for index, uuid in _rows(text, 2) if index.isdigit()}

    def details(self) -> tuple[CardDetails, ...]:
        """See GpuProbe. Two commands, for the CUDA version stands only in the overview."""
        needed = ("index", "uuid", "name", "memory.total")
        fields, text = self._ask_known((*needed, *_DETAIL_FIELDS.values()), needed)
        if not text:
            return ()
        code, overview = self.command(self.argv)
        cuda = _CUDA_VERSION.search(overview) if code == 0 else None
        cards = []
        for row in _rows(text, len(fields)):
            cells = dict(zip(fields, row, strict=True))
            if cells["index"].isdigit() and is_wanted(int(cells["index"]), self.gpus):
                cards.append(_details(cells, cuda.group(1) if cuda else None))
        return tuple(sorted(cards, key=lambda card: card.index))

    def attach(self, running: Running) -> None:
        """Nothing to do: it sees every process of the host."""


def _bits(cells: dict[str, str]) -> int | None:
    """A card's clock event reasons, by whichever name they were asked for."""
    for new, old in _OLD_NAMES.items():
        text = cells.get(new) or cells.get(old) or ""
        if text.startswith("0x"):
            return int(text, 16)
    return None


def _details(cells: dict[str, str], cuda: str | None) -> CardDetails:
    said = {name: cells.get(field, "") for name, field in _DETAIL_FIELDS.items()}

    def whole(name: str) -> int | None:
        number = _number(said[name])
        return None if number is None else int(number)

    return CardDetails(
        index=int(cells["index"]),
        uuid=cells["uuid"],
        name=cells["name"],
        total_mib=_number(cells["memory.total"]),
        driver_version=_said(said["driver_version"]),
        cuda_driver_version=cuda,
        vbios_version=_said(said["vbios_version"]),
        compute_capability=_said(said["compute_capability"]),
        power_limit_w=_number(said["power_limit_w"]),
        power_default_w=_number(said["power_default_w"]),
        max_sm_clock_mhz=_number(said["max_sm_clock_mhz"]),
        max_memory_clock_mhz=_number(said["max_memory_clock_mhz"]),
        application_sm_clock_mhz=_number(said["application_sm_clock_mhz"]),
        application_memory_clock_mhz=_number(said["application_memory_clock_mhz"]),
        persistence_mode=_enabled(said["persistence_mode"]),
        ecc=_enabled(said["ecc"]),
        mig=_enabled(said["mig"]),
        pcie_generation_max=whole("pcie_generation_max"),
        pcie_width_max=whole("pcie_width_max"),
        pcie_generation_now=whole("pcie_generation_now"),
        pcie_width_now=whole("pcie_width_now"),
    )


class ExecProbe(SmiProbe):
    """`nvidia-smi` where the server runs; it reads nothing before the first server is attached.

    What it lists are the container's own processes under the container's own pids, if any: a foreign process
    shows only in the free memory.
    """

    host_pids = False

    def __init__(self) -> None:
        # A container sees only the cards it was given, numbered from 0.
        super().__init__("all", command=self._exec, source="exec", interval_s=1.0)
        self.running: Running | None = None

    def _exec(self, argv: tuple[str, ...]) -> tuple[int, str]:
        if self.running is None or self.running.exit_state() is not None:
            return 127, ""
        return self.running.exec(argv, _COMMAND_S)

    def attach(self, running: Running) -> None:
        """Read inside this server's container from now on."""
        self.running = running


def standin_argv(run_folder: Path, profile: Mapping[str, JsonValue] | None = None) -> tuple[str, ...]:
    """The stand-in's own `nvidia-smi`, which reports the cards that its servers of this run share.

    `profile` is a build's: what its cards are like, also before any server has said so.
    """
    state = str(run_folder / "standin")
    cards = {key: value for key, value in (profile or {}).items() if key in _CARD_KEYS}
    said = ("--profile-json", json.dumps(cards)) if cards else ()
    return (sys.executable, "-m", "imagebisect.simulator", "nvidia-smi", "--state-dir", state, *said)


def run_standin(argv: tuple[str, ...]) -> tuple[int, str]:
    """Ask the stand-in's `nvidia-smi` (a `standin_argv`) inside this process.

    Starting a second Python takes 40 ms of a core each time, where the real program takes 20 and NVML less than one.
    """
    from imagebisect.simulator import smi

    try:
        return smi.answer(argv[argv.index("nvidia-smi") + 1 :])
    except SystemExit as refused:
        return int(refused.code or 0), ""
