"""GPU memory behind a protocol. Placeholder for the readers; see GpuProbe."""

from __future__ import annotations

from typing import Protocol

from imagebisect.domain import CardMemory


class GpuProbe(Protocol):
    """Reads the memory of the cards that a server uses."""

    source: str
    """`nvml`, `nvidia-smi`, `exec` or `none`; recorded with every measurement."""

    def read(self) -> tuple[CardMemory, ...]:
        """All cards of the server, in index order; empty where they cannot be read now."""
