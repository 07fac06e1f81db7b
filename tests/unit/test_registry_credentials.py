"""What `docker login` has stored is found where docker finds it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from imagebisect.registry.credentials import Credentials, stored

HUB_KEY = "https://index.docker.io/v1/"
SECRET = "s3cr:et-word"


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """DOCKER_CONFIG in a folder of this test's own."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


def helper(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, name: str = "shelf") -> None:
    """A credential helper program on PATH."""
    program = folder / "bin" / f"docker-credential-{name}"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_without_a_config_nobody_is_logged_in(docker_config: Path) -> None:
    """A missing file is the ordinary anonymous case, no trouble."""
    assert stored("ghcr.io") == stored(HUB_KEY)
    assert stored("ghcr.io").credentials is None
    assert not stored("ghcr.io").trouble
    assert not docker_config.exists()


@pytest.mark.parametrize(
    ("written", "key"),
    [(HUB_KEY, HUB_KEY), ("ghcr.io", "ghcr.io"), ("https://ghcr.io", "ghcr.io"), ("https://ghcr.io/v2/", "ghcr.io")],
)
def test_a_plain_login_is_read(docker_config: Path, written: str, key: str) -> None:
    """`auths` holds user:password in base64, under any of the spellings docker has used; a colon may be in the password."""
    auth = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    docker_config.write_text(json.dumps({"auths": {written: {"auth": auth}}}))
    assert stored(key).credentials == Credentials(username="ann", password=SECRET)


def test_a_login_of_another_registry_is_not_used(docker_config: Path) -> None:
    """Credentials go to the registry they were stored for and to no other."""
    docker_config.write_text(json.dumps({"auths": {"ghcr.io": {"auth": base64.b64encode(b"ann:x").decode()}}}))
    assert stored("quay.io").credentials is None


def test_a_helper_is_asked_for_the_registry(docker_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`credHelpers` of a registry goes before `credsStore`; the program gets the registry on its standard input."""
    helper(
        docker_config.parent,
        monkeypatch,
        'read -r key; test "$1" = get; test "$key" = ghcr.io && echo \'{"Username": "ann", "Secret": "pw"}\'',
    )
    docker_config.write_text(json.dumps({"credsStore": "missing", "credHelpers": {"ghcr.io": "shelf"}}))
    assert stored("ghcr.io").credentials == Credentials(username="ann", password="pw")
    assert "docker-credential-missing" in stored("quay.io").trouble


def test_a_helper_may_give_an_identity_token(docker_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user `<token>` means that the secret is a token to trade in, not a password."""
    helper(docker_config.parent, monkeypatch, 'echo \'{"Username": "<token>", "Secret": "pw"}\'')
    docker_config.write_text(json.dumps({"credsStore": "shelf", "auths": {"ghcr.io": {}}}))
    assert stored("ghcr.io").credentials == Credentials(identity_token="pw")


def test_a_helper_that_knows_nobody_is_no_trouble(docker_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's helpers exit 1 with a sentence when nothing is stored."""
    helper(docker_config.parent, monkeypatch, 'echo "credentials not found in native keychain"; exit 1')
    docker_config.write_text(json.dumps({"credsStore": "shelf"}))
    assert stored("ghcr.io").credentials is None
    assert not stored("ghcr.io").trouble


@pytest.mark.parametrize("script", [f"echo {SECRET}; exit 3", f"echo {SECRET}"])
def test_what_a_broken_helper_prints_is_not_repeated(
    docker_config: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """A helper's output may hold the secret: the trouble names the program and nothing that it said."""
    helper(docker_config.parent, monkeypatch, script)
    docker_config.write_text(json.dumps({"credsStore": "shelf"}))
    found = stored("ghcr.io")
    assert "docker-credential-shelf" in found.trouble
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"auths": {"ghcr.io": {"auth": "%%%"}}}', '{"auths": 3, "credHelpers": 4}']
)
def test_a_config_that_cannot_be_read_stops_nothing(docker_config: Path, text: str) -> None:
    """The registry is then asked without a login."""
    docker_config.write_text(text)
    assert stored("ghcr.io").credentials is None


def test_secrets_do_not_show_in_a_repr() -> None:
    """A value that lands in a log or a traceback shows who, not the password."""
    shown = repr(Credentials(username="ann", password=SECRET, identity_token=SECRET))
    assert "ann" in shown
    assert SECRET not in shown
