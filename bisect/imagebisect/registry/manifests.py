"""From a tag or digest to what an image is: index, platform manifest, config, labels."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagebisect.config.schema import DIGEST
from imagebisect.errors import EnvironmentFault, UsageError
from imagebisect.outcome import Cause
from imagebisect.registry.client import Client, Reply
from imagebisect.registry.repository import Repository

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
"""All four: a registry that is not offered an index answers with another document, of another digest."""

_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_NOT_FOUND = 404


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What a registry knows of one image. `digest` is the platform's manifest; None in `index_digest`: no index.

    `config_digest` is the image id, a build's identity. `compressed_bytes` counts config and layers, as pulled
    onto an empty host. `other_digests` are the index's other platforms, by `os/architecture`.
    """

    repository: str
    index_digest: str | None
    digest: str
    config_digest: str
    labels: Mapping[str, str]
    created: str | None
    architecture: str
    compressed_bytes: int
    other_digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def top_digest(self) -> str:
        """The digest that the tag itself names, which docker prints after a pull by tag."""
        return self.index_digest or self.digest


@dataclass(frozen=True, kw_only=True)
class Head:
    """The digest and media type of a tag, without its content (a HEAD counts as no pull)."""

    digest: str
    media_type: str


def host_architecture() -> str:
    """This machine's architecture in the registries' words: amd64, arm64, ..."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def head(client: Client, reference: str) -> Head | None:
    """What a tag or digest names; None when it is not there (or the registry does not say its digest)."""
    reply = client.get(f"/v2/{client.repository.name}/manifests/{reference}", accept=ACCEPT, method="HEAD")
    digest = reply.headers.get("docker-content-digest", "")
    if reply.status == _NOT_FOUND or not DIGEST.fullmatch(digest):
        return None
    return Head(digest=digest, media_type=_media_type(reply))


def platforms(client: Client, digest: str) -> tuple[str, ...]:
    """The digests of an index's images."""
    return tuple(_platforms(_manifest(client, digest)[1]).values())


def resolve(client: Client, reference: str, *, architecture: str | None = None) -> Resolved:
    """Read what `reference` (a tag or a full digest) is on linux for an architecture, this host's unless said.

    Raises UsageError when it is gone or has no image for the platform, EnvironmentFault for the registry's faults.
    """
    wanted = architecture or host_architecture()
    if not _TAG.fullmatch(reference) and not DIGEST.fullmatch(reference):
        raise UsageError(
            f"{reference!r} is neither a tag nor a full digest",
            where=str(client.repository),
            next_step="a digest is sha256: and 64 hexadecimal digits; a tag holds letters, digits and _ . - only",
        )
    digest, document, media_type = _manifest(client, reference)
    index_digest: str | None = None
    others: dict[str, str] = {}
    if media_type in INDEX_TYPES or "manifests" in document:
        index_digest = digest
        found = _platforms(document)
        mine = f"linux/{wanted}"
        if mine not in found:
            raise UsageError(
                f"{_named(client.repository, reference)} has no image for {mine}, only for {', '.join(found) or 'none'}",
                where=digest,
                next_step="choose a tag that is built for this machine",
            )
        others = {name: value for name, value in found.items() if name != mine}
        digest, document, media_type = _manifest(client, found[mine])
    config, layers = document.get("config"), document.get("layers")
    if media_type not in MANIFEST_TYPES and not (isinstance(config, dict) and isinstance(layers, list)):
        raise UsageError(
            f"{_named(client.repository, reference)} is no container image (its media type is {media_type or 'not said'})",
            where=digest,
            next_step="choose the tag of an image",
        )
    if not isinstance(config, dict) or not DIGEST.fullmatch(str(config.get("digest"))):
        raise _odd(client, f"the manifest {digest} names no config")
    settings = _config(client, str(config["digest"]))
    inner = settings.get("config")
    labels = inner.get("Labels") if isinstance(inner, dict) else None
    sizes = [part.get("size") for part in (config, *(layers or ())) if isinstance(part, dict)]
    return Resolved(
        repository=str(client.repository),
        index_digest=index_digest,
        digest=digest,
        config_digest=str(config["digest"]),
        labels={str(name): str(value) for name, value in labels.items()} if isinstance(labels, dict) else {},
        created=str(settings["created"]) if settings.get("created") else None,
        architecture=str(settings.get("architecture") or wanted),
        compressed_bytes=sum(size for size in sizes if isinstance(size, int)),
        other_digests=others,
    )


def _manifest(client: Client, reference: str) -> tuple[str, dict[str, Any], str]:
    """Digest, content and media type of a manifest; the digest is proven on the content."""
    reply = client.get(f"/v2/{client.repository.name}/manifests/{reference}", accept=ACCEPT)
    if reply.status == _NOT_FOUND:
        raise gone(client.repository, reference)
    digest = f"sha256:{hashlib.sha256(reply.body).hexdigest()}"
    said = reply.headers.get("docker-content-digest", digest)
    wanted = reference if DIGEST.fullmatch(reference) else digest
    if digest != wanted or (DIGEST.fullmatch(said) and said != digest):
        raise _odd(client, f"asked for {reference}, the registry gave {digest} and calls it {said}")
    document = reply.json()
    if not isinstance(document, dict):
        raise _odd(client, f"{digest} is no manifest")
    return digest, document, str(document.get("mediaType") or _media_type(reply))


def _config(client: Client, digest: str) -> dict[str, Any]:
    reply = client.get(f"/v2/{client.repository.name}/blobs/{digest}")
    if reply.status == _NOT_FOUND:
        raise gone(client.repository, digest)
    if f"sha256:{hashlib.sha256(reply.body).hexdigest()}" != digest:
        raise _odd(client, f"the config's content is not what {digest} names")
    document = reply.json()
    if not isinstance(document, dict):
        raise _odd(client, f"{digest} is no image's config")
    return document


def _platforms(index: Mapping[str, Any]) -> dict[str, str]:
    """`os/architecture` to digest; attestations (platform unknown) are no images. The first of a kind counts."""
    found: dict[str, str] = {}
    for entry in index.get("manifests") or ():
        place = entry.get("platform") if isinstance(entry, dict) else None
        if isinstance(place, dict) and place.get("os") != "unknown" and DIGEST.fullmatch(str(entry.get("digest"))):
            found.setdefault(f"{place.get('os')}/{place.get('architecture')}", str(entry["digest"]))
    return found


def _media_type(reply: Reply) -> str:
    return str(reply.headers.get("content-type", "")).partition(";")[0].strip()


def _named(repository: Repository, reference: str) -> str:
    return f"{repository}@{reference}" if DIGEST.fullmatch(reference) else f"{repository}:{reference}"


def gone(repository: Repository, reference: str) -> UsageError:
    """The error for a tag or digest that the registry does not have."""
    what = "digest" if DIGEST.fullmatch(reference) else "tag"
    advice = "check its spelling"
    if repository.listing_url:
        advice += f" against {repository.listing_url}/r/{repository.name}/tags"
    if repository.name == "vllm/vllm-openai":
        advice += "; nightly tags are deleted after about 14 days, so pin them by digest while they are there"
    return UsageError(
        f"the registry has no {what} {reference} of {repository} (any more)",
        where=_named(repository, reference),
        next_step=advice,
    )


def _odd(client: Client, what: str) -> EnvironmentFault:
    return EnvironmentFault(
        what,
        where=str(client.repository),
        next_step="something between here and the registry changes its answers; try without the proxy or mirror",
        cause=Cause.REGISTRY,
    )
