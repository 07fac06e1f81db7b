"""Small images pushed to a registry over plain HTTP: no engine, no layers worth the name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest_of(body: bytes) -> str:
    """The digest that names this content."""
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@dataclass(frozen=True)
class Image:
    """What a push made."""

    digest: str
    config_digest: str
    size: int
    manifest: bytes


def image_content(
    text: str, *, architecture: str, labels: Mapping[str, str] | None = None
) -> tuple[bytes, bytes, bytes]:
    """Layer, config and manifest (docker schema 2) of an image that differs by `text`."""
    layer = f"layer {text} {architecture}".encode()
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "created": "2026-08-18T05:16:35Z",
            "config": {"Labels": dict(labels or {})},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(config),
                "digest": digest_of(config),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": len(layer),
                    "digest": digest_of(layer),
                }
            ],
        }
    ).encode()
    return layer, config, manifest


class Pusher:
    """Pushes to one repository of a registry at `localhost:PORT`."""

    def __init__(self, address: str, name: str) -> None:
        self.base = f"http://{address}/v2/{name}"

    def _blob(self, content: bytes) -> None:
        begun = httpx.post(f"{self.base}/blobs/uploads/", trust_env=False).raise_for_status()
        place = httpx.URL(begun.headers["location"]).copy_merge_params({"digest": digest_of(content)})
        httpx.put(place, content=content, trust_env=False).raise_for_status()

    def _manifest(self, reference: str, body: bytes, media_type: str) -> None:
        httpx.put(
            f"{self.base}/manifests/{reference}", content=body, headers={"Content-Type": media_type}, trust_env=False
        ).raise_for_status()

    def image(
        self, text: str, *, tag: str | None = None, architecture: str = "amd64", labels: Mapping[str, str] | None = None
    ) -> Image:
        """Push one platform's image, under a tag or by digest only."""
        layer, config, manifest = image_content(text, architecture=architecture, labels=labels)
        self._blob(layer)
        self._blob(config)
        self._manifest(tag or digest_of(manifest), manifest, DOCKER_MANIFEST)
        return Image(digest_of(manifest), digest_of(config), len(layer) + len(config), manifest)

    def index(self, tag: str, images: Mapping[str, Image]) -> str:
        """Push an OCI index over images by architecture, with an attestation as buildkit adds; its digest."""
        first = next(iter(images.values()))
        entries: list[dict[str, Any]] = [
            {
                "mediaType": DOCKER_MANIFEST,
                "size": len(i.manifest),
                "digest": i.digest,
                "platform": {"os": "linux", "architecture": a},
            }
            for a, i in images.items()
        ]
        entries.append(entries[0] | {"digest": first.digest, "platform": {"os": "unknown", "architecture": "unknown"}})
        body = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}).encode()
        self._manifest(tag, body, OCI_INDEX)
        return digest_of(body)

    def delete(self, digest: str) -> None:
        """Remove a manifest and with it all tags that name it."""
        httpx.delete(f"{self.base}/manifests/{digest}", trust_env=False).raise_for_status()
