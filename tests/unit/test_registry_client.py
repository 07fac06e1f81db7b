"""Logins, limits and faults of registries, against a real HTTP server that has them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from demanding_registry import CONFIG, MANIFEST, Answer, Asked, as_json, basic, content, serve
from imagebisect.errors import BisectError, EnvironmentFault, UsageError
from imagebisect.registry import manifests, tags
from imagebisect.registry.client import Client, Patience
from imagebisect.registry.manifests import Resolved
from imagebisect.registry.repository import parse
from registry_content import digest_of

SECRET = "hunter2-is-the-word"
HASTY = Patience(attempts=3, total_s=10, wait_initial_s=0.01, longest_retry_after_s=1, connect_s=2, read_s=2, body_s=2)


@pytest.fixture(autouse=True)
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody is logged in unless a test writes this file."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


def ask(address: str, reference: str = "t") -> Resolved:
    """Resolve a tag of the server's repository."""
    with Client(parse(f"{address}/team/image"), HASTY) as client:
        return manifests.resolve(client, reference, architecture="amd64")


def log_in(path: Path, address: str, **more: str) -> None:
    """Store a login as `docker login` does."""
    auth = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    path.write_text(json.dumps({"auths": {address: {"auth": auth, **more}}}))


def shown(error: BisectError) -> str:
    """All that a reader would see of an error."""
    return f"{error} {error.what} {error.where} {error.next_step} {error.__cause__!r}"


def bearer(server_address: Callable[[], str], *, allow: Callable[[Asked], bool]) -> Callable[[Asked], Answer]:
    """A registry that wants a token, and its token service at the same address."""

    def rule(asked: Asked) -> Answer:
        if asked.path == "/token":
            if not allow(asked):
                return as_json({"details": f"bad {SECRET}"}, 401)
            return as_json({"token": "opaque", "expires_in": 300})
        if asked.authorization != "Bearer opaque":
            realm = f'Bearer realm="http://{server_address()}/token",service="reg.example",scope="repository:team/image:pull"'
            return as_json({"errors": [{"code": "UNAUTHORIZED"}]}, 401, {"WWW-Authenticate": realm})
        return content(asked)

    return rule


def test_an_anonymous_token_is_fetched_once() -> None:
    """Docker Hub's way: 401, a token from the address it names with service and scope, then all answers with it."""
    with serve(content) as server:
        server.rule = bearer(lambda: server.address, allow=lambda asked: not asked.authorization)
        found = ask(server.address)
        assert (found.digest, found.config_digest) == (digest_of(MANIFEST), digest_of(CONFIG))
        token = [asked for asked in server.asked if asked.path == "/token"]
        assert len(token) == 1
        assert token[0].query == {"service": ["reg.example"], "scope": ["repository:team/image:pull"]}


def test_a_stored_login_is_used_for_the_token(docker_config: Path) -> None:
    """`docker login`'s user and password go to the token service, and only there."""
    with serve(content) as server:
        log_in(docker_config, server.address)
        server.rule = bearer(lambda: server.address, allow=lambda asked: asked.authorization == basic("ann", SECRET))
        assert ask(server.address).digest == digest_of(MANIFEST)
        others = [asked.authorization for asked in server.asked if asked.path != "/token"]
        assert set(others) == {"", "Bearer opaque"}


def test_an_identity_token_is_traded_in(docker_config: Path) -> None:
    """A helper's identity token is posted as a refresh token."""
    with serve(content) as server:
        log_in(docker_config, server.address, identitytoken="idt")
        server.rule = bearer(lambda: server.address, allow=lambda asked: "refresh_token=idt" in asked.body)
        assert ask(server.address).digest == digest_of(MANIFEST)


def test_a_registry_with_plain_passwords_is_answered(docker_config: Path) -> None:
    """A `htpasswd` registry wants Basic credentials."""

    def rule(asked: Asked) -> Answer:
        if asked.authorization != basic("ann", SECRET):
            return Answer(401, headers={"WWW-Authenticate": 'Basic realm="here"'})
        return content(asked)

    with serve(rule) as server:
        with pytest.raises(EnvironmentFault, match="without a login") as caught:
            ask(server.address)
        assert f"docker login {server.address}" in caught.value.next_step
        log_in(docker_config, server.address)
        assert ask(server.address).digest == digest_of(MANIFEST)


