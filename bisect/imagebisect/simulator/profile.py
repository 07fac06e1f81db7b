"""What a simulated build is like: how fast, how hungry, and how it fails.

A profile belongs to the build, never to the server's env or flags. Standard library only.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

OomMask = Literal["none", "keyerror", "runtimeerror", "enginedead"]


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the key and what was expected."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One simulated build. Every key has a default, so `{}` is a healthy build.

    A key ending in `_from_tokens` switches a failure on for prompts of at least so many tokens;
    0 means every request, null (the default) none.
    """

    version: str = "0.26.1rc1.dev1177+ga9a17e709"
    """What `/version` and the log say."""
    seed: int = 0
    """Part of every draw of noise: two builds of one seed draw the same."""

    # time
    boot_s: float = 0.3
    """Seconds from the process's start to readiness."""
    prefill_tok_s: float = 40000.0
    """Prompt tokens per second, of all requests together."""
    decode_tok_s: float = 200.0
    """Output tokens per second, of each request by itself."""
    short_slowdown: float = 1.0
    """Factor on the prefill time of prompts below `long_from_tokens` (of all prompts when that is null)."""
    long_from_tokens: int | None = None
    """From how many prompt tokens on `long_slowdown` holds; null: for none."""
    long_slowdown: float = 1.0
    """Factor on the prefill time of long prompts, e.g. 1.87."""
    decode_slowdown: float = 1.0
    """Factor on the time of every output token after the first."""
    noise: float = 0.002
    """Relative standard deviation of a request's time."""
    start_noise: float = 0.001
    """Relative standard deviation of a whole start: all its requests share the draw."""
    slow_start_share: float = 0.0
    """How many of a build's starts are slow throughout, 0 to 1, drawn for each start."""
    slow_start_factor: float = 1.4
    """A slow start's time is at most this factor: 1.4 is 10 % to 40 % more, each as likely."""
    slow_rep_share: float = 0.0
    """How many requests are slow by themselves, 0 to 1, drawn for each request."""
    slow_rep_factor: float = 1.6
    """A slow request's time is at most this factor: 1.6 is 15 % to 60 % more, each as likely."""
    start_drift: float = 0.0
    """Each start takes longer than the one before it by this share, whatever its build: a host that slows down."""
    first_request_penalty_s: float = 0.05
    """Added to the first request of the process; the log then has its kernel-compilation lines."""
    jit_penalty_s: float = 0.0
    """Added to the first request of each prompt length, with a kernel-compilation line in the log."""

    answer_delay_s: float = 0.0
    """Answers leave so much later than the engine's own clocks say, as behind a slow proxy."""

    # memory, MiB on each card
    cards: int = 2
    """How many cards the host has."""
    card_total_mib: float = 15882.0
    """Memory of a card: 15.51 GiB, as a 16 GB card has it."""
    baseline_mib: float = 612.0
    """In use on a card while nothing of ours runs."""
    weights_mib: float = 8220.0
    """What each card holds of the model's weights, whatever --tensor-parallel-size."""
    overhead_mib: float = 1000.0
    """What a start takes on each card besides weights, KV pool and graphs."""
    graphs_mib: float = 54.0
    """CUDA graphs."""
    activation_mib_per_batched_token: float = 0.125
    """What a forward pass needs for a moment, per token in its batch (at most --max-num-batched-tokens)."""
    activation_mib_per_request: float = 8.0
    """What each request of the batch adds to that."""
    leak_mib_per_request: float = 0.0
    """What each request leaves behind for good."""
    kv_bytes_per_token: int = 8192
    """KV cache of one token on one card."""

    # failures at start
    unknown_flags: tuple[str, ...] = ()
    """Flags, e.g. `--max-num-seqs`, that this build does not know: usage error, exit code 2."""
    import_error: str | None = None
    """The build fails with `ImportError: <this>`."""
    unsupported_architecture: str | None = None
    """The build does not support this architecture."""
    oom_at_start: bool = False
    """Runs out of GPU memory while it warms up, whatever the arithmetic says."""
    port_in_use: bool = False
    """Fails as if its port were taken."""
    boot_exit_code: int | None = None
    """Exits with this code in the middle of the boot and says nothing."""
    never_ready: bool = False
    """Boots for ever."""

    # failures at a request
    oom_at_request_from_tokens: int | None = None
    """Runs out of memory at such a prompt, whatever the arithmetic says, under the next three conditions."""
    oom_from_batched_tokens: int = 8192
    """A forced OOM needs at least this --max-num-batched-tokens (8192 as in the bug; 0: any)."""
    oom_from_concurrency: int = 1
    """A forced OOM needs so many requests at a time."""
    oom_probability: float = 1.0
    """How likely a forced OOM is, drawn for each request that meets the conditions."""
    oom_mask: OomMask = "keyerror"
    """What the engine dies of once a worker ran out of memory."""
    crash_at_request_from_tokens: int | None = None
    """The engine dies of a kernel that is missing; not of memory."""
    killed_at_request_from_tokens: int | None = None
    """The server is killed by signal 9 (exit code 137 in a container)."""
    stuck_from_tokens: int | None = None
    """`/health` stays 200 and no answer ever comes."""
    refuse_from_tokens: int | None = None
    """Answers 400."""
    dies_after_requests: int | None = None
    """Answers so many requests; at the next one the engine is dead and no log line says why."""
    wrong_usage: int = 0
    """Added to `usage.prompt_tokens`."""
    death_exit_code: int = 0
    """Exit code of the server after its engine died (0 or 1 in real ones)."""

    # shape
    engine_process: bool = False
    """Have a child process, as EngineCore is one: it holds the memory and survives a `kill -9` of its parent."""


