"""What counts as a secret: by its name, and by being long enough to be one. Shared by config, ledger and report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import IO

WORDS = r"(?:^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)"
"""The words that tell a secret's name; what may follow them is for whoever asks."""

SHORTEST = 6
"""A shorter value, as in `VLLM_X_TOKEN=0`, is a switch: hiding it would blank out ordinary words."""

_NAME = re.compile(WORDS + "$", re.IGNORECASE)


def secret_names(names: Iterable[str]) -> list[str]:
    """Those of the names that are by custom a secret's, such as HF_TOKEN."""
    return [name for name in names if _NAME.search(name)]


HIDDEN = "***"

PIECE_BYTES = 1 << 20
"""A stream is handled in pieces of this size."""


def hide(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, nor what a cut at its ends left of one (SHORTEST characters or more)."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
        for size in range(min(len(secret) - 1, len(text)), SHORTEST - 1, -1):
            if text.endswith(secret[:size]):
                text = text[:-size] + HIDDEN
                break
        for size in range(min(len(secret) - 1, len(text)), SHORTEST - 1, -1):
            if text.startswith(secret[-size:]):
                text = HIDDEN + text[size:]
                break
    return text


def copy_without(source: IO[bytes], write: Callable[[bytes], object], secrets: Iterable[str]) -> None:
    """Copy a stream without the secrets in it, in constant memory; one that lies across two pieces is found, too."""
    wanted = [secret.encode() for secret in secrets]
    longest = max((len(secret) for secret in wanted), default=0)
    held = b""
    while piece := source.read(PIECE_BYTES):
        held += piece
        for secret in wanted:
            held = held.replace(secret, HIDDEN.encode())
        # what may be the beginning of a secret waits for the next piece
        keep = min(len(held), max(0, longest - 1))
        write(held[: len(held) - keep])
        held = held[len(held) - keep :]
    write(held)
