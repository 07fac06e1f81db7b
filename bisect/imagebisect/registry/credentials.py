"""Docker's stored credentials: what `docker login` has left for a registry."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HELPER_S = 30.0
"""Seconds that a credential helper may take; some ask a keychain that asks its user."""

_TOKEN_USER = "<token>"  # noqa: S105 - the name by which helpers mark an identity token


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """A user with a password, or an identity token. Neither secret shows in a repr."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What is stored for a registry; `trouble` says why something stored could not be read."""

    credentials: Credentials | None = None
    trouble: str = ""


def stored(key: str) -> Stored:
    """What docker has stored under a registry's key (its host; for Docker Hub a URL).

    Never raises: without credentials the registry is asked anonymously, and only a refusal makes `trouble` matter.
    """
    path = _config_path()
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Stored()
    except (OSError, ValueError) as error:
        return Stored(trouble=f"{path} cannot be read ({type(error).__name__})")
    if not isinstance(config, dict):
        return Stored(trouble=f"{path} holds no settings")
    spellings = _spellings(key)
    helpers = config.get("credHelpers")
    helper = next((helpers[s] for s in spellings if s in helpers), None) if isinstance(helpers, dict) else None
    helper = helper or config.get("credsStore")
    if isinstance(helper, str) and helper:
        found = _from_helper(helper, key)
        if found.credentials is not None:
            return found
    else:
        found = Stored()
    auths = config.get("auths")
    for spelling in spellings:
        entry = auths.get(spelling) if isinstance(auths, dict) else None
        if isinstance(entry, dict) and entry:
            return _from_entry(entry, path) if _holds_secret(entry) else found
    return found


def _config_path() -> Path:
    folder = os.environ.get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path.home() / ".docker") / "config.json"


def _spellings(key: str) -> tuple[str, ...]:
    host = key.removeprefix("https://").partition("/")[0]
    urls = [f"{scheme}://{host}{end}" for scheme in ("https", "http") for end in ("", "/", "/v1/", "/v2/")]
    return tuple(dict.fromkeys((key, host, *urls)))


def _holds_secret(entry: dict[str, Any]) -> bool:
    return any(entry.get(name) for name in ("auth", "password", "identitytoken"))


def _from_entry(entry: dict[str, Any], path: Path) -> Stored:
    username, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if entry.get("auth"):
        try:
            text = base64.b64decode(str(entry["auth"]), validate=True).decode("utf-8")
        except ValueError:
            return Stored(trouble=f"{path} holds an `auth` that cannot be decoded")
        username, _, password = text.partition(":")
    token = str(entry.get("identitytoken") or "")
    return Stored(credentials=Credentials(username=username, password=password.rstrip("\0"), identity_token=token))


def _from_helper(helper: str, key: str) -> Stored:
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=key, capture_output=True, text=True, timeout=_HELPER_S, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Stored(trouble=f"docker's credential helper {program} failed ({type(error).__name__})")
    if done.returncode != 0:
        # What it prints is left out: it may hold what must not be shown. "Not found" is the ordinary answer.
        unknown = "credentials not found" in f"{done.stdout}{done.stderr}".lower()
        return Stored(trouble="" if unknown else f"docker's credential helper {program} ended with {done.returncode}")
    try:
        answer = json.loads(done.stdout)
        username, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError):
        return Stored(trouble=f"docker's credential helper {program} gave no credentials that can be read")
    if username == _TOKEN_USER:
        return Stored(credentials=Credentials(identity_token=secret))
    return Stored(credentials=Credentials(username=username, password=secret))
