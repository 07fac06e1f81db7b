"""A server on loopback that answers every connection with given bytes, HTTP or not."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator


@contextlib.contextmanager
def answering(answer: Callable[[], Iterable[bytes]], *, life_s: float = 5.0) -> Iterator[str]:
    """Its address. Each connection gets what `answer()` gives, piece by piece, and is closed.

    None outlives the block or `life_s`, so that a client that never gives up is seen and not waited for.
    """
    over = threading.Event()
    connections: list[socket.socket] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            connections.append(self.request)
            with contextlib.suppress(OSError):
                self.request.settimeout(life_s)
                deadline = time.monotonic() + life_s
                self.request.recv(65536)
                for piece in answer():
                    if over.is_set() or time.monotonic() > deadline:
                        return
                    self.request.sendall(piece)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            over.set()
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            server.shutdown()
            thread.join(5)
