"""One round of requests: all sent at once, timed on the client's clock, given up at once when the server dies."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imagebisect.vllm.transport import MOST_BYTES, OK, one_shot_client

if TYPE_CHECKING:
    import httpx

WATCH_S = 0.1
"""How often the guard looks while requests run."""

CONNECT_S = 10.0
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One request's end. `status` None: no answer came, `error` says why. Times are on one monotonic clock, in s."""

    status: int | None
    sent: float
    ended: float
    text: str = ""
    error: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def seconds(self) -> float:
        """From just before sending to the whole answer."""
        return self.ended - self.sent


@dataclass(frozen=True, kw_only=True)
class Round:
    """What came of one round. `cut` says why it was given up early, `late` that the deadline did it."""

    answers: tuple[Answer, ...]
    cut: str | None = None
    late: bool = False

    @property
    def seconds(self) -> float:
        """The makespan: from the first request sent to the last answer read."""
        return max(a.ended for a in self.answers) - min(a.sent for a in self.answers)

    @property
    def ended(self) -> float:
        """When the last answer was read, on `time.perf_counter`."""
        return max(a.ended for a in self.answers)

    @property
    def complete(self) -> bool:
        """Whether every request was answered 200."""
        return self.cut is None and not self.late and all(a.status == OK for a in self.answers)


Guard = Callable[[], str | None]
"""Says why a round is pointless now (the server ended, a fatal log line), or None. May raise Interrupted."""


def _count(usage: Any, *path: str) -> int | None:
    for key in path:
        usage = usage.get(key) if isinstance(usage, dict) else None
    sane = isinstance(usage, int) and not isinstance(usage, bool) and abs(usage) < 2**53
    return usage if sane else None


def _usage(content: bytes) -> dict[str, int | None]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    usage = answer.get("usage") if isinstance(answer, dict) else None
    return {
        "prompt_tokens": _count(usage, "prompt_tokens"),
        "completion_tokens": _count(usage, "completion_tokens"),
        "cached_tokens": _count(usage, "prompt_tokens_details", "cached_tokens"),
    }


async def _ask(client: httpx.AsyncClient, path: str, body: bytes) -> Answer:
    import httpx

    sent = time.perf_counter()
    try:
        async with client.stream("POST", path, content=body, headers={"content-type": "application/json"}) as answer:
            content = bytearray()
            async for chunk in answer.aiter_raw():
                content += chunk
                if len(content) > MOST_BYTES:
                    return Answer(status=None, sent=sent, ended=time.perf_counter(), error="an answer without end")
    except httpx.HTTPError as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        return Answer(status=None, sent=sent, ended=time.perf_counter(), error=said)
    except asyncio.CancelledError:
        return Answer(status=None, sent=sent, ended=time.perf_counter(), error="given up")
    ended = time.perf_counter()
    if answer.status_code != OK:
        return Answer(
            status=answer.status_code, sent=sent, ended=ended, text=content[:8000].decode("utf-8", "replace")[:2000]
        )
    return Answer(status=OK, sent=sent, ended=ended, **_usage(bytes(content)))  # type: ignore[arg-type]


async def _round(url: str, path: str, bodies: Sequence[bytes], *, guard: Guard, deadline_s: float) -> Round:
    import httpx

    timeout = httpx.Timeout(None, connect=CONNECT_S)
    async with one_shot_client(url, connections=len(bodies), timeout=timeout) as client:
        cut, late = None, False
        tasks = [asyncio.create_task(_ask(client, path, body)) for body in bodies]
        deadline = time.perf_counter() + deadline_s
        try:
            pending: set[asyncio.Task[Answer]] = set(tasks)
            while pending and cut is None and not late:
                _, pending = await asyncio.wait(pending, timeout=WATCH_S)
                if pending:
                    # In a thread, since asking a container engine takes milliseconds that belong to the answers.
                    cut = await asyncio.to_thread(guard)
                    late = time.perf_counter() > deadline
        finally:
            for task in tasks:
                task.cancel()
            answers = await asyncio.gather(*tasks)
        return Round(answers=tuple(answers), cut=cut, late=late and cut is None)


def send(url: str, bodies: Sequence[bytes], *, endpoint: str, guard: Guard, deadline_s: float) -> Round:
    """Send all bodies at once and wait for all answers.

    Args:
        url: the server.
        bodies: encoded requests; their number is the concurrency.
        endpoint: `completions` or `chat`.
        guard: asked every 0.1 s; a reason ends the round at once.
        deadline_s: seconds until the round is given up.

    Raises:
        Interrupted: the guard was told to stop.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return asyncio.run(_round(url, _PATHS[endpoint], bodies, guard=guard, deadline_s=deadline_s))
    finally:
        if collecting:
            gc.enable()
