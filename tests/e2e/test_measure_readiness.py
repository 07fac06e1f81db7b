"""Waiting for a server: the stand-in as a process, and small odd servers that do what docker's proxy does."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
from types import SimpleNamespace

import pytest

import started
from imagebisect.domain import Phase
from imagebisect.errors import Interrupted, StartFailed
from imagebisect.interrupt import StopFlag
from imagebisect.outcome import Cause
from imagebisect.vllm import readiness


def failed(folder, profile, *, boot_s=5.0):
    """The failure of a start, and how long it took to be known."""
    with started.running(folder, profile) as server:
        began = time.monotonic()
        with pytest.raises(StartFailed) as caught:
            started.wait(server, boot_s=boot_s)
        return caught.value.failure, time.monotonic() - began


def test_a_healthy_server_is_ready_with_its_name_and_version(tmp_path):
    """The model's id and the version come from the server itself; the boot time covers the first token."""
    told = []
    with started.running(tmp_path, {"boot_s": 1.5, "version": "0.30.1"}) as server:
        ready = readiness.wait_ready(
            server, log=server.spec.log_path, boot_s=20, stop=StopFlag(), on_progress=told.append
        )

    assert ready.version == "0.30.1"
    assert ready.model_id
    assert 1.4 < ready.boot_s < 5
    assert told


@pytest.mark.parametrize(
    ("profile", "cause", "words"),
    [
        ({"unknown_flags": ["--max-num-seqs"]}, Cause.UNKNOWN_FLAG, "--max-num-seqs"),
        ({"import_error": "cannot import name 'x'"}, Cause.IMPORT_ERROR, "cannot import name"),
        ({"unsupported_architecture": "Qwen9"}, Cause.UNSUPPORTED_ARCHITECTURE, "Qwen9"),
        ({"oom_at_start": True}, Cause.OOM_AT_START, "MiB wanted"),
        ({"port_in_use": True}, Cause.PORT, "port"),
        ({"boot_exit_code": 3}, Cause.UNKNOWN, "exit code 3"),
        ({"crash_at_request_from_tokens": 0}, Cause.CRASH, "NotImplementedError"),
        ({"refuse_from_tokens": 0}, Cause.REQUEST_FAILED, "HTTP 400"),
        ({"killed_at_request_from_tokens": 0}, Cause.KILLED, "signal 9"),
    ],
)
def test_a_start_that_fails_is_known_at_once_and_named(tmp_path, profile, cause, words):
    """No boot deadline is waited for where the process or its log has said enough."""
    failure, seconds = failed(tmp_path, profile, boot_s=60.0)

    assert failure.cause == cause
    assert words in failure.message
    assert seconds < 15


def test_a_server_that_never_gets_ready_times_out_with_its_last_words(tmp_path):
    """The message says how far the log got."""
    failure, seconds = failed(tmp_path, {"never_ready": True}, boot_s=1.5)

    assert (failure.cause, failure.phase) == (Cause.READY_TIMEOUT, Phase.BOOT)
    assert "not ready after 2 s" in failure.message
    assert "last line: ''" not in failure.message
    assert 1.4 < seconds < 4


def test_healthy_without_a_token_is_not_ready(tmp_path):
    """`/health` and the list of models are not enough."""
    failure, _ = failed(tmp_path, {"stuck_from_tokens": 0}, boot_s=2.0)

    assert failure.cause == Cause.READY_TIMEOUT
    assert "no token generated" in failure.message


def test_a_stop_ends_the_wait(tmp_path):
    """Ctrl-C during a boot of minutes."""
    stop = StopFlag()
    with started.running(tmp_path, {"never_ready": True}) as server:
        timer = threading.Timer(0.4, stop.set)
        timer.start()
        began = time.monotonic()
        with pytest.raises(Interrupted):
            readiness.wait_ready(server, log=server.spec.log_path, boot_s=60, stop=stop, on_progress=lambda _: None)
        timer.join()
    assert time.monotonic() - began < 10


class Odd(http.server.BaseHTTPRequestHandler):
    """Lists its model late, has no version, and says 503 first."""

    protocol_version = "HTTP/1.1"

    def _say(self, code, value):
        text = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        """Answer late and oddly."""
        self.server.seen.append(self.path)
        if self.path == "/health":
            self._say(503 if self.server.seen.count("/health") < 3 else 200, {})
        elif self.path == "/v1/models":
            self._say(200, {"data": [] if self.server.seen.count("/v1/models") < 2 else [{"id": "odd"}]})
        else:
            self._say(404, {"detail": "Not Found"})

    def do_POST(self):
        """One token."""
        self.rfile.read(int(self.headers["content-length"]))
        self._say(200, {"choices": [{"text": ""}]})

    def log_message(self, *_):
        """Say nothing."""


@contextlib.contextmanager
def proxied(delay_s):
    """An address that accepts and hangs up for a while, as docker's proxy does, and then is a server."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    server = http.server.ThreadingHTTPServer(listener.getsockname(), Odd, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.seen = []
    server.hung_up = 0

    def serve():
        until = time.monotonic() + delay_s
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                listener.accept()[0].close()
                server.hung_up += 1
        listener.settimeout(None)
        server.serve_forever(poll_interval=0.02)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server
    finally:
        while not server.seen and thread.is_alive() and time.monotonic() < delay_s:
            time.sleep(0.05)
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_proxy_that_hangs_up_means_not_yet(tmp_path):
    """Disconnects, 503, an empty list of models, no version: none of it ends the wait."""
    with proxied(0.6) as server:
        port = server.socket.getsockname()[1]
        running = SimpleNamespace(url=f"http://127.0.0.1:{port}", exit_state=lambda: None)
        ready = readiness.wait_ready(
            running, log=tmp_path / "none.log", boot_s=10, stop=StopFlag(), on_progress=lambda _: None
        )

    assert server.hung_up > 1
    assert (ready.model_id, ready.version) == ("odd", None)
    assert ready.boot_s >= 0.5
