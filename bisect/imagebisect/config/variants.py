"""Variants: a server with one thing changed, derived from the server it is `of`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from imagebisect.config.problems import Problems
from imagebisect.config.schema import AddedEntry, VariantEntry
from imagebisect.config.yaml import PathIn
from imagebisect.domain import Server, Variant
from imagebisect.secrets import secret_names

_ADDED = re.compile(r"([+-]?\d+)\s*(B|KiB|MiB|GiB|)")
_BYTES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def check_gpus(server: Server, place: PathIn, problems: Problems) -> None:
    """Note cards that are named twice, or too few of them for the tensor-parallel size."""
    if not isinstance(server.gpus, tuple):
        return
    if len(set(server.gpus)) != len(server.gpus) or not server.gpus:
        problems.add((*place, "gpus"), f"expected different card numbers, found {list(server.gpus)}")
    elif len(server.gpus) < server.tensor_parallel_size:
        problems.add(
            (*place, "gpus"),
            f"{len(server.gpus)} cards are too few for --tensor-parallel-size={server.tensor_parallel_size}",
        )


def read_variant(name: str, entry: VariantEntry, servers: Sequence[Server], problems: Problems) -> Variant | None:
    """One variant; None when it cannot be derived, which is noted."""
    place: PathIn = ("variants", name)
    base = next((server for server in servers if server.name == entry.of), None)
    if base is None:
        known = ", ".join(server.name for server in servers)
        problems.add((*place, "of"), f"expected a server ({known}), found {entry.of!r}")
        return None
    if any(server.name == name for server in servers):
        problems.add(place, "a server has this name already")
    args, changes = list(base.args), []
    for flag, wanted in entry.set_args.items():
        if isinstance(wanted, AddedEntry):
            value = _added(flag, wanted.add, base, (*place, "set_args", flag), problems)
            if value is None:
                return None
            changes.append(f"{flag} {wanted.add} (to {value})")
        else:
            value = wanted
            changes.append(f"{flag} dropped" if value is None else f"{flag}={value}")
        args = _set(args, flag, value)
    args += entry.args_added
    changes += [f"added {arg}" for arg in entry.args_added]
    for secret in secret_names(entry.env):
        problems.add((*place, "env", secret), "looks like a secret: pass it by name with `pass_env`, never by value")
    changes += [f"env {key}={value}" for key, value in entry.env.items()]
    chosen = tuple(entry.gpus) if isinstance(entry.gpus, list) else entry.gpus
    if chosen is not None:
        changes.append(f"gpus {list(chosen) if isinstance(chosen, tuple) else chosen}")
    limits = {key: value for key in ("memory", "cpuset") if (value := getattr(entry, key)) is not None}
    changes += [f"{key} {value}" for key, value in limits.items()]
    if not changes:
        problems.add(place, "changes nothing; expected set_args, args+, env, gpus, memory or cpuset")
    server = dataclasses.replace(
        base,
        name=name,
        args=tuple(args),
        env={**base.env, **entry.env},
        gpus=base.gpus if chosen is None else chosen,
        **limits,
    )
    check_gpus(server, place, problems)
    return Variant(of=entry.of, server=server, changes=tuple(changes))


def _added(flag: str, text: str, base: Server, place: PathIn, problems: Problems) -> str | None:
    """A flag's number plus an amount such as `-64MiB`, as text; None when that cannot be, which is noted."""
    match = _ADDED.fullmatch(text.strip())
    had = base.whole_number(flag)
    if match is None:
        problems.add((*place, "add"), f"expected an amount such as -64MiB or 1024, found {text!r}")
        return None
    if had == 0 and problems.found:
        return None  # an unset variable reads 0 and has a problem of its own
    if had is None:
        problems.add(place, f"{base.name} has no whole number for {flag} that something could be added to")
        return None
    value = had + int(match[1]) * _BYTES[match[2]]
    if value <= 0:
        problems.add((*place, "add"), f"{had} {text} is not above 0")
        return None
    return str(value)


def _set(args: list[str], flag: str, value: str | None) -> list[str]:
    """The args with a flag's value replaced in its place and spelling, dropped (None), or appended."""
    found: list[str] = []
    done = skip = False
    for position, arg in enumerate(args):
        if skip:
            skip = False
            continue
        name, equals, _ = arg.partition("=")
        if name != flag:
            found.append(arg)
            continue
        follows = args[position + 1] if position + 1 < len(args) else "--"
        skip = not equals and not follows.startswith("--")
        if value is None or done:
            continue
        found += [f"{flag}={value}"] if equals or not skip else [flag, value]
        done = True
    if value is not None and not done:
        found.append(f"{flag}={value}")
    return found
