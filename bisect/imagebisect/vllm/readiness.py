"""Waiting until a started server has generated its first token, or is known never to.

Ready means: `/health` says 200, `/v1/models` lists a model, one token was generated. The server's end,
a fatal log line or the deadline ends the wait at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from imagebisect.domain import Phase
from imagebisect.errors import StartFailed
from imagebisect.interrupt import StopFlag
from imagebisect.outcome import Cause
from imagebisect.runtime.base import Running
from imagebisect.vllm import failures, loglines
from imagebisect.vllm.aftermath import DYING_S, wait_for_end
from imagebisect.vllm.logtail import LogTail
from imagebisect.vllm.transport import one_shot_client

if TYPE_CHECKING:
    import httpx

FIRST_TOKEN_IDS = tuple(range(20, 28))
"""The prompt of the first request: ids below those that scenarios use, so that it shares no prefix with them."""

_WATCH_S = 0.1
_PROGRESS_S = 1.0
_ANSWER_S = 5.0
"""A live server answers `/health` within this; one that does not is asked again."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A server that answers. `boot_s` counts from the call to the first token; `model_id` is what requests must name."""

    boot_s: float
    model_id: str
    version: str | None


class _GiveUpError(Exception):
    """No token will come. `dying` says that the server is ending or ought to be."""

    def __init__(self, seen: str, *, cause: Cause, dying: bool) -> None:
        super().__init__(seen)
        self.seen = seen
        self.cause = cause
        self.dying = dying


class _Watch:
    """Looks at everything that can end the wait."""

    def __init__(
        self, running: Running, log: Path, boot_s: float, stop: StopFlag, on_progress: Callable[[str], None]
    ) -> None:
        self.running = running
        self.tail = LogTail(log)
        self.began = time.monotonic()
        self.boot_s = boot_s
        self.stop = stop
        self.on_progress = on_progress
        self.stage = "no answer from /health"
        self.phase = Phase.BOOT
        self._told_at = 0.0
        self._told = ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def last_line(self) -> str:
        """The log's last line without its dress, shortened."""
        return loglines.undress(self.tail.last_line).text.strip()[:200]

    def check(self) -> None:
        """Raise when the wait is over: stopped, ended, fatal line, or deadline."""
        self.stop.check()
        ended = self.running.exit_state()
        fatal = next((line for line in self.tail.new_lines() if failures.is_fatal(line)), None)
        if ended is not None:
            raise _GiveUpError(f"the server ended while it started ({self.stage})", cause=Cause.UNKNOWN, dying=True)
        if fatal is not None:
            said = loglines.undress(fatal).text.strip()[:200]
            raise _GiveUpError(f"the log says: {said}", cause=Cause.CRASH, dying=True)
        if self.seconds > self.boot_s:
            seen = f"not ready after {self.boot_s:.0f} s ({self.stage}); the log's last line: {self.last_line()!r}"
            raise _GiveUpError(seen, cause=Cause.READY_TIMEOUT, dying=False)
        self._tell()

    def _tell(self) -> None:
        line = self.last_line()
        now = time.monotonic()
        if line and line != self._told and now - self._told_at >= _PROGRESS_S:
            self._told, self._told_at = line, now
            self.on_progress(line[:120])


async def _watched(watch: _Watch, answer: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Await an answer while the watch looks on; whatever the watch raises cancels it."""
    task = asyncio.ensure_future(answer)
    try:
        while True:
            watch.check()
            done, _ = await asyncio.wait({task}, timeout=_WATCH_S)
            if done:
                return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def _pause_s(seconds: float) -> float:
    return 0.05 if seconds < 3.0 else 0.2


async def _pause(watch: _Watch) -> None:
    await asyncio.sleep(_pause_s(watch.seconds))
    watch.check()


async def _get(client: httpx.AsyncClient, path: str) -> httpx.Response | None:
    """The answer, or None for "not yet": refused, cut off (docker's proxy accepts before the server listens), slow."""
    import httpx

    try:
        return await client.get(path, timeout=_ANSWER_S)
    except httpx.HTTPError:
        return None


def _first_model(answer: httpx.Response | None) -> str | None:
    if answer is None or answer.status_code != 200:
        return None
    try:
        return str(answer.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None


async def _version(client: httpx.AsyncClient) -> str | None:
    answer = await _get(client, "/version")
    try:
        return None if answer is None else str(answer.json()["version"])
    except (ValueError, KeyError, TypeError):
        return None


async def _first_token(client: httpx.AsyncClient, model_id: str) -> None:
    """Generate one token. The first request compiles kernels, so only the boot deadline limits it."""
    import httpx

    body = {"model": model_id, "prompt": list(FIRST_TOKEN_IDS), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    try:
        answer = await client.post(
            "/v1/completions",
            content=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
            timeout=httpx.Timeout(None, connect=10.0),
        )
    except httpx.HTTPError as error:
        seen = f"the first request was cut off: {type(error).__name__} {error}".strip()
        raise _GiveUpError(seen, cause=Cause.REQUEST_FAILED, dying=True) from error
    if answer.status_code != 200:
        seen = f"the first request was answered HTTP {answer.status_code}: {answer.text[:300]}"
        raise _GiveUpError(seen, cause=Cause.REQUEST_FAILED, dying=answer.is_server_error)


async def _wait(watch: _Watch) -> Ready:
    async with one_shot_client(watch.running.url) as client:
        while True:
            answer = await _watched(watch, _get(client, "/health"))
            if answer is not None and answer.status_code == 200:
                break
            if answer is not None:
                watch.stage = f"/health says {answer.status_code}"
            await _pause(watch)
        watch.stage = "healthy, but no model listed"
        while (model_id := _first_model(await _watched(watch, _get(client, "/v1/models")))) is None:
            await _pause(watch)
        watch.stage, watch.phase = "healthy, but no token generated", Phase.REQUEST
        await _watched(watch, _first_token(client, model_id))
        boot_s = watch.seconds
        return Ready(boot_s=boot_s, model_id=model_id, version=await _watched(watch, _version(client)))


def wait_ready(
    running: Running, *, log: Path, boot_s: float, stop: StopFlag, on_progress: Callable[[str], None]
) -> Ready:
    """Wait until a started server generated its first token.

    Args:
        running: the started server.
        log: its output, followed while waiting.
        boot_s: seconds it may take.
        stop: ends the wait with Interrupted.
        on_progress: told the log's last line about once a second.

    Raises:
        StartFailed: it ended, its log has a fatal line, the first request failed, or `boot_s` is over.
        Interrupted: a stop was asked for.
    """
    watch = _Watch(running, log, boot_s, stop, on_progress)
    try:
        return asyncio.run(_wait(watch))
    except _GiveUpError as given_up:
        limit_s = DYING_S if given_up.dying else 0.0
        ended = wait_for_end(running, log, stop, limit_s=limit_s)
        phase = Phase.BOOT if given_up.cause is Cause.READY_TIMEOUT else watch.phase
        failure = failures.classify(log, phase=phase, exit_state=ended, observed=given_up.seen, fallback=given_up.cause)
        raise StartFailed(failure) from given_up
