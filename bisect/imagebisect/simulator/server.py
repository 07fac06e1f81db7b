"""vLLM's HTTP surface: one thread a connection, HTTP/1.1, every wait to an absolute moment."""

from __future__ import annotations

import json
import select
import socket
import socketserver
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

from imagebisect.simulator import prompts
from imagebisect.simulator.engine import FOREVER, Engine, EngineDead, Ticket
from imagebisect.simulator.flags import Flags
from imagebisect.simulator.logs import Log
from imagebisect.simulator.profile import Profile

LONGEST_BODY_BYTES = 256 << 20
CHAT_TOKENS = 32
"""A chat answer without a limit ends by itself after so many tokens."""

_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_KINDS = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}


class Server(ThreadingHTTPServer):
    """Bound at once and listening only once the engine is ready, as vLLM's is."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, flags: Flags, profile: Profile, log: Log) -> None:
        self.flags = flags
        self.profile = profile
        self.log = log
        self.created = int(time.time())
        self.engine: Engine | None = None
        super().__init__((flags.host, flags.port), Handler, bind_and_activate=False)
        self.server_bind()

    def server_bind(self) -> None:
        """Bind without asking the name service who this host is."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def listen(self, engine: Engine) -> None:
        """Begin to accept connections."""
        self.engine = engine
        self.server_activate()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is its own affair."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "uvicorn"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = 600
    arrived = 0.0

    _GET: ClassVar[dict[str, str]] = {
        "/health": "_health", "/ping": "_health", "/version": "_version", "/v1/models": "_models",
        "/metrics": "_metrics", "/load": "_load",
    }  # fmt: skip
    _POST: ClassVar[dict[str, str]] = {
        "/v1/completions": "_completion", "/v1/chat/completions": "_chat", "/tokenize": "_tokenize", "/ping": "_health",
    }  # fmt: skip

    @property
    def engine(self) -> Engine:
        """The engine; it is there before the first connection is."""
        assert self.server.engine is not None
        return self.server.engine

    def parse_request(self) -> bool:
        """The clock of a request starts when its first line is here."""
        self.arrived = time.monotonic()
        return super().parse_request()

    def do_GET(self) -> None:
        """Dispatch a GET."""
        self._dispatch(self._GET)

    def do_POST(self) -> None:
        """Dispatch a POST."""
        self._dispatch(self._POST)

    def _dispatch(self, routes: dict[str, str]) -> None:
        path = urlsplit(self.path).path
        name = routes.get(path)
        try:
            if name is None:
                self._body_if_any()
                known = path in self._GET or path in self._POST
                self._json({"detail": "Method Not Allowed" if known else "Not Found"}, 405 if known else 404)
                return
            getattr(self, name)()
        except prompts.BadRequest as error:
            self._error(str(error), 400)
        except EngineDead:
            self._error(_DEAD, 500)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    # ------------------------------------------------------------------ output

    def _send(self, body: bytes, status: int, kind: str) -> None:
        self._access(status)
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _json(self, content: Any, status: int = 200) -> None:
        self._send(json.dumps(content, separators=(",", ":")).encode(), status, "application/json")

    def _error(self, message: str, status: int, *, param: str | None = None) -> None:
        kind = _KINDS.get(status, "InternalServerError")
        self._json({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)

    def _access(self, status: int) -> None:
        if not self.server.flags.access_log:
            return
        client = f"{self.client_address[0]}:{self.client_address[1]}"
        phrase = HTTPStatus(status).phrase
        self.server.log.write("access", client=client, request=self.requestline, status=f"{status} {phrase}")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """The base class's own log stays silent."""

    # ------------------------------------------------------------------ simple

    def _body(self) -> bytes:
        length = self.headers.get("content-length")
        if length is None or not length.isdigit():
            raise prompts.BadRequest("a Content-Length is required")
        if int(length) > LONGEST_BODY_BYTES:
            self.close_connection = True
            raise prompts.BadRequest("the body is too large")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise ConnectionResetError
        return body

    def _health(self) -> None:
        self._body_if_any()
        self._send(b"", 503 if self.engine.dead.is_set() else 200, "application/json")

    def _body_if_any(self) -> None:
        if self.headers.get("content-length"):
            self._body()

    def _version(self) -> None:
        self._json({"version": self.server.profile.version})

    def _models(self) -> None:
        flags = self.server.flags
        model = {
            "id": flags.served_model_name, "object": "model", "created": self.server.created, "owned_by": "vllm",
            "root": flags.model, "parent": None, "max_model_len": flags.max_model_len, "permission": [],
        }  # fmt: skip
        self._json({"object": "list", "data": [model]})

    def _metrics(self) -> None:
        self._send(self.engine.metrics().encode(), 200, "text/plain; version=1.0.0; charset=utf-8")

    def _load(self) -> None:
        self._json({"server_load": self.engine.load()})

    def _tokenize(self) -> None:
        ids = prompts.tokenize(self._body())
        self._json(
            {"count": len(ids), "max_model_len": self.server.flags.max_model_len, "tokens": ids, "token_strs": None}
        )

    # -------------------------------------------------------------- generation

    def _completion(self) -> None:
        self._generate(prompts.completion(self._body()), chat=False)

    def _chat(self) -> None:
        self._generate(prompts.chat(self._body()), chat=True)

    def _generate(self, request: prompts.Request, *, chat: bool) -> None:
        flags = self.server.flags
        if request.model is not None and request.model != flags.served_model_name:
            self._error(f"The model `{request.model}` does not exist.", 404, param="model")
            return
        max_tokens = request.max_tokens or CHAT_TOKENS
        reason = "length" if request.max_tokens else "stop"
        tickets: list[Ticket] = []
        outcome = "abort"
        try:
            prefix = "chatcmpl" if chat else "cmpl"
            for prompt in request.prompts:
                ticket = self.engine.admit(
                    prompt, max_tokens=max_tokens, salt=request.salt, arrived=self.arrived, prefix=prefix
                )
                tickets.append(ticket)
            if request.stream:
                self._stream(tickets, request, chat=chat, reason=reason)
            else:
                for ticket in tickets:
                    self._wait(ticket.end)
            outcome = reason
        finally:
            for ticket in tickets:
                self.engine.finish(ticket, outcome)
        if not request.stream:
            time.sleep(self.server.profile.answer_delay_s)
            self._json(self._answer(tickets, chat=chat, reason=reason))

    def _wait(self, until: float) -> None:
        self.engine.wait(until, gone=self._gone if until == FOREVER else None)

    def _gone(self) -> bool:
        """Whether the client has hung up."""
        connection: socket.socket = self.connection
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""

    def _usage(self, tickets: list[Ticket]) -> dict[str, Any]:
        prompt = sum(ticket.prompt_tokens for ticket in tickets) + self.server.profile.wrong_usage
        output = sum(ticket.max_tokens for ticket in tickets)
        cached = sum(ticket.cached_tokens for ticket in tickets)
        details = {"cached_tokens": cached} if self.server.flags.prompt_tokens_details else None
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
            "prompt_tokens_details": details,
        }

    def _head(self, ticket: Ticket, kind: str) -> dict[str, Any]:
        return {
            "id": ticket.request_id,
            "object": kind,
            "created": int(time.time()),
            "model": self.server.flags.served_model_name,
        }

    def _answer(self, tickets: list[Ticket], *, chat: bool, reason: str) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for index, ticket in enumerate(tickets):
            text = _words(0, ticket.max_tokens)
            choice: dict[str, Any] = {"index": index}
            if chat:
                choice |= {"message": {"role": "assistant", "content": text, "tool_calls": []}}
            else:
                choice |= {"text": text}
            choices.append({**choice, "logprobs": None, "finish_reason": reason, "stop_reason": None})
        kind = "chat.completion" if chat else "text_completion"
        return {**self._head(tickets[0], kind), "choices": choices, "usage": self._usage(tickets)}

    def _stream(self, tickets: list[Ticket], request: prompts.Request, *, chat: bool, reason: str) -> None:
        """Server-sent events, one a token. What fails before the first token is answered with a status code."""
        self._wait(tickets[0].first_token)
        self._access(200)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        kind = "chat.completion.chunk" if chat else "text_completion"
        try:
            for index, ticket in enumerate(tickets):
                head = self._head(ticket, kind)
                for number in range(ticket.max_tokens):
                    self._wait(ticket.first_token + number * ticket.token_s)
                    last = number == ticket.max_tokens - 1
                    text = _words(number, 1)
                    part = {"delta": {"content": text}} if chat else {"text": text}
                    choice = {"index": index, **part, "logprobs": None, "finish_reason": reason if last else None}
                    self._event({**head, "choices": [choice]})
            if request.include_usage:
                self._event({**self._head(tickets[0], kind), "choices": [], "usage": self._usage(tickets)})
        except EngineDead:
            error = {"message": _DEAD, "type": "InternalServerError", "param": None, "code": 500}
            self._event({"error": error})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, content: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n")

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")


_WORDS = (" the", " server", " stands", " in", " for", " another", " and", " says", " so")


def _words(first: int, count: int) -> str:
    """The output: one word a token, the same every time."""
    return "".join(_WORDS[(first + number) % len(_WORDS)] for number in range(count))
