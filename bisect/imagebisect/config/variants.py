"""Variants: a server with one thing changed, derived from the server it is `of`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from imagebisect.config import words
from imagebisect.config.problems import Problems
from imagebisect.config.schema import AddedEntry, VariantEntry
from imagebisect.config.servers import args_touched, does_not_fit, wrong_gpus
from imagebisect.config.yaml import PathIn
from imagebisect.domain import Server, Variant
from imagebisect.scenario import Scenario
from imagebisect.secrets import secret_names

_ADDED = re.compile(r"([+-]?\d+)\s*(B|KiB|MiB|GiB|)")
_BYTES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def read_variant(
    name: str, entry: VariantEntry, servers: Sequence[Server], problems: Problems, written: Sequence[str]
) -> Variant | None:
    """One variant; None when it cannot be derived, which is noted. `written` are all servers' names in the file."""
    place: PathIn = ("variants", name)
    if name in written:
        problems.add(place, "a server has this name already")
    flags_good = _check_flags(entry, place, problems)
    base = next((server for server in servers if server.name == entry.of), None)
    if base is None:
        if written and entry.of not in written:
            problems.add((*place, "of"), f"expected a server ({', '.join(written)}), found {entry.of!r}")
        return None
    for secret in secret_names(entry.env):
        problems.add((*place, "env", secret), "looks like a secret: pass it by name with `pass_env`, never by value")
    known = flags_good and not args_touched(base.name, problems)
    args, changes = _changed_args(entry, base, place, problems) if known else (list(base.args), [])
    for key, value in entry.env.items():
        if base.env.get(key) == value:
            problems.add((*place, "env", key), f"is {value} on {base.name} already: it changes nothing")
        changes.append(f"env {key}={value}")
    chosen = tuple(entry.gpus) if isinstance(entry.gpus, list) else entry.gpus
    if chosen is not None:
        if chosen == base.gpus:
            problems.add((*place, "gpus"), f"is the same on {base.name}: it changes nothing")
        changes.append(f"gpus {list(chosen) if isinstance(chosen, tuple) else chosen}")
    limits = {key: value for key in ("memory", "cpuset") if (value := getattr(entry, key)) is not None}
    for key, value in limits.items():
        if getattr(base, key) == value:
            problems.add((*place, key), f"is {value} on {base.name} already: it changes nothing")
        changes.append(f"{key} {value}")
    if not (entry.set_args or changes or problems.spoilt_keys(place) or entry.args_added):
        problems.add(place, "changes nothing; expected set_args, args+, env, gpus, memory or cpuset")
    server = dataclasses.replace(
        base,
        name=name,
        args=tuple(args),
        env={**base.env, **entry.env},
        gpus=base.gpus if chosen is None else chosen,
        **limits,
    )
    own_known = known and not problems.touched((*place, "set_args"), (*place, "args+"))
    wrong = wrong_gpus(server, args_known=own_known)
    spoilt = problems.touched((*place, "gpus"), ("servers", base.name, "gpus"), ("base", "gpus"))
    if wrong is not None and not spoilt and wrong != wrong_gpus(base):
        problems.add((*place, "gpus"), wrong)
    return Variant(of=entry.of, server=server, changes=tuple(changes)) if own_known else None


def check_lengths(
    variants: Sequence[Variant], scenarios: Sequence[Scenario], servers: Sequence[Server], problems: Problems
) -> None:
    """Note prompts that fit a server and not its variant, which does every scenario of it."""
    of = {server.name: server for server in servers}
    for variant in variants:
        for scenario in scenarios:
            if scenario.on != variant.of or does_not_fit(scenario, of[variant.of]) is not None:
                continue
            why = does_not_fit(scenario, variant.server)
            if why is not None and not problems.touched(("scenarios", scenario.name)):
                problems.add(("variants", variant.server.name), f"scenario {scenario.name}: {why}")


def _check_flags(entry: VariantEntry, place: PathIn, problems: Problems) -> bool:
    """Note what is no flag; False when there was something."""
    good = True
    for flag in entry.set_args:
        if not words.FLAG.fullmatch(flag):
            good = False
            hint = f"; did you mean --{flag}?" if words.FLAG.fullmatch(f"--{flag}") else ""
            said = "flags stand here without their value" if words.is_flag(flag) else "flags start with --"
            problems.add((*place, "set_args", flag), f"{said}{hint}")
    if entry.args_added and not words.is_flag(entry.args_added[0]):
        good = False
        problems.add((*place, "args+"), f"flags start with --, found {entry.args_added[0]!r}")
    return good


def _changed_args(entry: VariantEntry, base: Server, place: PathIn, problems: Problems) -> tuple[list[str], list[str]]:
    """The variant's args, and each change in words; what cannot be changed, or changes nothing, is noted."""
    args, changes = list(base.args), []
    for flag, wanted in entry.set_args.items():
        at = (*place, "set_args", flag)
        if problems.touched(at):
            continue
        had = words.values_of(args, flag)
        if isinstance(wanted, AddedEntry):
            value = _added(flag, wanted.add, base, at, problems)
            if value is None:
                continue
            changes.append(f"{flag} {wanted.add} (to {value})")
        else:
            value = wanted
            changes.append(f"{flag} dropped" if value is None else f"{flag}={value}")
        if value is None and had is None:
            problems.add(at, f"{base.name} has no {flag}: dropping it changes nothing")
        elif value is not None and had == [value]:
            problems.add(at, f"{flag} is {value} on {base.name} already: it changes nothing")
        args = _set(args, flag, value)
    for first, *rest in words.groups(entry.args_added):
        _, equals, value = first.partition("=")
        if words.values_of(args, first) == ([value] if equals else rest):
            problems.add(
                (*place, "args+"), f"{' '.join((first, *rest))} stands in {base.name} already: it changes nothing"
            )
    args += entry.args_added
    return args, [*changes, *(f"added {arg}" for arg in entry.args_added)]


def _added(flag: str, text: str, base: Server, place: PathIn, problems: Problems) -> str | None:
    """A flag's number plus an amount such as `-64MiB`, as text; None when that cannot be, which is noted."""
    match = _ADDED.fullmatch(text.strip())
    if match is None:
        problems.add((*place, "add"), f"expected an amount such as -64MiB or 1024, found {text!r}")
        return None
    given = words.values_of(base.args, flag)
    had = words.size(given[0]) if given is not None and len(given) == 1 else None
    if had is None:
        problems.add(place, f"{base.name} has no whole number for {flag} that something could be added to")
        return None
    value = had + int(match[1]) * _BYTES[match[2]]
    if value == had:
        problems.add((*place, "add"), f"adding {text} changes nothing")
        return None
    if value <= 0:
        problems.add((*place, "add"), f"{had} {text} is not above 0")
        return None
    return str(value)


def _set(args: list[str], flag: str, value: str | None) -> list[str]:
    """The args with a flag's value replaced in its place and spelling, dropped (None), or appended."""
    found: list[str] = []
    done = False
    for group in words.groups(args):
        first = group[0]
        if not words.is_flag(first) or words.name_of(first) != words.name_of(flag):
            found += group
            continue
        if value is None or done:
            continue
        name = first.partition("=")[0]
        found += [name, value] if len(group) > 1 and "=" not in first else [f"{name}={value}"]
        done = True
    if value is not None and not done:
        found.append(f"{flag}={value}")
    return found
