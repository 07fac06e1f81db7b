"""Idle memory: what a started server leaves free on each card before it is asked for anything of size."""

from __future__ import annotations

import time

from imagebisect.domain import CardMemory, JsonValue, Measurement
from imagebisect.measure import memory
from imagebisect.measure.context import Context
from imagebisect.scenario import IdleMemory

_MIB = 2.0**20


def _before(card: CardMemory, context: Context) -> tuple[float | None, str]:
    """Free MiB of a card before the start, and who said so; the server's own first look if nobody else could."""
    for seen in context.baseline:
        if seen.uuid == card.uuid:
            return seen.free_mib, context.probe.source
    said = context.facts.get("initial_free_mib")
    if isinstance(said, int | float):
        return float(said), "log"
    return None, ""


def _pool(context: Context, found: dict[str, float], samples: dict[str, JsonValue]) -> float | None:
    """Fill in the KV pool in MiB, blocks and tokens, as far as known; its MiB."""
    facts = context.facts
    size = facts.get("kv_pool_bytes")
    if isinstance(size, int | float):
        found["kv_pool_mib"] = size / _MIB
    for name in ("kv_pool_blocks", "kv_pool_tokens"):
        value = facts.get(name)
        if isinstance(value, int | float):
            found[name] = float(value)
    for name in ("kv_pool_bytes_source", "kv_pool_tokens_source"):
        if name in facts:
            samples[name] = facts[name]
    return found.get("kv_pool_mib")


def measure(scenario: IdleMemory, context: Context) -> Measurement:
    """Read the cards until they stand still; the worst card counts. What cannot be known is left out and said."""
    began = time.monotonic()
    quiet = memory.read_until_settled(
        context, samples=scenario.samples, interval_s=scenario.interval_s, deadline_s=scenario.deadline_s
    )
    found: dict[str, float] = {}
    reads, failure = quiet.reads, quiet.failure
    samples: dict[str, JsonValue] = {
        "gpu_source": context.probe.source,
        "settled": quiet.settled,
        "reads": len(reads),
    }
    if failure is None and not reads:
        samples["missing"] = "no card of this server can be read on this host"
    pool = _pool(context, found, samples)
    if reads and failure is None:
        _weigh(reads, context, pool, found, samples)
    return Measurement(
        scenario=scenario.name, metrics=found, samples=samples, failure=failure, seconds=time.monotonic() - began
    )


def _weigh(
    reads: memory.Reads,
    context: Context,
    pool: float | None,
    found: dict[str, float],
    samples: dict[str, JsonValue],
) -> None:
    """Fill in the metrics: least free of any card, and most memory beside the KV pool of any card."""
    idle = memory.medians(reads)
    found["free_idle_mib"] = min(idle.values())
    samples["cards"] = memory.in_order(reads, idle)
    samples["before"] = [memory.as_json(card) for card in context.baseline]
    taken = []
    for uuid, seen in memory.by_uuid(reads).items():
        before, source = _before(seen[-1], context)
        if before is None:
            samples["missing"] = "nobody knows how much was free before the start"
            return
        samples["baseline_source"] = source
        taken.append(before - idle[uuid])
    if pool is None:
        samples["missing"] = "neither the log nor the metrics say how large the KV pool is"
        return
    found["non_kv_memory_mib"] = max(taken) - pool
