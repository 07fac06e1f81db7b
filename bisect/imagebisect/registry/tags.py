"""A repository's tags, and the search for the image that a digest's first digits name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from imagebisect.config.schema import DIGEST
from imagebisect.errors import EnvironmentFault, UsageError
from imagebisect.outcome import Cause
from imagebisect.registry import manifests
from imagebisect.registry.client import Client, Reply
from imagebisect.registry.manifests import Resolved

PAGE = 100
MAX_PAGES = 50
"""Pages of a listing that are read; no repository of interest has 5,000 tags."""

MAX_ASKED = 500
"""Tags of a registry without digests in its listing that are asked one by one for a prefix."""

_NEXT = re.compile(r'<([^>]*)>\s*;\s*rel="?next"?')
_PREFIX = re.compile(r"sha256:[0-9a-f]{7,64}")
_NOT_FOUND = 404


@dataclass(frozen=True, kw_only=True)
class Tag:
    """A tag; Docker Hub's listing also says its digests and when it was pushed (UTC, ISO 8601)."""

    name: str
    digest: str | None = None
    platform_digests: tuple[str, ...] = ()
    pushed: str | None = None

    def starts_with(self, prefix: str) -> bool:
        """Whether the tag's own digest or one of its platforms' begins so."""
        return any(digest.startswith(prefix) for digest in (self.digest or "", *self.platform_digests))


def walk(client: Client) -> Iterator[Tag]:
    """Every tag: newest first on Docker Hub, in the registry's order elsewhere. At most `MAX_PAGES` pages."""
    if client.repository.listing_url:
        listed = False
        for tag in _hub(client):
            listed = True
            yield tag
        if listed:
            return
    yield from _listed(client)


def _hub(client: Client) -> Iterator[Tag]:
    """Docker Hub's own listing; nothing for a repository that it shows to nobody without a login."""
    base = f"{client.repository.listing_url}/v2/repositories/{client.repository.name}/tags"
    url = f"{base}?page_size={PAGE}&ordering=last_updated"
    for _ in range(MAX_PAGES):
        reply = client.get_public(url)
        document = reply.json() if reply.status != _NOT_FOUND else None
        if not isinstance(document, dict):
            return
        for item in document.get("results") or ():
            if isinstance(item, dict) and item.get("name"):
                yield _tag(item)
        following = document.get("next")
        if not isinstance(following, str) or not following.startswith(f"{client.repository.listing_url}/"):
            return
        url = following


def _tag(item: dict[str, Any]) -> Tag:
    images = [image for image in item.get("images") or () if isinstance(image, dict)]
    return Tag(
        name=str(item["name"]),
        digest=str(item["digest"]) if item.get("digest") else None,
        platform_digests=tuple(str(image["digest"]) for image in images if image.get("digest")),
        pushed=item.get("tag_last_pushed") or item.get("last_updated"),
    )


def _listed(client: Client) -> Iterator[Tag]:
    path = f"/v2/{client.repository.name}/tags/list?n={PAGE}"
    for _ in range(MAX_PAGES):
        reply = client.get(path)
        if reply.status == _NOT_FOUND:
            raise UsageError(
                f"the registry {client.repository.host} has no repository {client.repository.name}",
                where=str(client.repository),
                next_step="check the name in `repository:`",
            )
        document = reply.json()
        names = document.get("tags") if isinstance(document, dict) else None
        yield from (Tag(name=str(name)) for name in names or ())
        following = _following(client, reply)
        if following is None:
            return
        path = following


def _following(client: Client, reply: Reply) -> str | None:
    """The path of the next page; a link that leaves the registry is not followed."""
    link = _NEXT.search(reply.headers.get("link", ""))
    if link is None:
        return None
    parts = urlsplit(urljoin(f"{client.repository.url}/", link[1]))
    if f"{parts.scheme}://{parts.netloc}" != client.repository.url:
        return None
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def find_prefix(client: Client, prefix: str, tag: str | None = None, *, architecture: str | None = None) -> Resolved:
    """The image whose index or platform digest begins with `prefix`: the tag's, else that of any tag.

    Raises UsageError when the tag has moved on, when no tag has such an image, or when several different ones do.
    """
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(
            f"{prefix!r} is no beginning of a digest", next_step="write sha256: and at least 7 hexadecimal digits"
        )
    if DIGEST.fullmatch(prefix):
        return manifests.resolve(client, prefix, architecture=architecture)
    if tag is not None:
        resolved = manifests.resolve(client, tag, architecture=architecture)
        if matching(resolved, prefix) is None:
            for place, digest in resolved.other_digests.items():
                if digest.startswith(prefix):
                    raise UsageError(
                        f"{prefix} begins the {place} image of the tag {tag}; the one for this machine is {resolved.digest}",
                        where=f"{client.repository}:{tag}",
                        next_step="take the prefix of the image that is to run here, or remove `digest_prefix:`",
                    )
            raise UsageError(
                f"the tag {tag} has moved on: it names {resolved.top_digest} now, which does not begin with {prefix}",
                where=f"{client.repository}:{tag}",
                next_step="write the full digest if you have it (`docker image inspect` where it was pulled); "
                "or remove `tag:` to look for the prefix among all tags",
            )
        return resolved
    found = _search(client, prefix)
    if not found:
        raise UsageError(
            f"no tag of {client.repository} names an image that begins with {prefix} (any more)",
            where=str(client.repository),
            next_step="an image without a tag can only be had by its full digest: `docker image inspect` where it was "
            "pulled, or ask whoever named it",
        )
    if len(found) > 1:
        raise UsageError(
            f"{prefix} fits several images: {', '.join(found)}",
            where=str(client.repository),
            next_step="write more of its digits",
        )
    return manifests.resolve(client, found[0], architecture=architecture)


def matching(resolved: Resolved, prefix: str) -> str | None:
    """The one of an image's digests that begins with `prefix`: its index, or this platform's manifest."""
    digests = (resolved.index_digest, resolved.digest)
    return next((digest for digest in digests if digest is not None and digest.startswith(prefix)), None)


def _search(client: Client, prefix: str) -> list[str]:
    """The different digests among all tags that begin with `prefix`."""
    found: dict[str, None] = {}
    asked = 0
    for tag in walk(client):
        if tag.digest is None:
            asked += 1
            if asked > MAX_ASKED:
                raise EnvironmentFault(
                    f"{client.repository} has more than {MAX_ASKED} tags, and its registry lists no digests",
                    where=str(client.repository),
                    next_step="name the image's tag beside `digest_prefix:`",
                    cause=Cause.REGISTRY,
                )
            tag = _asked(client, tag)  # noqa: PLW2901 - the same tag, with its digests
        for digest in (tag.digest or "", *tag.platform_digests):
            if digest.startswith(prefix):
                found[digest] = None
    return list(found)


def _asked(client: Client, tag: Tag) -> Tag:
    """A tag with its digests; those of an index's platforms cost a request more."""
    known = manifests.head(client, quote(tag.name, safe=""))
    if known is None:
        return tag
    platforms = tuple(manifests.platforms(client, known.digest)) if known.media_type in manifests.INDEX_TYPES else ()
    return Tag(name=tag.name, digest=known.digest, platform_digests=platforms, pushed=tag.pushed)
