"""What a scenario needs of the start that it runs in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from imagebisect.domain import CardMemory, JsonValue, Server
from imagebisect.interrupt import StopFlag
from imagebisect.measure.gpu import GpuProbe
from imagebisect.progress import Progress
from imagebisect.runtime.base import Running

if TYPE_CHECKING:
    from imagebisect.repetition import RepRule


@dataclass(frozen=True, kw_only=True)
class Context:
    """A ready server and everything to measure it with.

    `baseline` holds the cards before the start (empty where they could not be read), `facts` what the log says
    and the metrics say of the server, `ready_s` the seconds to its first token, `request_s` the seconds one request
    round may take, `build` the name that progress shows, `own_pids` the server's processes where they are known,
    `known_processes` the (card index, pid) on the cards when it was ready,
    `has_metrics` whether /metrics could be read then, `secrets` what must not be written down. `rep_rules` says by
    metric when a search has enough reps; None: as many as the scenario names.
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
    rep_rules: Mapping[str, RepRule] | None = None

    def enough_reps(self, seen: Mapping[str, Sequence[float]], most: int) -> bool:
        """Whether a group of reps may end: `seen` holds its metrics' values, a value a rep, `most` the scenario's reps.

        A metric that no open target asks for takes one rep.
        """
        count = max((len(values) for values in seen.values()), default=0)
        if count == 0 or count >= most or self.rep_rules is None:
            return count >= most
        for metric, rule in self.rep_rules.items():
            if metric in seen:
                if not rule.enough(seen[metric]):
                    return False
            elif not _GROUPED.match(metric) and count < rule.most:
                return False
        return True


_GROUPED = re.compile(r"[ct]\d+\.")
"""Metrics of one concurrency or one length; others are made of all groups together."""
