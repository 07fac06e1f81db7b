"""One round of requests: C at once, timed by one clock, given up as soon as no answer can come."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import httpx

_T = TypeVar("_T")

WATCH_S = 0.1
CONNECT_S = 10.0

Guard = Callable[[], str | None]
"""Says why no answer will come any more, None while one may; may raise Interrupted."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back of one request. `seconds` on the client's clock; `status` None when nothing came."""

    status: int | None
    seconds: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Round:
    """All answers of a round. `seconds` is the makespan; `gave_up` says why it was broken off (`deadline`, or the guard's words)."""

    answers: tuple[Answer, ...]
    seconds: float
    gave_up: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every request was answered with 200."""
        return self.gave_up is None and all(answer.status == 200 for answer in self.answers)


def _usage(answer: httpx.Response) -> tuple[int | None, int | None]:
    try:
        usage = answer.json().get("usage") or {}
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError):
        return None, None
    counts = tuple(usage.get(key) for key in ("prompt_tokens", "completion_tokens"))
    return counts[0] if isinstance(counts[0], int) else None, counts[1] if isinstance(counts[1], int) else None


class Client:
    """One client of one server for all rounds of a scenario; use it as an async context manager."""

    def __init__(self, url: str, *, endpoint: str, widest: int) -> None:
        import httpx

        limits = httpx.Limits(max_connections=widest + 2, max_keepalive_connections=widest + 2)
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        self._http = httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits, trust_env=False)
        self._path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    async def metrics(self) -> str | None:
        """The text of /metrics, None when it cannot be had within 10 s."""
        import httpx

        try:
            answer = await self._http.get("/metrics", timeout=10.0)
        except httpx.HTTPError:
            return None
        return answer.text if answer.status_code == 200 else None

    async def _one(self, body: bytes) -> Answer:
        import httpx

        began = time.perf_counter()
        try:
            answer = await self._http.post(self._path, content=body, headers={"content-type": "application/json"})
        except httpx.HTTPError as error:
            return Answer(
                status=None, seconds=time.perf_counter() - began, text=f"{type(error).__name__}: {error}"[:500]
            )
        seconds = time.perf_counter() - began
        prompt, completion = _usage(answer)
        text = answer.text[:500] if answer.status_code != 200 else ""
        return Answer(
            status=answer.status_code, seconds=seconds, prompt_tokens=prompt, completion_tokens=completion, text=text
        )

    async def round(self, bodies: Sequence[bytes], *, deadline_s: float, guard: Guard) -> Round:
        """Send all bodies at once; the round ends with the last answer, the deadline, or the guard's word."""
        began = time.perf_counter()
        tasks = [asyncio.ensure_future(self._one(body)) for body in bodies]
        gave_up: str | None = None
        try:
            while not all(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=WATCH_S, return_when=asyncio.ALL_COMPLETED)
                if all(task.done() for task in tasks):
                    break
                gave_up = guard()
                if gave_up is None and time.perf_counter() - began > deadline_s:
                    gave_up = "deadline"
                if gave_up is not None:
                    break
            seconds = time.perf_counter() - began
        finally:
            for task in tasks:
                task.cancel()
            settled = await asyncio.gather(*tasks, return_exceptions=True)
        answers = tuple(
            found if isinstance(found, Answer) else Answer(status=None, seconds=seconds, text="no answer")
            for found in settled
        )
        if gave_up is None:
            seconds = max(answer.seconds for answer in answers) if len(answers) == 1 else seconds
        return Round(answers=answers, seconds=seconds, gave_up=gave_up)


def run(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run a scenario's rounds to their end."""

    async def main() -> _T:
        return await work()

    return asyncio.run(main())
