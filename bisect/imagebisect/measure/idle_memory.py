"""Idle memory: what a started server leaves free on each card before it is asked for anything of size."""

from __future__ import annotations

import statistics
import time

from imagebisect.domain import CardMemory, JsonValue, Measurement, Phase
from imagebisect.measure.context import Context
from imagebisect.scenario import IdleMemory
from imagebisect.vllm import failures
from imagebisect.vllm.aftermath import wait_for_end

SETTLED_MIB = 16.0
"""Reads of one card that differ by no more than this are one value."""

_SETTLE_S = 30.0
_MIB = 2.0**20


def _by_uuid(reads: list[tuple[CardMemory, ...]]) -> dict[str, list[CardMemory]]:
    found: dict[str, list[CardMemory]] = {}
    for cards in reads:
        for card in cards:
            found.setdefault(card.uuid, []).append(card)
    return found


def _settled(reads: list[tuple[CardMemory, ...]]) -> bool:
    sizes = [[card.free_mib for card in cards] for cards in _by_uuid(reads).values()]
    return all(max(free) - min(free) <= SETTLED_MIB for free in sizes)


def _read_until_settled(scenario: IdleMemory, context: Context) -> tuple[list[tuple[CardMemory, ...]], bool]:
    """The last `samples` reads, and whether they agree. Ends early where nothing can be read or the server ended."""
    deadline = time.monotonic() + (scenario.deadline_s or _SETTLE_S + scenario.samples * scenario.interval_s)
    reads: list[tuple[CardMemory, ...]] = []
    while True:
        cards = context.probe.read()
        if not cards or context.running.exit_state() is not None:
            return reads, False
        reads = [*reads, cards][-scenario.samples :]
        if len(reads) >= scenario.samples and _settled(reads):
            return reads, True
        if time.monotonic() + scenario.interval_s > deadline:
            return reads, False
        context.stop.wait(scenario.interval_s)


def kv_pool_mib(context: Context) -> tuple[float | None, str]:
    """MiB of one card's KV pool and where that is known from: the pinned bytes, else what vLLM found available."""
    pinned = context.facts.get("kv_cache_bytes")
    if isinstance(pinned, int | float):
        return pinned / _MIB, "kv_cache_memory_bytes"
    available = context.facts.get("available_kv_mib")
    if isinstance(available, int | float):
        return float(available), "available KV cache memory"
    return None, ""


def _before(card: CardMemory, context: Context) -> tuple[float | None, str]:
    """Free MiB of a card before the start, and who said so; the server's own first look if nobody else could."""
    for seen in context.baseline:
        if seen.uuid == card.uuid:
            return seen.free_mib, context.probe.source
    said = context.facts.get("initial_free_mib")
    if isinstance(said, int | float):
        return float(said), "log"
    return None, ""


def _as_json(card: CardMemory) -> dict[str, JsonValue]:
    return {"index": card.index, "uuid": card.uuid, "free_mib": card.free_mib, "total_mib": card.total_mib}


def measure(scenario: IdleMemory, context: Context) -> Measurement:
    """Read the cards until they stand still; the worst card counts. What cannot be known is left out and said."""
    began = time.monotonic()
    reads, settled = _read_until_settled(scenario, context)
    found: dict[str, float] = {}
    samples: dict[str, JsonValue] = {"gpu_source": context.probe.source, "settled": settled, "reads": len(reads)}
    failure = None
    if context.running.exit_state() is not None:
        ended = wait_for_end(context.running, context.log, context.stop)
        failure = failures.classify(
            context.log, phase=Phase.REQUEST, exit_state=ended, observed="the server ended while it was idle"
        )
    elif not reads:
        samples["missing"] = "no card of this server can be read on this host"
    pool, pool_source = kv_pool_mib(context)
    if pool is not None:
        found["kv_pool_mib"] = pool
        samples["kv_pool_source"] = pool_source
    if reads and failure is None:
        _weigh(_by_uuid(reads), context, pool, found, samples)
    return Measurement(
        scenario=scenario.name, metrics=found, samples=samples, failure=failure, seconds=time.monotonic() - began
    )


def _weigh(
    cards: dict[str, list[CardMemory]],
    context: Context,
    pool: float | None,
    found: dict[str, float],
    samples: dict[str, JsonValue],
) -> None:
    """Fill in the metrics: least free of any card, and most memory beside the KV pool of any card."""
    idle = {uuid: statistics.median(card.free_mib for card in seen) for uuid, seen in cards.items()}
    found["free_idle_mib"] = min(idle.values())
    samples["cards"] = [{**_as_json(seen[-1]), "free_mib": idle[uuid]} for uuid, seen in cards.items()]
    samples["before"] = [_as_json(card) for card in context.baseline]
    taken = []
    for uuid, seen in cards.items():
        before, source = _before(seen[-1], context)
        if before is None:
            samples["missing"] = "nobody knows how much was free before the start"
            return
        samples["baseline_source"] = source
        taken.append(before - idle[uuid])
    if pool is None:
        samples["missing"] = "the log does not say how large the KV pool is"
        return
    found["non_kv_memory_mib"] = max(taken) - pool
