"""`idle-memory`: what a server holds after boot, before any request of ours, on the worst of its cards."""

from __future__ import annotations

from typing import Any

from imagebisect.domain import CardMemory, IdleMemory, Measurement
from imagebisect.measure.context import Context

STILL_MIB = 8.0
"""Two reads that differ by less count as settled."""

MOST_READS = 60


def kv_pool_mib(context: Context) -> tuple[float | None, str | None]:
    """The KV pool on each card and where the number is from: the pinned bytes, or what the log offers."""
    for source, key, scale in (
        ("pinned bytes in the log", "kv_cache_bytes", 2.0**-20),
        ("available KV cache memory in the log", "available_kv_mib", 1.0),
    ):
        value = context.facts.get(key)
        if isinstance(value, (int, float)):
            return float(value) * scale, source
    return None, None


def _settled(scenario: IdleMemory, context: Context) -> list[tuple[CardMemory, ...]]:
    """Reads until the last `samples` of them agree on every card; all reads."""
    reads: list[tuple[CardMemory, ...]] = []
    while len(reads) < max(scenario.samples, MOST_READS):
        reads.append(context.probe.read())
        last = reads[-scenario.samples :]
        if not reads[-1]:
            return reads
        if len(last) == scenario.samples:
            frees = [[card.free_mib for card in read] for read in last]
            if len({len(free) for free in frees}) == 1 and all(
                max(column) - min(column) <= STILL_MIB for column in zip(*frees, strict=True)
            ):
                return reads
        context.stop.wait(scenario.interval_s)
    return reads


def measure(scenario: IdleMemory, context: Context) -> Measurement:
    """Free memory after boot and `non_kv_memory_mib` = free before - free idle - KV pool, in MiB, of the worst card.

    Where the cards could not be read before the start (they are only visible inside the container), the server's
    own `Initial free memory` stands in for it. What is missing leaves its metric out and says so in the samples.
    """
    reads = _settled(scenario, context)
    cards = reads[-1]
    pool, pool_source = kv_pool_mib(context)
    samples: dict[str, Any] = {
        "probe": context.probe.source,
        "free_mib": [[card.free_mib for card in read] for read in reads],
        "kv_pool_source": pool_source,
    }
    metrics: dict[str, float] = {}
    if pool is not None:
        metrics["kv_pool_mib"] = pool
    if not cards:
        samples["missing"] = "no card can be read"
        return Measurement(scenario=scenario.name, metrics=metrics, samples=samples)
    metrics["free_idle_mib"] = min(card.free_mib for card in cards)
    before = {card.uuid: card.free_mib for card in context.baseline}
    initial = context.facts.get("initial_free_mib")
    if before:
        samples["baseline_source"] = context.probe.source
    elif isinstance(initial, (int, float)):
        samples["baseline_source"] = "Initial free memory in the log"
        before = {card.uuid: float(initial) for card in cards}
    taken = [before[card.uuid] - card.free_mib for card in cards if card.uuid in before]
    if taken and pool is not None:
        metrics["non_kv_memory_mib"] = max(taken) - pool
    else:
        samples["missing"] = "the free memory before the start" if not taken else "the size of the KV pool"
    return Measurement(scenario=scenario.name, metrics=metrics, samples=samples)