_HINTS: dict[str, Any] = {}


def _hint(name: str) -> Any:
    if not _HINTS:
        _HINTS.update(get_type_hints(Profile))
    return _HINTS[name]


def _checked(name: str, value: Any) -> Any:
    """The value as the field's type, or a ProfileError."""
    hint = _hint(name)
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise ProfileError(f"profile key {name!r} must be one of {', '.join(get_args(hint))}, not {value!r}")
    if get_origin(hint) is tuple:
        if isinstance(value, (list, tuple)) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        raise ProfileError(f"profile key {name!r} must be a list of texts, not {value!r}")
    kinds = get_args(hint) or (hint,)
    if value is None and type(None) in kinds:
        return None
    if bool in kinds:
        if isinstance(value, bool):
            return value
        raise ProfileError(f"profile key {name!r} must be true or false, not {value!r}")
    if str in kinds:
        if isinstance(value, str):
            return value
        raise ProfileError(f"profile key {name!r} must be a text, not {value!r}")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if float in kinds and is_number:
        return float(value)
    if int in kinds and is_number and float(value).is_integer():
        return int(value)
    raise ProfileError(f"profile key {name!r} must be a {'whole ' if int in kinds else ''}number, not {value!r}")


_POSITIVE = frozenset(
    {
        "prefill_tok_s",
        "decode_tok_s",
        "slow_start_factor",
        "slow_rep_factor",
        "cards",
        "card_total_mib",
        "kv_bytes_per_token",
    }
)
_SHARES = frozenset({"oom_probability", "slow_start_share", "slow_rep_share"})
_SIGNED = frozenset({"seed", "wrong_usage"})


def _check_range(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or name in _SIGNED:
        return
    if value < 0 or (value == 0 and name in _POSITIVE) or value != value or value == float("inf"):  # noqa: PLR0124
        raise ProfileError(
            f"profile key {name!r} must be {'above 0' if name in _POSITIVE else '0 or more'}, not {value!r}"
        )
    if name in _SHARES and value > 1:
        raise ProfileError(f"profile key {name!r} must be at most 1, not {value!r}")


def from_mapping(mapping: Mapping[str, Any]) -> Profile:
    """The profile that a mapping (of JSON or YAML values) describes.

    Raises ProfileError for a key that does not exist or a value of the wrong kind.
    """
    if not isinstance(mapping, Mapping):
        raise ProfileError(f"a profile is a mapping of keys to values, not {mapping!r}")
    known = [entry.name for entry in fields(Profile)]
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known keys: {', '.join(known)}"
            raise ProfileError(f"unknown profile key {key!r}{hint}")
        values[key] = _checked(key, value)
        _check_range(key, values[key])
    return Profile(**values)


def from_json(text: str) -> Profile:
    """The profile in a JSON text; raises ProfileError."""
    try:
        mapping = json.loads(text)
    except ValueError as error:
        raise ProfileError(f"the profile is no JSON: {error}") from error
    return from_mapping(mapping)


def from_file(path: str) -> Profile:
    """The profile in a JSON file; raises ProfileError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"the profile {path} cannot be read: {error}") from error
    return from_json(text)