def test_a_wrong_password_is_a_refusal_without_the_password(docker_config: Path) -> None:
    """The error says to log in; neither our secret nor the server's echo of it is in it."""
    with serve(content) as server:
        log_in(docker_config, server.address)
        server.rule = bearer(lambda: server.address, allow=lambda _: False)
        with pytest.raises(
            EnvironmentFault, match=r"does not let us read .*team/image with the stored login"
        ) as caught:
            ask(server.address)
        assert caught.value.cause == "registry"
        assert "docker login" in caught.value.next_step
        assert SECRET not in shown(caught.value)
        assert base64.b64encode(f"ann:{SECRET}".encode()).decode() not in shown(caught.value)


def test_a_password_is_not_sent_to_an_unencrypted_token_service(docker_config: Path) -> None:
    """A registry that names a foreign http address for tokens gets no credentials there."""
    realm = 'Bearer realm="http://tokens.example.org/token",service="x"'
    with serve(lambda _: Answer(401, headers={"WWW-Authenticate": realm})) as server:
        log_in(docker_config, server.address)
        with pytest.raises(EnvironmentFault, match="not encrypted") as caught:
            ask(server.address)
        assert caught.value.where == "http://tokens.example.org/token"


def test_a_token_does_not_follow_a_redirect() -> None:
    """Docker Hub keeps blobs at another host: it gets the request and not the token."""
    with serve(lambda _: Answer(body=CONFIG)) as store, serve(content) as server:
        allowed = bearer(lambda: server.address, allow=lambda _: True)

        def rule(asked: Asked) -> Answer:
            if "/blobs/" in asked.path and asked.authorization:
                return Answer(307, headers={"Location": f"http://{store.address}/blob?signature=x"})
            return allowed(asked)

        server.rule = rule
        assert ask(server.address).config_digest == digest_of(CONFIG)
        assert [asked.authorization for asked in store.asked] == [""]


def test_a_broken_helper_is_mentioned_when_it_matters(docker_config: Path) -> None:
    """Refused without a login, the reader learns that docker's helper could not be asked."""
    docker_config.write_text(json.dumps({"credsStore": "not-installed"}))
    with (
        serve(lambda _: Answer(403)) as server,
        pytest.raises(EnvironmentFault, match="docker-credential-not-installed failed"),
    ):
        ask(server.address)


def faulty(*faults: Answer) -> Callable[[Asked], Answer]:
    """Give these answers first, then serve."""
    left = list(faults)
    return lambda asked: left.pop(0) if left else content(asked)


@pytest.mark.parametrize(
    "faults",
    [
        (Answer(503), Answer(500)),
        (Answer(hang_up=True),),
        (Answer(429, headers={"Retry-After": "0"}),),
        (Answer(429), Answer(hang_up=True)),
    ],
)
def test_a_passing_fault_is_tried_again(faults: tuple[Answer, ...]) -> None:
    """A 5xx, a broken connection or a 429 does not end the command at once."""
    with serve(faulty(*faults)) as server:
        assert ask(server.address).digest == digest_of(MANIFEST)
        assert len(server.asked) == len(faults) + 2


def test_the_wait_that_the_registry_asks_for_is_kept() -> None:
    """`Retry-After: 1` is one second, not our own shorter pace."""
    with serve(faulty(Answer(429, headers={"Retry-After": "1"}))) as server:
        began = time.monotonic()
        ask(server.address)
        assert time.monotonic() - began >= 1


def test_a_long_rate_limit_is_said_at_once() -> None:
    """Hours are not waited for: the error says how long and that a login has a higher limit."""
    with serve(lambda _: Answer(429, headers={"Retry-After": "21600"})) as server:
        with pytest.raises(EnvironmentFault, match="no more for 21600 s") as caught:
            ask(server.address)
        assert "docker login" in caught.value.next_step
        assert len(server.asked) == 1


def test_a_lasting_fault_ends_the_command() -> None:
    """After the last try, the status and the address, exit code 20."""
    with serve(lambda _: Answer(502)) as server:
        with pytest.raises(EnvironmentFault, match="answered 502") as caught:
            ask(server.address)
        assert server.address in caught.value.where
        assert len(server.asked) == HASTY.attempts


def test_a_silent_registry_is_given_up() -> None:
    """No answer within the deadline is a registry that cannot be reached."""

    def rule(asked: Asked) -> Answer:
        time.sleep(1)
        return content(asked)

    with (
        serve(rule) as server,
        Client(parse(f"{server.address}/x"), replace(HASTY, attempts=1, read_s=0.2)) as client,
        pytest.raises(EnvironmentFault, match="could not be reached"),
    ):
        manifests.resolve(client, "t")


