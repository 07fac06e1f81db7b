"""HTTP clients for a server on this host."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


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
    return httpx.AsyncClient(base_url=url, limits=limits, timeout=timeout, trust_env=False, verify=_no_certificates())


def get_text(url: str, *, timeout_s: float) -> str | None:
    """The body of a 200 answer that is whole within `timeout_s` and MOST_BYTES; None for any other answer or none."""
    import httpx

    deadline = time.monotonic() + timeout_s
    body = bytearray()
    try:
        with (
            httpx.Client(timeout=timeout_s, trust_env=False, verify=_no_certificates()) as client,
            client.stream("GET", url) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                return None
            for chunk in answer.iter_bytes():
                body += chunk
                if time.monotonic() > deadline or len(body) > MOST_BYTES:
                    return None
    except httpx.HTTPError:
        return None
    return body.decode("utf-8", errors="replace")
