"""Which registry a repository's name means, and how that registry is spoken to."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from imagebisect.errors import UsageError

HUB = "docker.io"
_HUB_SPELLINGS = ("docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com")
_HUB_REGISTRY = "https://registry-1.docker.io"
_HUB_LISTING = "https://hub.docker.com"
_HUB_CREDENTIALS = "https://index.docker.io/v1/"

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::\d{1,5})?")


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository: `host` as written (`docker.io` for Docker Hub) and its name there."""

    host: str
    name: str
    url: str
    credentials_key: str
    listing_url: str | None = None

    def __str__(self) -> str:
        return self.name if self.host == HUB else f"{self.host}/{self.name}"


def is_loopback(host: str) -> bool:
    """Whether a host, with or without port, is this machine; only there is plain http spoken."""
    bare = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def parse(text: str) -> Repository:
    """Read `vllm/vllm-openai`, `ghcr.io/me/image` or `localhost:5000/image`, by docker's own rule.

    Raises UsageError for a tag, a digest, a URL, or anything that is no repository.
    """
    first, slash, rest = text.partition("/")
    named = bool(slash) and ("." in first or ":" in first or first == "localhost")
    host, name = (first, rest) if named else (HUB, text)
    if host in _HUB_SPELLINGS:
        host, name = HUB, name if "/" in name else f"library/{name}"
    if not _NAME.fullmatch(name) or not _HOST.fullmatch(host):
        raise UsageError(
            f"{text!r} is no repository of images",
            next_step="write it as docker does, without tag or digest: vllm/vllm-openai, or host:port/name",
        )
    if host == HUB:
        return Repository(
            host=HUB, name=name, url=_HUB_REGISTRY, credentials_key=_HUB_CREDENTIALS, listing_url=_HUB_LISTING
        )
    scheme = "http" if is_loopback(host) else "https"
    return Repository(host=host, name=name, url=f"{scheme}://{host}", credentials_key=host)
