"""What `bisect images resolve` does: every image known by tag or prefix is pinned to its full digest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagebisect.config import load_builds, pin
from imagebisect.domain import Build, ImageSource
from imagebisect.errors import BisectError, ExitCode, UsageError
from imagebisect.registry import manifests, repository, tags
from imagebisect.registry.client import Client, Patience, Unreachable
from imagebisect.registry.manifests import Resolved


@dataclass(frozen=True, kw_only=True)
class ResolveRow:
    """One unpinned build: the digest to pin it to, or why there is none (`exit_code` is that error's)."""

    name: str
    digest: str | None = None
    resolved: Resolved | None = None
    error: str | None = None
    exit_code: ExitCode = ExitCode.NOTHING_REGRESSED


def resolve_builds(
    builds: Iterable[Build], *, patience: Patience | None = None
) -> list[tuple[Build, Resolved | BisectError]]:
    """Ask the registries for each image that has a digest, a tag or a prefix. One build's error stops no other.

    A registry that could not be reached is not waited for again.
    """
    found: list[tuple[Build, Resolved | BisectError]] = []
    unreachable: dict[str, Unreachable] = {}
    for build in builds:
        source = build.source
        if not isinstance(source, ImageSource):
            continue
        try:
            where = repository.parse(source.repository)
            if where.host in unreachable:
                raise unreachable[where.host]
            with Client(where, patience or Patience()) as client:
                found.append((build, _resolve(client, source)))
        except BisectError as error:
            found.append((build, error))
            if isinstance(error, Unreachable):
                unreachable[where.host] = error
    return found


def _resolve(client: Client, source: ImageSource) -> Resolved:
    if source.digest is None and source.digest_prefix is not None:
        return tags.find_prefix(client, source.digest_prefix, source.tag)
    return manifests.resolve(client, source.digest or source.tag or "latest")


def resolve_file(images_path: Path, *, write: bool, patience: Patience | None = None) -> tuple[ResolveRow, ...]:
    """Resolve the unpinned builds of a builds file and, with `write`, pin them in it; comments and order stay.

    Rows are in the file's order, none for a build that is pinned already. ConfigError when the file is wrong.
    """
    builds = load_builds(images_path)
    open_builds = [
        build
        for build in builds
        if isinstance(build.source, ImageSource) and build.source.digest is None and build.same_as is None
    ]
    pinned = {b.source.digest: b.name for b in builds if isinstance(b.source, ImageSource) and b.source.digest}
    rows = tuple(_row(build, answer, pinned) for build, answer in resolve_builds(open_builds, patience=patience))
    digests = {row.name: row.digest for row in rows if row.digest is not None}
    if write and digests:
        pin(images_path, digests)
    return rows


def _row(build: Build, answer: Resolved | BisectError, pinned: dict[str, str]) -> ResolveRow:
    """The row of one build; `pinned` (digest to build) grows, since an image may stand in the list once."""
    if isinstance(answer, BisectError):
        return ResolveRow(name=build.name, error=_text(answer), exit_code=answer.exit_code)
    assert isinstance(build.source, ImageSource)
    prefix = build.source.digest_prefix
    digest = (tags.matching(answer, prefix) if prefix else None) or answer.top_digest
    twin = next((pinned[d] for d in _digests(answer) if d in pinned), None)
    if twin is not None:
        error = UsageError(
            f"it is the same image as {twin} ({digest})",
            next_step=f"remove it, or write `same_as: {twin}` if the same build is meant to stand there twice",
        )
        return ResolveRow(name=build.name, resolved=answer, error=_text(error), exit_code=error.exit_code)
    pinned.update(dict.fromkeys(_digests(answer), build.name))
    return ResolveRow(name=build.name, digest=digest, resolved=answer)


def _digests(resolved: Resolved) -> Sequence[str]:
    return [d for d in (resolved.index_digest, resolved.digest, resolved.config_digest) if d is not None]


def _text(error: BisectError) -> str:
    return f"{error.what}; {error.next_step}" if error.next_step else error.what
