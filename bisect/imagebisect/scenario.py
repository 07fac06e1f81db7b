"""What is done to a started server: one value class a scenario kind, and the metrics that each yields.

A new kind is a class here, an entry in `config/schema.py`, and a module in `measure/`. Units are in the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

VARIANT_MARK = "@"
"""Parts a scenario's name from the variant that a copy of it runs on; no name in a suite holds it."""


class MetricKind(StrEnum):
    """How values of a metric compare: by ratio, by difference, or as an event."""

    RATIO = "ratio"
    LEVEL = "level"
    EVENT = "event"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that a scenario yields. `name` is what measurements call it, e.g. `c1.prefill_tok_s`."""

    name: str
    unit: str
    kind: MetricKind


@dataclass(frozen=True, kw_only=True)
class IdleMemory:
    """Free memory of each card after boot, before any request of ours."""

    kind: Literal["idle-memory"] = "idle-memory"
    name: str
    on: str
    samples: int = 5
    interval_s: float = 1.0
    deadline_s: float | None = None

    def metrics(self) -> tuple[Metric, ...]:
        """Memory in MiB: the worst card of the server's."""
        return (
            Metric(name="non_kv_memory_mib", unit="MiB", kind=MetricKind.LEVEL),
            Metric(name="free_idle_mib", unit="MiB", kind=MetricKind.LEVEL),
            Metric(name="kv_pool_mib", unit="MiB", kind=MetricKind.LEVEL),
            Metric(name="kv_pool_blocks", unit="", kind=MetricKind.LEVEL),
            Metric(name="kv_pool_tokens", unit="", kind=MetricKind.LEVEL),
        )


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """Prompts of exactly `prompt_tokens` token ids, one output token, at each concurrency."""

    kind: Literal["prefill"] = "prefill"
    name: str
    on: str
    prompt_tokens: int
    concurrency: tuple[int, ...] = (1,)
    reps: int = 3
    deadline_s: float | None = None

    def metrics(self) -> tuple[Metric, ...]:
        """Prompt tokens over the makespan, in tok/s, for each concurrency."""
        return (
            *(Metric(name=f"c{c}.prefill_tok_s", unit="tok/s", kind=MetricKind.RATIO) for c in self.concurrency),
            Metric(name="min_free_mib", unit="MiB", kind=MetricKind.LEVEL),
        )


@dataclass(frozen=True, kw_only=True)
class Decode:
    """Short prompts, `output_tokens` generated, at each concurrency."""

    kind: Literal["decode"] = "decode"
    name: str
    on: str
    prompt_tokens: int = 512
    output_tokens: int = 256
    concurrency: tuple[int, ...] = (1,)
    reps: int = 3
    deadline_s: float | None = None

    def metrics(self) -> tuple[Metric, ...]:
        """Combined output tok/s, and seconds per output token after the first."""
        found: list[Metric] = []
        for c in self.concurrency:
            found.append(Metric(name=f"c{c}.decode_tok_s", unit="tok/s", kind=MetricKind.RATIO))
            found.append(Metric(name=f"c{c}.output_token_s", unit="s", kind=MetricKind.RATIO))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class OomProbe:
    """A ladder of (prompt tokens, concurrency) rungs; does the server live through it?"""

    kind: Literal["oom-probe"] = "oom-probe"
    name: str
    on: str
    ladder: tuple[tuple[int, int], ...]
    repeats: int = 1
    deadline_s: float | None = None

    def metrics(self) -> tuple[Metric, ...]:
        """`survived` is 1.0 or 0.0; free memory of the worst card while it ran."""
        return (
            Metric(name="survived", unit="", kind=MetricKind.EVENT),
            Metric(name="min_free_mib", unit="MiB", kind=MetricKind.LEVEL),
        )


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Prefill at several lengths in one start, for effects that grow with length; `prompt_tokens` ascend."""

    kind: Literal["ladder"] = "ladder"
    name: str
    on: str
    prompt_tokens: tuple[int, ...]
    concurrency: int = 1
    reps: int = 2
    deadline_s: float | None = None

    def metrics(self) -> tuple[Metric, ...]:
        """Prompt tok/s at each length, and how much of the shortest one's speed is left at the longest."""
        return (
            *(Metric(name=f"t{n}.prefill_tok_s", unit="tok/s", kind=MetricKind.RATIO) for n in self.prompt_tokens),
            Metric(name="long_over_short", unit="", kind=MetricKind.RATIO),
            Metric(name="min_free_mib", unit="MiB", kind=MetricKind.LEVEL),
        )


@dataclass(frozen=True, kw_only=True)
class Startup:
    """How long the start itself took: to the first token, and the parts that the log states."""

    kind: Literal["startup"] = "startup"
    name: str
    on: str
    deadline_s: float | None = None

    def metrics(self) -> tuple[Metric, ...]:
        """Seconds. `ready_s` is on our clock, the parts are the server's own."""
        names = ("ready_s", "load_s", "compile_s", "graph_s", "init_engine_s")
        return tuple(Metric(name=name, unit="s", kind=MetricKind.RATIO) for name in names)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Free memory before and after `rounds` rounds of requests, each time settled: what load leaves behind."""

    kind: Literal["growth"] = "growth"
    name: str
    on: str
    prompt_tokens: int = 4096
    output_tokens: int = 64
    concurrency: int = 1
    rounds: int = 10
    samples: int = 5
    interval_s: float = 1.0
    deadline_s: float | None = None

    def metrics(self) -> tuple[Metric, ...]:
        """MiB that the worst card lost between its idle states before and after the load."""
        return (
            Metric(name="growth_mib", unit="MiB", kind=MetricKind.LEVEL),
            Metric(name="free_after_mib", unit="MiB", kind=MetricKind.LEVEL),
            Metric(name="min_free_mib", unit="MiB", kind=MetricKind.LEVEL),
        )


@dataclass(frozen=True, kw_only=True)
class Command:
    """Any program against the running server. `prints` names the number on its last line, else its exit code counts.

    Exit code 0 passed, 125 cannot be told (skip), any other failed. 126 and 127 (it cannot be run) stop the run.
    `worse` (`lower` or `higher`) is the direction of a printed number where no target says it.
    """

    kind: Literal["command"] = "command"
    name: str
    on: str
    run: tuple[str, ...]
    folder: str = "."
    prints: Metric | None = None
    worse: str | None = None
    deadline_s: float | None = None

    def metrics(self) -> tuple[Metric, ...]:
        """The printed number, or `passed` (1.0 or 0.0)."""
        return (self.prints or Metric(name="passed", unit="", kind=MetricKind.EVENT),)


Scenario = IdleMemory | Startup | Prefill | Ladder | Decode | Growth | Command | OomProbe


def scenario_order(scenario: Scenario) -> tuple[int, int, str]:
    """Sort key of the order inside a start: short to long, and what may kill the server comes last."""
    match scenario:
        case IdleMemory():
            return (0, 0, scenario.name)
        case Startup():
            return (1, 0, scenario.name)
        case Prefill():
            return (2, scenario.prompt_tokens, scenario.name)
        case Ladder():
            return (2, scenario.prompt_tokens[-1], scenario.name)
        case Decode():
            return (3, scenario.output_tokens, scenario.name)
        case Growth():
            return (4, scenario.prompt_tokens * scenario.rounds, scenario.name)
        case Command():
            return (5, 0, scenario.name)
        case OomProbe():
            return (6, max(tokens * c for tokens, c in scenario.ladder), scenario.name)
