"""The stand-in's `nvidia-smi`: the query options that readers of GPU memory use."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from imagebisect.simulator import cards, events
from imagebisect.simulator.profile import ProfileError, from_file, from_json

DRIVER = "580.65.06"
CUDA = "13.0"

_SLOW_BITS = 0xE8
_THERMAL_BITS = 0x60

_UNITS = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "memory.reserved": "MiB",
    "utilization.gpu": "%",
    "utilization.memory": "%",
    "power.draw": "W",
    "power.limit": "W",
    "enforced.power.limit": "W",
    "power.default_limit": "W",
    "power.min_limit": "W",
    "power.max_limit": "W",
    "clocks.current.sm": "MHz",
    "clocks.sm": "MHz",
    "clocks.current.memory": "MHz",
    "clocks.mem": "MHz",
    "clocks.max.sm": "MHz",
    "clocks.max.graphics": "MHz",
    "clocks.max.memory": "MHz",
    "clocks.max.mem": "MHz",
    "clocks.applications.graphics": "MHz",
    "clocks.applications.gr": "MHz",
    "clocks.applications.memory": "MHz",
    "clocks.applications.mem": "MHz",
    "used_memory": "MiB",
    "used_gpu_memory": "MiB",
}

_ALIASES = {
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.max.mem": "clocks.max.memory",
    "clocks.applications.gr": "clocks.applications.graphics",
    "clocks.applications.mem": "clocks.applications.memory",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
}
_REASONS = {
    "gpu_idle": 0x01,
    "sw_power_cap": 0x04,
    "hw_slowdown": 0x08,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}


def _card_fields(card: cards.Card, count: int) -> dict[str, str]:
    used = round(card.used_mib)
    total = round(card.total_mib)
    busy = bool(card.processes)
    bits = card.slowdown_bits or (0 if busy else 1)
    hot = bool(bits & _THERMAL_BITS)
    clock = "1185" if bits & _SLOW_BITS else "2602" if busy else "210"
    limit = f"{card.power_limit_w:.2f}"
    found = {
        "index": str(card.index),
        "uuid": card.uuid,
        "gpu_uuid": card.uuid,
        "name": cards.CARD_NAME,
        "gpu_name": cards.CARD_NAME,
        "count": str(count),
        "serial": "[N/A]",
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
        "driver_version": DRIVER,
        "vbios_version": "98.03.3A.00.01",
        "pci.bus_id": f"00000000:{card.index + 1:02X}:00.0",
        # as a real card: the link falls back to its first generation while there is nothing to do
        "pcie.link.gen.current": "5" if busy else "1",
        "pcie.link.gen.gpucurrent": "5" if busy else "1",
        "pcie.link.gen.max": "5",
        "pcie.link.gen.gpumax": "5",
        "pcie.link.gen.hostmax": "5",
        "pcie.link.width.current": "16",
        "pcie.link.width.max": "16",
        "memory.total": str(total),
        "memory.used": str(used),
        "memory.free": str(total - used),
        "memory.reserved": "0",
        "utilization.gpu": "0",
        "utilization.memory": "0",
        "temperature.gpu": "92" if hot else "52" if busy else "38",
        "power.draw": "96.40" if busy else "18.10",
        "power.limit": limit,
        "enforced.power.limit": limit,
        "power.default_limit": f"{cards.POWER_LIMIT_W:.2f}",
        "power.min_limit": "150.00",
        "power.max_limit": f"{cards.POWER_LIMIT_W:.2f}",
        "pstate": "P1" if busy else "P8",
        "clocks.current.sm": clock,
        "clocks.current.memory": "14001" if busy else "405",
        "clocks.max.sm": "3135",
        "clocks.max.graphics": "3135",
        "clocks.max.memory": "14001",
        "clocks.applications.graphics": "[N/A]",
        "clocks.applications.memory": "[N/A]",
        "clocks_event_reasons.active": f"0x{bits:016x}",
        "compute_mode": "Default",
        "compute_cap": "12.0",
        "mig.mode.current": "[N/A]",
        "persistence_mode": "Enabled",
        "ecc.mode.current": "[N/A]",
        "display_active": "Disabled",
    }
    for short, long in _ALIASES.items():
        found[short] = found[long]
    for reason, bit in _REASONS.items():
        state = "Active" if bits & bit else "Not Active"
        found[f"clocks_event_reasons.{reason}"] = found[f"clocks_throttle_reasons.{reason}"] = state
    return found


def _table(rows: Sequence[dict[str, str]], names: Sequence[str], style: set[str]) -> str:
    lines = []
    if "noheader" not in style:
        lines.append(", ".join(f"{name} [{_UNITS[name]}]" if name in _UNITS else name for name in names))
    for row in rows:
        with_units = "nounits" not in style
        lines.append(
            ", ".join(
                row[n] + (f" {_UNITS[n]}" if with_units and n in _UNITS and row[n] != "[N/A]" else "") for n in names
            )
        )
    return "".join(f"{line}\n" for line in lines)


def _overview(found: Sequence[cards.Card]) -> str:
    """What it says when it is asked for nothing: versions, cards, processes."""
    line = f"+{'-' * 89}+\n"
    driver = f"| NVIDIA-SMI {DRIVER:<22} Driver Version: {DRIVER:<16} CUDA Version: {CUDA:<9}|\n"
    rows = [
        f"| {card.index:>3}  {cards.CARD_NAME:<40} {round(card.used_mib):>7}MiB / {round(card.total_mib):>7}MiB |\n"
        for card in found
    ]
    return line + driver + line + "".join(rows) + line


def _chosen(all_cards: Sequence[cards.Card], wanted: str | None) -> list[cards.Card]:
    """The cards that -i names, by index or UUID; all without it."""
    if wanted is None:
        return list(all_cards)
    names = wanted.split(",")
    return [card for card in all_cards if str(card.index) in names or card.uuid in names]


def main(arguments: Sequence[str]) -> int:
    """Answer like `nvidia-smi`; exit code 2 for a field or option it does not have, as the real one."""
    code, text = answer(arguments)
    sys.stdout.write(text)
    return code


def answer(arguments: Sequence[str]) -> tuple[int, str]:
    """Exit code and output, without printing; SystemExit for arguments that argparse refuses."""
    parser = argparse.ArgumentParser(prog="nvidia-smi", allow_abbrev=False)
    parser.add_argument("--state-dir", default=cards.DEFAULT_STATE_DIR)
    parser.add_argument("--profile", help="a build's profile: what the cards are like before the first start")
    parser.add_argument("--profile-json")
    parser.add_argument("--query-gpu")
    parser.add_argument("--query-compute-apps")
    parser.add_argument("--format", default="csv")
    parser.add_argument("-i", "--id")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    options = parser.parse_args(list(arguments))
    try:
        profile = from_file(options.profile) if options.profile else None
        profile = from_json(options.profile_json) if options.profile_json else profile
    except ProfileError as error:
        parser.error(str(error))
    found = _chosen(cards.read(Path(options.state_dir), profile), options.id)
    if not found:
        return 6, "No devices were found\n"
    time.sleep(events.in_effect(Path(options.state_dir)).wedged_s)
    style = {part.strip() for part in options.format.split(",")}
    if not (options.list_gpus or options.query_gpu or options.query_compute_apps):
        return 0, _overview(found)
    if options.list_gpus:
        lines = [f"GPU {card.index}: {cards.CARD_NAME} (UUID: {card.uuid})\n" for card in found]
        return 0, "".join(lines)
    if options.query_gpu:
        names = [name.strip() for name in options.query_gpu.split(",")]
        rows = [_card_fields(card, len(found)) for card in found]
    else:
        names = [name.strip() for name in options.query_compute_apps.split(",")]
        rows = []
        for card in found:
            for pid, used in card.processes:
                mine = {"pid": str(pid), "used_memory": str(round(used)), "used_gpu_memory": str(round(used))}
                rows.append(
                    {
                        **_card_fields(card, len(found)),
                        **mine,
                        "process_name": dict(card.names).get(pid) or _process_name(pid),
                        "name": dict(card.names).get(pid) or _process_name(pid),
                    }
                )
    known = (
        set(rows[0]) if rows else {*_card_fields(found[0], 1), "pid", "used_memory", "used_gpu_memory", "process_name"}
    )
    for name in names:
        if name not in known:
            return 2, f'Field "{name}" is not a valid field to query.\n\n'
    return 0, _table(rows, names, style)


def _process_name(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - a deleted file's name is an answer too
    except OSError:
        return "[Not Found]"
