"""What a registry knows of an image: digests, labels, tags. Docker Hub and any other v2 registry."""

from __future__ import annotations

from imagebisect.registry import manifests, repository, tags
from imagebisect.registry.client import Client
from imagebisect.registry.manifests import Resolved
from imagebisect.registry.resolving import ResolveRow, resolve_builds, resolve_file
from imagebisect.registry.tags import Tag

__all__ = [
    "ResolveRow",
    "Resolved",
    "Tag",
    "find_prefix",
    "list_tags",
    "resolve",
    "resolve_builds",
    "resolve_file",
]


def resolve(repository_name: str, tag_or_digest: str, *, architecture: str | None = None) -> Resolved:
    """What a tag or full digest is: digests, labels, creation time, size, for this host's architecture unless said.

    Raises UsageError when the registry does not have it, EnvironmentFault when the registry cannot be asked.
    """
    with Client(repository.parse(repository_name)) as client:
        return manifests.resolve(client, tag_or_digest, architecture=architecture)


def list_tags(repository_name: str) -> tuple[Tag, ...]:
    """All tags of a repository; Docker Hub's come newest first and with their digests."""
    with Client(repository.parse(repository_name)) as client:
        return tuple(tags.walk(client))


def find_prefix(repository_name: str, prefix: str, tag: str | None = None) -> Resolved:
    """The image whose index or platform digest begins with `prefix`; `tag` says where to look.

    Raises UsageError when the tag has moved on, or when no tag, or several, have such an image.
    """
    with Client(repository.parse(repository_name)) as client:
        return tags.find_prefix(client, prefix, tag)
