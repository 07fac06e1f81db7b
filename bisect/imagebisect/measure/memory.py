"""Free memory of a quiet server: read until it stands still."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagebisect.domain import CardMemory, Failure, JsonValue, Phase
from imagebisect.measure import validity
from imagebisect.measure.context import Context
from imagebisect.measure.sampling import sampling
from imagebisect.outcome import Cause
from imagebisect.vllm import failures
from imagebisect.vllm.aftermath import wait_for_end

SETTLED_MIB = 16.0
"""Reads of one card that differ by no more than this are one value."""

SETTLE_S = 30.0
"""How long a card may take to stand still."""

Reads = Sequence[tuple[CardMemory, ...]]


def by_uuid(reads: Reads) -> dict[str, list[CardMemory]]:
    """The reads of each card."""
    found: dict[str, list[CardMemory]] = {}
    for cards in reads:
        for card in cards:
            found.setdefault(card.uuid, []).append(card)
    return found


def _settled(reads: Reads) -> bool:
    sizes = [[card.free_mib for card in cards] for cards in by_uuid(reads).values()]
    return all(max(free) - min(free) <= SETTLED_MIB for free in sizes)


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """The last reads of a quiet server's cards, whether they agree, and why they say nothing of it, if so."""

    reads: Reads
    settled: bool
    failure: Failure | None = None


def read_until_settled(context: Context, *, samples: int, interval_s: float, deadline_s: float | None) -> Quiet:
    """Read the cards until the last `samples` reads agree.

    Ends early where nothing can be read or the server ended. A process of somebody else's that came onto the cards since
    the server was ready makes the host the one at fault (`gpu_busy`): what is free is no longer the server's doing.
    """
    with sampling(context.probe, own=context.own_pids, known=context.known_processes) as lowest:
        reads, settled = _read(context, samples=samples, interval_s=interval_s, deadline_s=deadline_s)
    failure = death_while_idle(context)
    foreign = validity.foreign_processes(lowest)
    if failure is None and foreign:
        failure = Failure(cause=Cause.GPU_BUSY, phase=Phase.REQUEST, message="; ".join(foreign))
    return Quiet(reads=reads, settled=settled, failure=failure)


def _read(context: Context, *, samples: int, interval_s: float, deadline_s: float | None) -> tuple[Reads, bool]:
    deadline = time.monotonic() + (deadline_s or SETTLE_S + samples * interval_s)
    reads: list[tuple[CardMemory, ...]] = []
    while True:
        cards = context.probe.read()
        if not cards or context.running.exit_state() is not None:
            return reads, False
        reads = [*reads, cards][-samples:]
        if len(reads) >= samples and _settled(reads):
            return reads, True
        if time.monotonic() + interval_s > deadline:
            return reads, False
        context.stop.wait(interval_s)


def medians(reads: Reads) -> dict[str, float]:
    """Free MiB of each card, by UUID."""
    return {uuid: statistics.median(card.free_mib for card in seen) for uuid, seen in by_uuid(reads).items()}


def as_json(card: CardMemory, *, free_mib: float | None = None) -> dict[str, JsonValue]:
    """One card for a measurement's samples, with the processes on it."""
    found: dict[str, JsonValue] = {
        "index": card.index,
        "uuid": card.uuid,
        "free_mib": card.free_mib if free_mib is None else free_mib,
        "total_mib": card.total_mib,
    }
    if card.processes:
        found["processes"] = [{"pid": pid, "used_mib": used} for pid, used in card.processes]
    return found


def in_order(reads: Reads, free: Mapping[str, float]) -> list[dict[str, JsonValue]]:
    """The cards as they stood, each with its settled free memory."""
    return [as_json(seen[-1], free_mib=free[uuid]) for uuid, seen in by_uuid(reads).items()]


def death_while_idle(context: Context) -> Failure | None:
    """Why the server ended while nobody asked it for anything; None when it lives."""
    if context.running.exit_state() is None:
        return None
    ended = wait_for_end(context.running, context.log, context.stop)
    return failures.classify(
        context.log, phase=Phase.REQUEST, exit_state=ended, observed="the server ended while it was idle"
    )
