"""vLLM's command line: its flags, their spellings, and how it refuses what it does not know."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from imagebisect.simulator import logs


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to {json.loads}.") from error


def _size(text: str) -> int:
    """A whole number, with the k/m/g (decimal) and K/M/G (binary) endings that vLLM takes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"invalid size: {text!r}")
    factors = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    return int(float(found[1]) * factors[found[2]])


_KNOWN = Path(__file__).parent / "known_flags.txt"
_KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "integer": {"type": int},
    "number": {"type": float},
    "size": {"type": _size},
    "json": {"type": _json},
    "list": {"nargs": "+"},
    "switch": {"action": argparse.BooleanOptionalAction},
}
_SHORT = {
    "tensor-parallel-size": "-tp",
    "pipeline-parallel-size": "-pp",
    "data-parallel-size": "-dp",
    "decode-context-parallel-size": "-dcp",
    "quantization": "-q",
    "compilation-config": "-cc",
    "optimization-level": "-O",
}


class _Refused(Exception):
    """What argparse has to say, before it says it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags that matter, and all that were given (`given`, by vLLM's names) for the log."""

    model: str = "/models/m"
    served_model_name: str = "/models/m"
    host: str = "0.0.0.0"  # noqa: S104 - vLLM's default inside a container
    port: int = 8000
    max_model_len: int = 32768
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.92
    tensor_parallel_size: int = 1
    prefix_caching: bool = True
    access_log: bool = True
    prompt_tokens_details: bool = False
    model_as_option: bool = False
    given: dict[str, Any] = field(default_factory=dict)
    profile: str | None = None
    profile_json: str | None = None
    state_dir: str | None = None


def _build(unknown: Sequence[str]) -> _Parser:
    parser = _Parser(prog="vllm serve", allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
    removed = {flag.lstrip("-").replace("_", "-") for flag in unknown}

    for own in ("--profile", "--profile-json", "--state-dir"):
        parser.add_argument(own)
    for line in _KNOWN.read_text(encoding="ascii").splitlines():
        if line.startswith("#"):
            continue
        name, kind = line.split()
        if name not in removed:
            short = [_SHORT[name]] if name in _SHORT else []
            parser.add_argument(*short, f"--{name}", **_KINDS[kind])
    return parser


def _spelled(argument: str) -> str:
    """`--max_model_len` is `--max-model-len` to vLLM, and `--compilation-config.mode=3` sets a key of the JSON."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _without_dotted(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
            continue
        if re.match(r"(?:--[a-z-]+|-cc)\.[\w.+-]+", argument):
            skip = "=" not in argument
            continue
        kept.append(argument)
    return kept


def refuse(message: str, template: str = "unknown_flag") -> NoReturn:
    """Say it as argparse does, on stderr, and exit with 2."""
    sys.stderr.write(logs.render(template, message=message))
    sys.stderr.flush()
    raise SystemExit(2)


def refuse_own(message: str) -> NoReturn:
    """The stand-in's own options are wrong: exit with 2."""
    sys.stderr.write(f"imagebisect.simulator serve: error: {message}\n")
    raise SystemExit(2)


def own_options(arguments: Sequence[str]) -> dict[str, str]:
    """The stand-in's options alone: what the build is has to be known before its flags are."""
    parser = _Parser(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
    for own in ("--profile", "--profile-json", "--state-dir"):
        parser.add_argument(own)
    try:
        found, _ = parser.parse_known_args([_spelled(argument) for argument in arguments])
    except _Refused as refused:
        refuse_own(str(refused))
    return dict(vars(found))


def parse(arguments: Sequence[str], unknown: Sequence[str] = ()) -> Flags:
    """Read what follows `vllm serve`. `unknown` are flags that this build lacks. Exits with 2 as vLLM does."""
    arguments = [_spelled(argument) for argument in arguments]
    if arguments and arguments[0] == "serve":
        arguments.pop(0)
    tag = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    parser = _build(unknown)
    try:
        found, extras = parser.parse_known_args(_without_dotted(arguments))
    except _Refused as refused:
        refuse(str(refused), "bad_argument")
    if extras:
        refuse(f"unrecognized arguments: {' '.join(extras)}")
    values = dict(vars(found))
    own = {key: values.pop(key, None) for key in ("profile", "profile_json", "state_dir")}
    model = tag or values.get("model") or "/models/m"
    names = values.get("served_model_name") or [model]
    model_as_option = tag is None and "model" in values
    given = {"model_tag": model, **values, "model": model} if "model" in values or tag else values
    length = values.get("max_model_len", Flags.max_model_len)
    return Flags(
        model=model,
        served_model_name=names[0],
        host=values.get("host") or Flags.host,
        port=values.get("port", Flags.port),
        max_model_len=length,
        max_num_batched_tokens=values.get("max_num_batched_tokens", Flags.max_num_batched_tokens),
        max_num_seqs=max(1, values.get("max_num_seqs", Flags.max_num_seqs)),
        kv_cache_memory_bytes=values.get("kv_cache_memory_bytes"),
        gpu_memory_utilization=values.get("gpu_memory_utilization", Flags.gpu_memory_utilization),
        tensor_parallel_size=max(1, values.get("tensor_parallel_size", 1)),
        prefix_caching=values.get("enable_prefix_caching", True),
        access_log=not values.get("disable_uvicorn_access_log", False),
        prompt_tokens_details=values.get("enable_prompt_tokens_details", False),
        model_as_option=model_as_option,
        given=given,
        **own,
    )
