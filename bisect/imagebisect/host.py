"""This host as a reader of a report needs it, and what of it makes measurements comparable. No names."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebisect.domain import CardMemory, JsonValue, ModelSpec

if TYPE_CHECKING:
    from imagebisect.measure.cards import CardDetails

_COMPARABLE = {
    "cpu": "CPU",
    "cpus": "CPUs",
    "cpu_limit": "CPU limit",
    "architecture": "architecture",
    "kernel": "kernel",
    "docker": "docker",
}
"""What of a host decides how fast it is, and its name in a sentence."""

_COMPARABLE_CARD = {
    "name": ("", ""),
    "total_mib": ("memory", " MiB"),
    "driver_version": ("driver", ""),
    "power_limit_w": ("power limit", " W"),
    "max_sm_clock_mhz": ("maximum SM clock", " MHz"),
    "max_memory_clock_mhz": ("maximum memory clock", " MHz"),
    "application_sm_clock_mhz": ("application SM clock", " MHz"),
    "application_memory_clock_mhz": ("application memory clock", " MHz"),
    "pcie_generation_max": ("PCIe generation", ""),
    "pcie_width_max": ("PCIe width", ""),
    "ecc": ("ECC", ""),
    "mig": ("MIG", ""),
}
"""The same of a card: its name in a sentence, its unit. The link's present state and such change by themselves."""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpu_model() -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_mib() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (OSError, ValueError):
        return None


def _governor() -> str | None:
    """How the kernel sets the CPU's clock, e.g. `performance`; several where the CPUs differ."""
    found = set()
    with contextlib.suppress(OSError):
        for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"):
            found.add(path.read_text(encoding="ascii", errors="replace").strip())
    return ", ".join(sorted(found)) or None


