"""A server's arguments as flags with their values, in vLLM's spellings."""

from __future__ import annotations

import re
from collections.abc import Sequence

FLAG = re.compile(r"--?[A-Za-z][\w.+-]*")
_SIZE = re.compile(r"(\d+)(?:(\.\d+)?([kmgtKMGT]))?")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def is_flag(word: str) -> bool:
    """Whether a word begins as a flag does; a negative number does not."""
    return FLAG.match(word) is not None


def name_of(word: str) -> str:
    """A flag as vLLM knows it: `--max_model_len=5` is `--max-model-len`."""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def groups(args: Sequence[str]) -> list[list[str]]:
    """The args cut before every flag: each flag with its values, in order; what stands before the first by itself."""
    found: list[list[str]] = []
    for arg in args:
        if is_flag(arg) or not found:
            found.append([arg])
        else:
            found[-1].append(arg)
    return found


def values_of(args: Sequence[str], flag: str) -> list[str] | None:
    """A flag's values (the last time that it is given counts, as argparse has it); None where it is not given."""
    found = None
    for first, *rest in groups(args):
        if is_flag(first) and name_of(first) == name_of(flag):
            _, equals, value = first.partition("=")
            found = [value] if equals else rest
    return found


def positional(args: Sequence[str]) -> list[str]:
    """The words that are for certain no flag's values: those before the first flag, and after a `--flag=value`."""
    found: list[str] = []
    for group in groups(args):
        if not is_flag(group[0]):
            found += group
        elif "=" in group[0]:
            found += group[1:]
    return found


def size(text: str) -> int | None:
    """A number as vLLM reads sizes: `32768`, `32k` (32,000), `32K` (32,768); None for anything else, as `auto`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[2] and match[3] not in _DECIMAL):
        return None
    factor = (_DECIMAL | _BINARY)[match[3]] if match[3] else 1
    return int(float(match[1] + match[2]) * factor) if match[2] else int(match[1]) * factor
