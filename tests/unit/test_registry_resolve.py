"""Tags and prefixes become digests: against a real registry with small images in it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

import registry_server
from imagebisect import registry
from imagebisect.config import load_builds, unpinned
from imagebisect.errors import ConfigError, ExitCode, UsageError
from imagebisect.registry import tags
from imagebisect.registry.client import Patience
from registry_content import Pusher

MINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
OTHER = "arm64" if MINE == "amd64" else "amd64"
LABELS = {"org.opencontainers.image.revision": "a" * 40}
HASTY = Patience(attempts=1, connect_s=2)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`localhost:PORT` of a registry of this module's own."""
    if not registry_server.available():
        if os.environ.get("CI"):
            pytest.fail("docker-registry is not installed (tools/dev-services.sh start)", pytrace=False)
        pytest.skip("docker-registry is not installed; `tools/dev-services.sh start` sets it up")
    with registry_server.serve(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def pusher(address: str, request: pytest.FixtureRequest) -> Pusher:
    """An empty repository of this test's own."""
    return Pusher(address, request.node.originalname)


def repository(pusher: Pusher) -> str:
    """The name by which docker would know it."""
    return pusher.base.removeprefix("http://").replace("/v2/", "/")


def test_a_tag_of_one_platform_gives_manifest_and_config(pusher: Pusher) -> None:
    """A per-arch tag has no index; labels, creation time and compressed size come from manifest and config."""
    image = pusher.image("one", tag="solo", architecture=MINE, labels=LABELS)
    found = registry.resolve(repository(pusher), "solo")
    assert found.index_digest is None
    assert (found.digest, found.config_digest) == (image.digest, image.config_digest)
    assert found.top_digest == image.digest
    assert found.labels == LABELS
    assert found.created == "2026-08-18T05:16:35Z"
    assert (found.architecture, found.compressed_bytes) == (MINE, image.size)


def test_an_index_gives_all_three_digests(pusher: Pusher) -> None:
    """A multi-platform tag: the index, this platform's manifest, its config; an attestation is no platform."""
    images = {a: pusher.image("multi", architecture=a, labels=LABELS) for a in (OTHER, MINE)}
    index = pusher.index("nightly", images)
    found = registry.resolve(repository(pusher), "nightly")
    assert found.index_digest == found.top_digest == index
    assert (found.digest, found.config_digest) == (images[MINE].digest, images[MINE].config_digest)
    assert found.other_digests == {f"linux/{OTHER}": images[OTHER].digest}
    assert registry.resolve(repository(pusher), index) == found
    assert registry.resolve(repository(pusher), index, architecture=OTHER).digest == images[OTHER].digest


def test_an_index_without_this_platform_says_which_it_has(pusher: Pusher) -> None:
    """What cannot run here is refused before hours are spent on a pull."""
    pusher.index("nightly", {"s390x": pusher.image("far", architecture="s390x")})
    with pytest.raises(UsageError, match=f"no image for linux/{MINE}, only for linux/s390x"):
        registry.resolve(repository(pusher), "nightly")


def test_a_deleted_tag_and_a_deleted_digest_are_said_to_be_gone(pusher: Pusher) -> None:
    """404 is the user's affair, not the host's: exit code 2, and what is gone by name."""
    image = pusher.image("gone", tag="old")
    pusher.delete(image.digest)
    for reference in ("old", image.digest, "never"):
        with pytest.raises(UsageError, match=rf"has no (tag|digest) {reference} .*any more") as caught:
            registry.resolve(repository(pusher), reference)
        assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("reference", ["sha256:abc", "a/b", "", "tag?x=1", "../x"])
def test_what_is_neither_tag_nor_digest_is_not_sent(pusher: Pusher, reference: str) -> None:
    """A short digest as a tag would only ever be a puzzling 404."""
    with pytest.raises(UsageError, match="neither a tag nor a full digest"):
        registry.resolve(repository(pusher), reference)


def test_all_tags_are_listed(pusher: Pusher) -> None:
    """Names come in whatever order the registry keeps them."""
    for number in range(5):
        pusher.image(str(number), tag=f"t{number}")
    assert sorted(tag.name for tag in registry.list_tags(repository(pusher))) == ["t0", "t1", "t2", "t3", "t4"]


def test_tags_of_no_repository_are_an_error(address: str) -> None:
    """A misspelt repository is named."""
    with pytest.raises(UsageError, match="has no repository missing"):
        registry.list_tags(f"{address}/missing")


def test_a_prefix_is_confirmed_by_its_tag(pusher: Pusher) -> None:
    """A prefix of the index or of the platform's manifest fits the tag; each is pinned as what it is."""
    image = pusher.image("p", architecture=MINE)
    index = pusher.index("launch", {MINE: image})
    for digest in (index, image.digest):
        found = registry.find_prefix(repository(pusher), digest[:19], "launch")
        assert tags.matching(found, digest[:19]) == digest


def test_a_tag_that_has_moved_on_is_not_taken(pusher: Pusher) -> None:
    """The tag names another image now: an error that says which, not a silent other build."""
    old = pusher.image("before", tag="launch")
    new = pusher.image("after", tag="launch")
    with pytest.raises(UsageError, match=f"moved on: it names {new.digest}") as caught:
        registry.find_prefix(repository(pusher), old.digest[:19], "launch")
    assert "full digest" in caught.value.next_step


def test_a_prefix_of_another_platform_is_called_that(pusher: Pusher) -> None:
    """A prefix copied from another machine's image does not pin this machine's."""
    images = {a: pusher.image("both", architecture=a) for a in (MINE, OTHER)}
    pusher.index("nightly", images)
    with pytest.raises(UsageError, match=f"begins the linux/{OTHER} image"):
        registry.find_prefix(repository(pusher), images[OTHER].digest[:19], "nightly")


def test_a_prefix_alone_is_looked_for_among_all_tags(pusher: Pusher) -> None:
    """Without a tag, indexes and the platforms inside them are searched; an unknown prefix says so."""
    for number in range(3):
        pusher.image(f"noise {number}", tag=f"a{number}")
    inside = pusher.image("inside", architecture=MINE)
    index = pusher.index("z", {MINE: inside})
    assert registry.find_prefix(repository(pusher), inside.digest[:14]).digest == inside.digest
    assert registry.find_prefix(repository(pusher), index[:14]).index_digest == index
    with pytest.raises(UsageError, match=r"no tag of .* begins with sha256:0000000"):
        registry.find_prefix(repository(pusher), "sha256:0000000")
    with pytest.raises(UsageError, match="no beginning of a digest"):
        registry.find_prefix(repository(pusher), "sha256:00")


# --------------------------------------------------------------------------- a whole file


def builds_file(folder: Path, repository_name: str, lines: str) -> Path:
    """A builds file with comments in it."""
    path = folder / "images.yaml"
    path.write_text(f"# oldest first\nschema: 1\nrepository: {repository_name}\nbuilds:\n{lines}", encoding="utf-8")
    return path


def test_a_builds_file_is_pinned_in_place(pusher: Pusher, tmp_path: Path) -> None:
    """Tags and prefixes get their digests, comments and everything else stay, and a second time nothing is left."""
    ship = pusher.image("ship", tag="launch")
    index = pusher.index("nightly-1", {MINE: pusher.image("n1", architecture=MINE)})
    last = pusher.image("last", tag="last")
    path = builds_file(
        tmp_path,
        repository(pusher),
        f"  # a model-launch image\n"
        f"  - name: ship\n    tag: launch\n    digest_prefix: {ship.digest[:19]}\n    line: off-main\n"
        f"  - {{name: again, same_as: ship}}  # for A/A\n"
        f"  - {{name: n1, tag: nightly-1}}\n"
        f"  - name: last\n    digest: {last.digest}\n",
    )
    before = path.read_text()
    looked = registry.resolve_file(path, write=False)
    assert path.read_text() == before
    rows = registry.resolve_file(path, write=True)
    assert rows == looked
    assert [(row.name, row.digest, row.error) for row in rows] == [("ship", ship.digest, None), ("n1", index, None)]
    builds = load_builds(path)
    assert unpinned(builds) == ()
    assert [getattr(build.source, "digest", None) for build in builds] == [ship.digest, ship.digest, index, last.digest]
    kept = [line for line in path.read_text().splitlines() if "#" in line]
    assert kept == [line for line in before.splitlines() if "#" in line]
    assert registry.resolve_file(path, write=True) == ()


def test_one_build_that_is_gone_does_not_hold_up_the_others(pusher: Pusher, tmp_path: Path) -> None:
    """What can be pinned is pinned; the row of the other says why not, what to do, and the exit code."""
    there = pusher.image("there", tag="there")
    path = builds_file(tmp_path, repository(pusher), "  - {name: a, tag: deleted}\n  - {name: b, tag: there}\n")
    gone, found = registry.resolve_file(path, write=True)
    assert found.digest == there.digest
    assert gone.digest is None
    assert gone.exit_code == ExitCode.USAGE
    assert "no tag deleted" in (gone.error or "")
    assert [build.name for build in unpinned(load_builds(path))] == ["a"]


def test_two_tags_of_one_image_are_not_two_builds(pusher: Pusher, tmp_path: Path) -> None:
    """A moving tag and a dated one may be the same image; pinning both would make a list that `run` refuses."""
    image = pusher.image("same", tag="nightly")
    pusher.index("dated", {MINE: image})
    path = builds_file(tmp_path, repository(pusher), "  - {name: a, tag: nightly}\n  - {name: b, tag: dated}\n")
    _, twin = registry.resolve_file(path, write=True)
    assert "same image as a" in (twin.error or "")
    assert "same_as: a" in (twin.error or "")
    assert len(load_builds(path)) == 2


def test_a_registry_that_is_down_is_the_hosts_fault(tmp_path: Path) -> None:
    """Exit code 20 for each of its builds, the address in the message, and the file untouched."""
    port = registry_server.free_port()
    path = builds_file(tmp_path, f"localhost:{port}/x", "  - {name: a, tag: one}\n  - {name: b, tag: two}\n")
    before = path.read_text()
    rows = registry.resolve_file(path, write=True, patience=HASTY)
    assert {row.exit_code for row in rows} == {ExitCode.ENVIRONMENT}
    assert all(f"localhost:{port}" in (row.error or "") for row in rows)
    assert path.read_text() == before


def test_a_wrong_builds_file_is_reported_as_such(tmp_path: Path) -> None:
    """No registry is asked for a file with problems in it."""
    path = builds_file(tmp_path, "a/b", "  - {name: a, tga: one}\n  - {name: b, tag: two}\n")
    with pytest.raises(ConfigError, match="did you mean tag"):
        registry.resolve_file(path, write=True)
