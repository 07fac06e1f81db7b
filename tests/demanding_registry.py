"""A small real HTTP server with what a registry on loopback does not have: logins, token services, limits, faults."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from registry_content import DOCKER_MANIFEST, digest_of, image_content


@dataclass
class Asked:
    """One request as it came in."""

    method: str
    path: str
    query: dict[str, list[str]]
    authorization: str
    body: str


@dataclass
class Answer:
    """What to answer; a `hang_up` closes the connection without a word."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False


@dataclass
class Server:
    """The server's address, everything it was asked, and the rule by which it answers."""

    address: str
    rule: Callable[[Asked], Answer]
    asked: list[Asked] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """Paths in the order they were asked."""
        return [asked.path for asked in self.asked]


@contextlib.contextmanager
def serve(rule: Callable[[Asked], Answer]) -> Iterator[Server]:
    """Run it on a free port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def answer(self) -> None:
            parts = urlsplit(self.path)
            asked = Asked(
                method=self.command,
                path=parts.path,
                query=parse_qs(parts.query),
                authorization=self.headers.get("Authorization", ""),
                body=self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode(),
            )
            server.asked.append(asked)
            answer = server.rule(asked)
            self.close_connection = True
            if answer.hang_up:
                return
            self.send_response(answer.status)
            for name, value in {
                "Content-Length": str(len(answer.body)),
                "Connection": "close",
                **answer.headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_HEAD = do_POST = answer  # noqa: N815 - the standard library's names

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(f"127.0.0.1:{http.server_port}", rule)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


_, CONFIG, MANIFEST = image_content("only", architecture="amd64")


def content(asked: Asked) -> Answer:
    """The one image that every tag names."""
    if "/manifests/" in asked.path:
        return Answer(
            body=MANIFEST, headers={"Content-Type": DOCKER_MANIFEST, "Docker-Content-Digest": digest_of(MANIFEST)}
        )
    if "/blobs/" in asked.path:
        return Answer(body=CONFIG)
    return Answer(404)


def as_json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """A JSON answer."""
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})


def basic(user: str, password: str) -> str:
    """An Authorization header of the Basic kind."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
