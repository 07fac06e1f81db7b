"""HTTP clients for a server on this host."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


OK = 200

MOST_BYTES = 16 << 20
"""No answer that we ask for is longer; a scrape of /metrics has about 50 kB."""


def _no_certificates() -> ssl.SSLContext:
    # Servers are plain HTTP. httpx would otherwise read its certificates for each client: 20 ms of a busy core.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def one_shot_client(url: str, *, connections: int = 1, timeout: httpx.Timeout | None = None) -> httpx.AsyncClient:
    """A client whose every request has a connection of its own.

    A kept connection may be closed by the server (uvicorn does after 5 s) just as it is used again.
    """
    import httpx

    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=0)
    return httpx.AsyncClient(
        base_url=url,
        limits=limits,
        timeout=timeout,
        trust_env=False,
        verify=_no_certificates(),
        headers={"accept-encoding": "identity"},
    )


async def _text(url: str) -> str | None:
    body = bytearray()
    async with one_shot_client(url) as client, client.stream("GET", url) as answer:
        if answer.status_code != OK:
            return None
        # as it comes: what is packed may unpack to any size in one piece
        async for chunk in answer.aiter_raw():
            body += chunk
            if len(body) > MOST_BYTES:
                return None
    return body.decode("utf-8", errors="replace")


def get_text(url: str, *, timeout_s: float) -> str | None:
    """The body of a 200 answer that is whole within `timeout_s` and MOST_BYTES; None for any other answer or none.

    The deadline holds for the whole answer: one that drips, or says 100 Continue for ever, resets every read's own.
    Not for use inside an event loop.
    """
    import httpx

    try:
        return asyncio.run(asyncio.wait_for(_text(url), timeout_s))
    except (httpx.HTTPError, TimeoutError):
        return None