def _with_parents(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.parents


def _quotas(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> Iterator[float]:
    """CPUs that each control group above this process allows, version 2 and version 1."""
    for line in _text(own).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in _with_parents(Path(path)):
            inside = str(folder).lstrip("/")
            if not controllers:
                quota, period = (*_text(f"{root}/{inside}/cpu.max").split(), "", "")[:2]
            else:
                quota = _text(f"{root}/{controllers}/{inside}/cpu.cfs_quota_us").strip()
                period = _text(f"{root}/{controllers}/{inside}/cpu.cfs_period_us").strip()
            if quota.isdigit() and period.isdigit() and int(period):
                yield int(quota) / int(period)


def _cpu_limit() -> float | None:
    """CPUs that this process may use where that is fewer than there are: a quota, or a CPU set."""
    every = os.cpu_count() or 1
    allowed = [*_quotas(), float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else every]
    least = min(allowed)
    return round(least, 2) if least < every else None


def _numa_nodes() -> int | None:
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None


def _os_name() -> str | None:
    for line in _text("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip().strip('"')
    return None


def _virtualisation() -> str | None:
    """What stands between us and the hardware, as far as that shows for nothing."""
    found = []
    if "microsoft" in platform.release().lower():
        found.append("WSL")
    elif any(line.startswith("flags") and " hypervisor" in line for line in _text("/proc/cpuinfo").splitlines()):
        found.append("virtual machine")
    if any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        found.append("container")
    return ", ".join(found) or None


def _card(card: CardMemory | CardDetails) -> dict[str, JsonValue]:
    if isinstance(card, CardMemory):
        return {"index": card.index, "uuid": card.uuid, "name": card.name, "total_mib": card.total_mib}
    return {key: value for key, value in asdict(card).items() if value is not None}


def host_info(
    cards: Sequence[CardMemory] | Sequence[CardDetails] = (),
    *,
    gpu_source: str = "none",
    docker_version: str | None = None,
) -> dict[str, JsonValue]:
    """Hardware, versions and settings; None for what cannot be read. Reads no network and starts nothing.

    Args:
        cards: what a probe's `details()` gives; what its `read()` gives says less.
        gpu_source: the probe's name.
        docker_version: the engine's, where one starts the builds.
    """
    gpus = [_card(card) for card in cards]
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "cpu_limit": _cpu_limit(),
        "cpu_governor": _governor(),
        "numa_nodes": _numa_nodes(),
        "memory_mib": _memory_mib(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "os": _os_name(),
        "virtualisation": _virtualisation(),
        "python": platform.python_version(),
        "docker": docker_version,
        "driver": next((card["driver_version"] for card in gpus if "driver_version" in card), None),
        "cuda_driver": next((card["cuda_driver_version"] for card in gpus if "cuda_driver_version" in card), None),
        "gpu_source": gpu_source,
        "gpus": gpus,
    }


def _cards_of(host: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The cards of a host by UUID; of an old record, too."""
    return {str(card.get("uuid")): dict(card) for card in host.get("gpus") or ()}


def fingerprint(host: Mapping[str, JsonValue]) -> str:
    """16 hexadecimal digits over what makes measurements comparable: the cards with their settings, CPU, kernel, docker.

    What changes by itself (the link's present speed, temperatures, free memory) is left out, and so is what is unknown.
    """
    kept: dict[str, Any] = {key: host[key] for key in _COMPARABLE if host.get(key) is not None}
    kept["gpus"] = [
        {"uuid": uuid, **{key: _plain(card[key]) for key in _COMPARABLE_CARD if card.get(key) is not None}}
        for uuid, card in sorted(_cards_of(host).items())
    ]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """One spelling of a number, whoever read it."""
    return round(value) if isinstance(value, float) else value


def _words(value: Any, unit: str = "") -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case float():
            return f"{value:g}{unit}" if abs(value) < 1e5 else f"{value:.0f}{unit}"
        case _:
            return f"{value}{unit}"


def differences(then: Mapping[str, JsonValue], now: Mapping[str, JsonValue]) -> list[str]:
    """Why measurements of these two hosts must not be compared, a line each; empty where they may.

    What only one of the two says is no difference: it may have been recorded before there was such a key.
    """
    found = []
    for key, says in _COMPARABLE.items():
        was, is_now = then.get(key), now.get(key)
        if was is not None and is_now is not None and was != is_now:
            found.append(f"{says} {_words(was)} then, {_words(is_now)} now")
    # a limit that is gone, or new, is a difference, and None says that there is none
    if "cpu_limit" in then and "cpu_limit" in now and (then["cpu_limit"] is None) != (now["cpu_limit"] is None):
        limits = ["none" if host["cpu_limit"] is None else _words(host["cpu_limit"]) for host in (then, now)]
        found.append(f"CPU limit {limits[0]} then, {limits[1]} now")
    if "gpus" in then and "gpus" in now:
        found += _card_differences(_cards_of(then), _cards_of(now))
    return found


def _card_differences(then: Mapping[str, dict[str, Any]], now: Mapping[str, dict[str, Any]]) -> list[str]:
    found = []
    for missing, others, says in ((then, now, "is not there now"), (now, then, "was not there then")):
        found += [
            f"GPU {card.get('index', '?')} ({card.get('name', 'unknown')}, {uuid}) {says}"
            for uuid, card in missing.items()
            if uuid not in others
        ]
    drivers: set[str] = set()
    for uuid, card in now.items():
        was = then.get(uuid, {})
        for key, (says, unit) in _COMPARABLE_CARD.items():
            old, new = was.get(key), card.get(key)
            if old is None or new is None or _plain(old) == _plain(new):
                continue
            words = f"{f'{says} ' if says else ''}{_words(old, unit)} then, {_words(new, unit)} now"
            if key == "driver_version":
                drivers.add(words)  # one for all cards
            else:
                found.append(f"GPU {card.get('index', '?')} {words}")
    return sorted(drivers) + found


def model_fingerprint(model: ModelSpec | None) -> str:
    """A hash of the model folder: config.json's bytes, and the name and size of every file (not their bytes).

    A Hugging Face cache is known by repo and revision instead.
    """
    if model is None:
        return "none"
    digest = hashlib.sha256()
    if model.repo is not None:
        digest.update(f"{model.repo}@{model.revision}".encode())
        return digest.hexdigest()[:16]
    root = Path(model.path)
    for path in sorted(root.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
    config = root / "config.json"
    if config.is_file():
        digest.update(config.read_bytes())
    return digest.hexdigest()[:16]
