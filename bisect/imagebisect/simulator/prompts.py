"""Request bodies: prompts as token ids or as text, without parsing a million digits where counting will do."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from typing import Any

FAST_FROM_BYTES = 4096
"""Larger bodies have their ids counted by commas: parsing 176,425 ids takes 30 ms and holds the interpreter."""

_DIGITS = b"0123456789"
_SPACE = b" \t\r\n"
_VOCABULARY = 150000
_WORDS = re.compile(r"\s?\w+|\s|[^\w\s]")


class BadRequest(ValueError):
    """A request that vLLM answers with 400; the message is what it says."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt: `ids` as comma-terminated decimal numbers, and how many they are."""

    ids: bytes
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a body asks for. `max_tokens` None: until the model is done."""

    prompts: tuple[Prompt, ...]
    model: str | None
    max_tokens: int | None
    salt: str
    stream: bool
    include_usage: bool


def token_ids(text: str) -> list[int]:
    """The stand-in's tokenizer: a word with the blank before it, or a sign, is one token."""
    return [zlib.crc32(word.encode()) % _VOCABULARY for word in _WORDS.findall(text)]


def _of_ids(ids: list[Any]) -> Prompt:
    if not ids:
        raise BadRequest("The decoder prompt cannot be empty")
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise BadRequest("prompt token ids must be whole numbers of 0 or more")
    return Prompt(ids="".join(f"{token}," for token in ids).encode(), tokens=len(ids))


def _of_text(text: str) -> Prompt:
    return _of_ids(token_ids(text))


def _cut(body: bytes) -> tuple[bytes, bytes] | None:
    """The ids of a long `"prompt": [...]` as compact text, and the body without them; None if it is anything else."""
    key = body.find(b'"prompt"')
    start = body.find(b"[", key)
    if key < 0 or start < 0 or body[key + 8 : start].translate(None, _SPACE) != b":":
        return None
    end = body.find(b"]", start)
    if end < 0:
        return None
    ids = body[start + 1 : end].translate(None, _SPACE)
    if not ids or ids.translate(None, _DIGITS + b",") or b",," in ids or ids.startswith(b",") or ids.endswith(b","):
        return None
    return ids + b",", body[: start + 1] + body[end:]


def _prompts(value: Any) -> tuple[Prompt, ...]:
    if isinstance(value, str):
        return (_of_text(value),)
    if not isinstance(value, list) or not value:
        raise BadRequest("Either prompt or prompt_embeds must be provided and non-empty.")
    if all(isinstance(entry, str) for entry in value):
        return tuple(_of_text(entry) for entry in value)
    if all(isinstance(entry, list) for entry in value):
        return tuple(_of_ids(entry) for entry in value)
    return (_of_ids(value),)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise BadRequest(f"Invalid JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadRequest("the body must be a JSON object")
    return found


def _request(fields: dict[str, Any], prompts: tuple[Prompt, ...], standard: int | None) -> Request:
    limit = fields.get("max_completion_tokens") or fields.get("max_tokens", standard)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise BadRequest(f"max_tokens must be at least 1, got {limit}.")
    salt = fields.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise BadRequest("Parameter 'cache_salt' must be a non-empty string if provided.")
    options = fields.get("stream_options") or {}
    return Request(
        prompts=prompts,
        model=fields.get("model"),
        max_tokens=limit,
        salt=salt or "",
        stream=bool(fields.get("stream", False)),
        include_usage=bool(options.get("include_usage", False)),
    )


def completion(body: bytes) -> Request:
    """A body of /v1/completions. Raises BadRequest."""
    cut = _cut(body) if len(body) >= FAST_FROM_BYTES else None
    if cut is not None:
        ids, rest = cut
        fields = _object(rest)
        if fields.get("prompt") == []:
            return _request(fields, (Prompt(ids=ids, tokens=ids.count(b",")),), 16)
    fields = _object(body)
    return _request(fields, _prompts(fields.get("prompt")), 16)


def messages_text(messages: Any) -> str:
    """The stand-in's chat template."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a non-empty list")
    parts = []
    for message in messages:
        if not isinstance(message, dict):
            raise BadRequest("each message must be an object")
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        parts.append(f"<{message.get('role', 'user')}> {content}")
    return "\n".join(parts)


def chat(body: bytes) -> Request:
    """A body of /v1/chat/completions. Raises BadRequest."""
    fields = _object(body)
    return _request(fields, (_of_text(messages_text(fields.get("messages"))),), None)


def tokenize(body: bytes) -> list[int]:
    """A body of /tokenize. Raises BadRequest."""
    fields = _object(body)
    if "messages" in fields:
        return token_ids(messages_text(fields["messages"]))
    if not isinstance(fields.get("prompt"), str):
        raise BadRequest("prompt must be a string")
    return token_ids(fields["prompt"])
