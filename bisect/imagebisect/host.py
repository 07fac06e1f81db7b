"""This host as a reader of a report needs it: hardware and versions, no names."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from imagebisect.domain import CardMemory, JsonValue, ModelSpec


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _memory_mib() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (OSError, ValueError):
        return None


def host_info(cards: Sequence[CardMemory] = (), *, gpu_source: str = "none") -> dict[str, JsonValue]:
    """CPU, memory, kernel, Python and the cards. Reads no network and starts nothing."""
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_mib": _memory_mib(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "gpu_source": gpu_source,
        "gpus": [{"index": c.index, "uuid": c.uuid, "name": c.name, "total_mib": c.total_mib} for c in cards],
    }


def fingerprint(host: dict[str, JsonValue]) -> str:
    """A hash of what makes measurements of two hosts comparable: the CPU and the cards, each by its UUID."""
    kept = {key: host.get(key) for key in ("cpu", "cpus", "architecture", "gpus")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


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