def test_content_that_is_not_what_its_digest_says_is_refused() -> None:
    """A proxy or mirror that changes an answer is noticed: digests are proven on the content."""
    with serve(content) as server, pytest.raises(EnvironmentFault, match="asked for sha256:0000"):
        ask(server.address, "sha256:" + "0" * 64)


def test_a_digest_is_made_of_the_content_where_the_registry_gives_none() -> None:
    """`Docker-Content-Digest` is optional."""

    def rule(asked: Asked) -> Answer:
        answer = content(asked)
        answer.headers.pop("Docker-Content-Digest", None)
        return answer

    with serve(rule) as server:
        assert ask(server.address).digest == digest_of(MANIFEST)


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b'"x"'])
def test_a_login_page_is_not_an_image(body: bytes) -> None:
    """What is no manifest is an error with an address, not a traceback."""
    with serve(lambda _: Answer(body=body)) as server, pytest.raises(EnvironmentFault) as caught:
        ask(server.address)
    assert caught.value.next_step


def test_an_artifact_is_not_an_image() -> None:
    """A tag may name a chart or a signature."""
    body = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.example.thing", "blobs": []}).encode()
    with serve(lambda _: Answer(body=body)) as server, pytest.raises(UsageError, match="no container image"):
        ask(server.address)


def test_docker_hubs_listing_is_read_over_pages() -> None:
    """Its own listing gives digests and dates with the tags; the second page is where it says."""
    page = {"name": "nightly-1", "digest": "sha256:" + "1" * 64, "last_updated": "2026-08-20T00:00:00Z"}
    older = {"name": "nightly-0", "digest": "sha256:" + "0" * 64, "images": [{"digest": "sha256:" + "a" * 64}, {}]}

    def rule(asked: Asked) -> Answer:
        assert asked.path == "/v2/repositories/team/image/tags"
        if asked.query.get("page") == ["2"]:
            return as_json({"results": [older, {}], "next": None})
        return as_json({"results": [page], "next": f"http://{server.address}{asked.path}?page=2"})

    with serve(rule) as server:
        hub = replace(parse(f"{server.address}/team/image"), listing_url=f"http://{server.address}")
        with Client(hub, HASTY) as client:
            found = list(tags.walk(client))
    assert [tag.name for tag in found] == ["nightly-1", "nightly-0"]
    assert found[0].pushed == "2026-08-20T00:00:00Z"
    assert found[1].starts_with("sha256:aaaa")


def test_a_prefix_that_fits_two_images_needs_more_digits() -> None:
    """Neither is taken by chance."""
    listed = [{"name": f"t{n}", "digest": f"sha256:abcdef0{n}" + "0" * 56} for n in range(2)]
    with serve(lambda _: as_json({"results": listed})) as server:
        hub = replace(parse(f"{server.address}/team/image"), listing_url=f"http://{server.address}")
        with Client(hub, HASTY) as client, pytest.raises(UsageError, match="fits several images"):
            tags.find_prefix(client, "sha256:abcdef0")


def test_a_listing_is_read_over_pages() -> None:
    """A registry that pages its list says in a Link where the next page is."""

    def rule(asked: Asked) -> Answer:
        if asked.query.get("last") == ["b"]:
            return as_json({"name": "team/image", "tags": ["c"]})
        link = f'<{asked.path}?last=b&n=2>; rel="next"'
        return as_json({"name": "team/image", "tags": ["a", "b"]}, headers={"Link": link})

    with serve(rule) as server, Client(parse(f"{server.address}/team/image"), HASTY) as client:
        assert [tag.name for tag in tags.walk(client)] == ["a", "b", "c"]


def test_a_listing_that_leads_elsewhere_is_not_followed() -> None:
    """A `next` or Link of another host ends the list: credentials stay where they belong."""
    elsewhere = {"Link": '<http://elsewhere.example/v2/x/tags/list?last=a>; rel="next"'}
    with (
        serve(lambda _: as_json({"tags": ["a"]}, headers=elsewhere)) as server,
        Client(parse(f"{server.address}/team/image"), HASTY) as client,
    ):
        assert [tag.name for tag in tags.walk(client)] == ["a"]
    assert len(server.asked) == 1
