"""The stand-in's `nvidia-smi`: the query options that readers of GPU memory use."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from imagebisect.simulator import cards
from imagebisect.simulator.profile import ProfileError, from_file, from_json

DRIVER = "580.65.06"

_UNITS = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "memory.reserved": "MiB",
    "utilization.gpu": "%",
    "utilization.memory": "%",
    "power.draw": "W",
    "power.limit": "W",
    "clocks.current.sm": "MHz",
    "clocks.sm": "MHz",
    "clocks.current.memory": "MHz",
    "clocks.mem": "MHz",
    "clocks.max.sm": "MHz",
    "used_memory": "MiB",
    "used_gpu_memory": "MiB",
}


def _card_fields(card: cards.Card, count: int) -> dict[str, str]:
    used = round(card.used_mib)
    total = round(card.total_mib)
    busy = bool(card.processes)
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
        "pci.bus_id": f"00000000:{card.index + 1:02X}:00.0",
        "memory.total": str(total),
        "memory.used": str(used),
        "memory.free": str(total - used),
        "memory.reserved": "0",
        "utilization.gpu": "0",
        "utilization.memory": "0",
        "temperature.gpu": "52" if busy else "38",
        "power.draw": "96.40" if busy else "18.10",
        "power.limit": "300.00",
        "pstate": "P1" if busy else "P8",
        "clocks.current.sm": "2602" if busy else "210",
        "clocks.current.memory": "14001" if busy else "405",
        "clocks.max.sm": "3135",
        "clocks_event_reasons.active": "0x0000000000000000" if busy else "0x0000000000000001",
        "compute_mode": "Default",
        "compute_cap": "12.0",
        "mig.mode.current": "[N/A]",
        "persistence_mode": "Enabled",
        "ecc.mode.current": "[N/A]",
        "display_active": "Disabled",
    }
    found["clocks.sm"] = found["clocks.current.sm"]
    found["clocks.mem"] = found["clocks.current.memory"]
    found["clocks_throttle_reasons.active"] = found["clocks_event_reasons.active"]
    for reason in (
        "hw_slowdown",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
        "sw_power_cap",
    ):
        found[f"clocks_event_reasons.{reason}"] = found[f"clocks_throttle_reasons.{reason}"] = "Not Active"
    return found


def _table(rows: Sequence[dict[str, str]], names: Sequence[str], style: set[str]) -> str:
    lines = []
    if "noheader" not in style:
        lines.append(", ".join(f"{name} [{_UNITS[name]}]" if name in _UNITS else name for name in names))
    for row in rows:
        with_units = "nounits" not in style
        lines.append(", ".join(row[n] + (f" {_UNITS[n]}" if with_units and n in _UNITS else "") for n in names))
    return "".join(f"{line}\n" for line in lines)


def _chosen(all_cards: Sequence[cards.Card], wanted: str | None) -> list[cards.Card]:
    """The cards that -i names, by index or UUID; all without it."""
    if wanted is None:
        return list(all_cards)
    names = wanted.split(",")
    return [card for card in all_cards if str(card.index) in names or card.uuid in names]


def main(arguments: Sequence[str]) -> int:
    """Answer like `nvidia-smi`; exit code 2 for a field or option it does not have, as the real one."""
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
        sys.stdout.write("No devices were found\n")
        return 6
    style = {part.strip() for part in options.format.split(",")}
    if options.list_gpus or not (options.query_gpu or options.query_compute_apps):
        lines = [f"GPU {card.index}: {cards.CARD_NAME} (UUID: {card.uuid})\n" for card in found]
        sys.stdout.write("".join(lines))
        return 0
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
                        "process_name": _process_name(pid),
                        "name": _process_name(pid),
                    }
                )
    known = (
        set(rows[0]) if rows else {*_card_fields(found[0], 1), "pid", "used_memory", "used_gpu_memory", "process_name"}
    )
    for name in names:
        if name not in known:
            sys.stdout.write(f'Field "{name}" is not a valid field to query.\n\n')
            return 2
    sys.stdout.write(_table(rows, names, style))
    return 0


def _process_name(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - a deleted file's name is an answer too
    except OSError:
        return "[Not Found]"
