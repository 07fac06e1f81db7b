"""Container tests need a Docker engine and docker-registry; in CI they must run, elsewhere they say why they do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from docker.errors import DockerException
from images import build_images

import docker
import registry_server


def _missing(what: str) -> None:
    """Skip, or fail where nothing may be skipped."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}: container tests must run in CI (tools/dev-services.sh start)", pytrace=False)
    pytest.skip(f"{what}; `tools/dev-services.sh start` sets it up")


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """A client of a running engine."""
    try:
        client = docker.from_env(timeout=120)
        client.ping()
    except DockerException as error:
        _missing(f"no Docker engine answers ({error})")
    yield client
    client.close()


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`localhost:PORT` of a registry of this session's own."""
    if not registry_server.available():
        _missing("docker-registry is not installed")
    with registry_server.serve(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture(scope="session")
def stand_in_images(
    engine: docker.DockerClient, registry: str
) -> Iterator[Callable[[Sequence[Mapping[str, Any]]], tuple[str, ...]]]:
    """Make images of these profiles and give their references by digest; removed from the engine at the end."""
    yield lambda profiles: build_images(engine, registry, profiles)
    for image in engine.images.list(filters={"reference": f"{registry}/standin"}):
        engine.images.remove(image.id, force=True)
