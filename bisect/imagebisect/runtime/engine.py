"""The connection to a container engine: every call has a deadline, every error is one of ours."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from imagebisect.errors import EnvironmentFault
from imagebisect.outcome import Cause
from imagebisect.runtime import refusals

if TYPE_CHECKING:
    from docker import DockerClient

CALL_S = 60.0
"""How long one call may take; creating a container on a busy disk takes seconds."""

_LOCAL_HOSTS = (None, "localhost", "127.0.0.1", "::1")


def _endpoint() -> str | None:
    """The engine's address: DOCKER_HOST, or the current `docker context`; None is the default socket."""
    if os.environ.get("DOCKER_HOST"):
        return os.environ["DOCKER_HOST"]
    from docker.context import ContextAPI

    current = ContextAPI.get_current_context()
    host = current.Host if current is not None and current.name != "default" else None
    return str(host) if host else None


def connect(timeout_s: float = CALL_S) -> DockerClient:
    """A new connection; EnvironmentFault (daemon) where there is no engine. The caller closes it."""
    import docker
    from docker.errors import DockerException

    try:
        endpoint = _endpoint()
        if endpoint is not None:
            address = urlsplit(endpoint)
            if address.scheme == "ssh" or (address.scheme in {"tcp", "http", "https"} and address.hostname not in _LOCAL_HOSTS):
                raise EnvironmentFault(
                    f"docker runs on another machine ({address.hostname}), where we reach no port and no folder",
                    where=endpoint,
                    next_step="run bisect there; or unset DOCKER_HOST / choose `docker context use default`",
                    cause=Cause.ENGINE_REFUSED,
                )
        if endpoint is None or os.environ.get("DOCKER_HOST"):
            return docker.from_env(timeout=int(timeout_s))
        return docker.DockerClient(base_url=endpoint, timeout=int(timeout_s))
    except DockerException as error:
        raise refusals.silent_daemon(str(error), doing="connecting to docker") from error


@contextmanager
def answering(doing: str) -> Iterator[None]:
    """Turn a dead connection into EnvironmentFault (daemon). What the engine itself says (APIError) passes."""
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (RequestException, HTTPError) as error:
        # docker's APIError is a RequestException too: an answer, not a silence.
        if type(error).__module__.startswith("docker."):
            raise
        raise refusals.silent_daemon(str(error), doing=doing) from error


class Engine:
    """One engine, connected when it is first asked; its sockets are closed with it."""

    def __init__(self) -> None:
        self._client: DockerClient | None = None

    @property
    def client(self) -> DockerClient:
        """The connection. EnvironmentFault (daemon) where there is none."""
        if self._client is None:
            client = connect()
            with answering("connecting to docker"):
                client.ping()
            self._client = client
            weakref.finalize(self, client.close)
        return self._client
