"""What a scenario is given of its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from imagebisect.domain import CardMemory, JsonValue, Server
from imagebisect.interrupt import StopFlag
from imagebisect.measure.gpu import GpuProbe
from imagebisect.progress import Progress
from imagebisect.runtime.base import Running


@dataclass(frozen=True, kw_only=True)
class Context:
    """One started server and what is known of it. `baseline` are its cards before the start, `request_s` a deadline."""

    running: Running
    url: str
    model_id: str
    endpoint: str
    seed: int
    vocab_size: int
    log: Path
    probe: GpuProbe
    baseline: tuple[CardMemory, ...]
    facts: Mapping[str, JsonValue]
    stop: StopFlag
    request_s: float
    progress: Progress
    build: str
    server: Server

    @property
    def chunk_tokens(self) -> int:
        """The most tokens of one forward pass, as the server said; 8192 where it did not."""
        said = self.facts.get("max_num_batched_tokens")
        return said if isinstance(said, int) and said > 0 else 8192
