"""Pulling an image with progress, and giving up when no byte comes.

A registry that vanishes in mid-pull gives no error for a minute or more, and a blocked read cannot be told to
stop: the pull runs in a thread of its own that is left behind when time is up.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from docker.errors import APIError, DockerException
from requests.exceptions import RequestException

import docker
from imagebisect.domain import Failure, Phase
from imagebisect.errors import EnvironmentFault, StartFailed
from imagebisect.interrupt import StopFlag
from imagebisect.outcome import Cause
from imagebisect.runtime.base import PullProgress

_GONE = ("manifest unknown", "not found", "does not exist", "manifest for", "name unknown")
_FULL = ("no space left on device",)
_LIMIT = ("toomanyrequests", "pull rate limit", "too many requests")
_DENIED = ("unauthorized", "denied", "no basic auth credentials")


def failure_of(text: str, reference: str) -> EnvironmentFault | StartFailed:
    """Whose fault a failed pull is: the registry no longer has the image, or the host cannot get at it."""
    low = text.lower()
    if any(sign in low for sign in _LIMIT):
        return EnvironmentFault(
            f"the registry's pull limit is reached: {text[:200]}",
            where=reference,
            next_step="`docker login`, or wait for the limit to reset (Docker Hub: 6 hours), then `bisect resume`",
            cause=Cause.REGISTRY,
        )
    if any(sign in low for sign in _FULL):
        return EnvironmentFault(
            f"no disk space is left for the image: {text[:200]}",
            where=reference,
            next_step="remove images you do not need (`docker system df`), then `bisect resume`",
            cause=Cause.DISK_FULL,
        )
    if any(sign in low for sign in _DENIED):
        return EnvironmentFault(
            f"the registry refuses access: {text[:200]}",
            where=reference,
            next_step="`docker login` to that registry, then `bisect resume`",
            cause=Cause.ENGINE_REFUSED,
        )
    if any(sign in low for sign in _GONE):
        return StartFailed(
            Failure(
                cause=Cause.PULL_FAILED,
                phase=Phase.PULL,
                message=f"the registry no longer has {reference}: {text[:200]}",
            )
        )
    return EnvironmentFault(
        f"the image cannot be pulled: {text[:300]}",
        where=reference,
        next_step="check the network and the registry, then `bisect resume`",
        cause=Cause.REGISTRY,
    )


class _Layers:
    """Bytes over all layers of a pull, as the daemon reports them one by one."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}
        self._total: dict[str, int] = {}

    def take(self, item: Mapping[str, Any]) -> tuple[int, int | None]:
        """(bytes so far, bytes known of) after one report."""
        layer, detail = str(item.get("id", "")), item.get("progressDetail") or {}
        status = str(item.get("status", ""))
        if status == "Downloading" and isinstance(detail.get("current"), int):
            self._done[layer] = detail["current"]
            self._total[layer] = detail.get("total") or detail["current"]
        elif status in ("Download complete", "Pull complete") and layer in self._total:
            self._done[layer] = self._total[layer]
        return sum(self._done.values()), sum(self._total.values()) or None


def pull(reference: str, *, progress: PullProgress, stop: StopFlag, idle_s: float) -> int:
    """Pull by digest; the bytes that were downloaded.

    Raises StartFailed when the registry has no such image, EnvironmentFault for everything else that can go
    wrong, among it `idle_s` seconds without news.
    """
    news: queue.Queue[Mapping[str, Any] | Exception | None] = queue.Queue()

    def work() -> None:
        try:
            client = docker.from_env(timeout=max(int(idle_s) + 60, 120))
            try:
                for item in client.api.pull(reference, stream=True, decode=True):
                    news.put(item)
            finally:
                client.close()
            news.put(None)
        except (DockerException, RequestException, OSError) as error:
            news.put(error)

    threading.Thread(target=work, name="pull", daemon=True).start()
    layers, done = _Layers(), 0
    heard = time.monotonic()
    while True:
        stop.check()
        try:
            item = news.get(timeout=0.2)
        except queue.Empty:
            if time.monotonic() - heard > idle_s:
                raise EnvironmentFault(
                    f"no byte of the image came for {idle_s:.0f} s",
                    where=reference,
                    next_step="check the network and the registry, then `bisect resume`",
                    cause=Cause.REGISTRY,
                ) from None
            continue
        heard = time.monotonic()
        if item is None:
            return done
        if isinstance(item, APIError):
            raise failure_of(" ".join(str(item.explanation or item).split()), reference) from item
        if isinstance(item, Exception):
            raise EnvironmentFault(
                f"the docker daemon broke the pull off: {' '.join(str(item).split())[:200]}",
                where=reference,
                next_step="see the daemon's log, then `bisect resume`",
                cause=Cause.DAEMON,
            ) from item
        if "error" in item:
            raise failure_of(str(item["error"]), reference)
        done, total = layers.take(item)
        progress(done, total)
