"""The numbers in an out-of-memory line, in every form that PyTorch has given it."""

from __future__ import annotations

import re

from imagebisect.domain import JsonValue

_UNITS_MIB = {
    "bytes": 1 / 2**20,
    "byte": 1 / 2**20,
    "B": 1 / 2**20,
    "KiB": 1 / 2**10,
    "MiB": 1.0,
    "GiB": 2.0**10,
    "TiB": 2.0**20,
}
_SIZE = r"(\d{1,20}(?:\.\d{1,6})?) ?(bytes?|B|KiB|MiB|GiB|TiB)\b"

_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_CAPACITY = re.compile(rf"GPU (\d+) has a total capacity of {_SIZE} of which {_SIZE} is free")
_OLD_CAPACITY = re.compile(rf"\(GPU (\d+); {_SIZE} total capacity;")
_OLD_FREE = re.compile(rf"; {_SIZE} free;")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_IN_USE = re.compile(rf"this process has {_SIZE} memory in use")
_PRIVATE = re.compile(rf"with {_SIZE} allocated in private pools")
_ALLOCATED = re.compile(rf"allocated memory {_SIZE} is allocated by PyTorch")
_RANK = re.compile(r"(?:rank|Worker\w{0,40}?_TP)(\d{1,6})(?!\d)")
_ALLOCATOR = re.compile(
    r"memory allocation failed with OOM on device (\d+) while trying to allocate (\d+) bytes"
    r" \(free: (\d+), total: (\d+)\)"
)


def mib(number: str, unit: str) -> float:
    """A size as PyTorch writes it, in MiB, to a hundredth."""
    return round(float(number) * _UNITS_MIB[unit], 2)


def details(text: str) -> dict[str, JsonValue]:
    """What was asked and what was free (`asked_mib`, `free_mib`, `capacity_gib`, `gpu`, ...); what is not said is left out."""
    found: dict[str, JsonValue] = {}
    hit = _ASKED.search(text)
    if hit:
        found["asked_mib"] = mib(hit[1], hit[2])
    hit = _CAPACITY.search(text)
    if hit:
        found["gpu"] = int(hit[1])
        found["capacity_gib"] = round(mib(hit[2], hit[3]) / 1024, 2)
        found["free_mib"] = mib(hit[4], hit[5])
    hit = _OLD_CAPACITY.search(text)
    if hit:
        found["gpu"] = int(hit[1])
        found["capacity_gib"] = round(mib(hit[2], hit[3]) / 1024, 2)
        free = _OLD_FREE.search(text)
        if free:
            found["free_mib"] = mib(free[1], free[2])
    hit = _UNALLOCATED.search(text)
    if hit:
        found["reserved_unallocated_mib"] = mib(hit[1], hit[2])
    hit = _IN_USE.search(text)
    if hit:
        found["process_gib"] = round(mib(hit[1], hit[2]) / 1024, 2)
    hit = _ALLOCATED.search(text)
    if hit:
        found["allocated_mib"] = mib(hit[1], hit[2])
    hit = _PRIVATE.search(text)
    if hit:
        found["private_pools_mib"] = mib(hit[1], hit[2])
    hit = _ALLOCATOR.search(text)
    if hit:
        found.setdefault("gpu", int(hit[1]))
        found.setdefault("asked_mib", mib(hit[2], "bytes"))
        found.setdefault("free_mib", mib(hit[3], "bytes"))
        found.setdefault("capacity_gib", round(mib(hit[4], "bytes") / 1024, 2))
    return found


def rank(process: str) -> int | None:
    """The tensor-parallel rank in a process's name (`Worker_TP1`, `rank1`), None where it has none."""
    hit = _RANK.search(process)
    return int(hit[1]) if hit else None


def sentence(found: dict[str, JsonValue]) -> str:
    """The numbers in words, e.g. `266.00 MiB wanted, 249.12 MiB free of 139.80 GiB on GPU 0`."""
    if "asked_mib" not in found:
        return "GPU memory ran out; the log does not say how much was wanted"
    words = f"{found['asked_mib']:.2f} MiB wanted"
    if "free_mib" in found:
        words += f", {found['free_mib']:.2f} MiB free"
        if "capacity_gib" in found:
            words += f" of {found['capacity_gib']:.2f} GiB"
    if "gpu" in found:
        words += f" on GPU {found['gpu']}"
    elif "rank" in found:
        words += f" on rank {found['rank']}"
    return words
