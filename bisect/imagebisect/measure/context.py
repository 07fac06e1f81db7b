"""What a scenario needs of the start that it runs in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from imagebisect.domain import CardMemory, JsonValue, Server
from imagebisect.interrupt import StopFlag
from imagebisect.measure.gpu import GpuProbe
from imagebisect.progress import Progress
from imagebisect.runtime.base import Running


@dataclass(frozen=True, kw_only=True)
class Context:
    """A ready server and everything to measure it with.

    `baseline` holds the cards before the start (empty where they could not be read), `facts` what the log says
    and the metrics say of the server, `ready_s` the seconds to its first token, `request_s` the seconds one request
    round may take, `build` the name that progress shows, `own_pids` the server's processes where they are known,
    `known_processes` the (card index, pid) on the cards when it was ready,
    `has_metrics` whether /metrics could be read then, `secrets` what must not be written down.
    """

    running: Running
    url: str
    model_id: str
    endpoint: Literal["completions", "chat"]
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
    ready_s: float = 0.0
    own_pids: frozenset[int] = frozenset()
    known_processes: frozenset[tuple[int, int]] | None = None
    has_metrics: bool = False
    secrets: tuple[str, ...] = ()
