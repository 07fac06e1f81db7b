"""images.yaml: the ordered list of builds, oldest first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from imagebisect.config.problems import Problems
from imagebisect.config.reading import read
from imagebisect.config.schema import DIGEST, BuildEntry, BuildsFile
from imagebisect.config.yaml import PathIn, load
from imagebisect.domain import (
    Build,
    BuildRole,
    ImageSource,
    Overrides,
    Rewrite,
    SimulatedSource,
    Source,
    VenvSource,
)
from imagebisect.secrets import secret_names
from imagebisect.simulator.profile import ProfileError, from_mapping

ENDS = 2
"""A bisection has at least a good and a bad end."""

_BESIDE = {"name", "role", "line", "commit", "created", "rewrite", "overrides", "note"}
"""The keys of a build that do not say where it comes from."""

SHORTEST_PREFIX = len("sha256:") + 7


def load_builds(path: Path) -> tuple[Build, ...]:
    """Read a builds file. ConfigError with every problem in it, each with its place.

    The first build is the good anchor and the last the bad one unless `role` says otherwise.
    """
    document = load(path)
    problems = Problems(document)
    repository, entries = _entries(document.data, problems)
    written = document.data.get("builds")
    if isinstance(written, list) and len(written) < ENDS:
        found = "the list is empty" if not written else "there is only one build"
        problems.add(("builds",), f"{found}; a bisection needs a good and a bad end")
    builds: list[Build] = []
    for index, entry in entries.items():
        build = _build(entry, index, builds, repository, problems, base=path.parent)
        if build is not None:
            builds.append(replace(build, location=document.at(("builds", index))))
    _check_names(entries, problems)
    problems.raise_any()
    _check_list(builds, problems)
    problems.raise_any()
    return tuple(builds)


def _entries(data: dict[str, Any], problems: Problems) -> tuple[str | None, dict[int, BuildEntry]]:
    """The file's repository and its entries by position; what is wrong in them is noted."""
    written = data.get("builds")
    top = read(BuildsFile, {**data, "builds": []} if isinstance(written, list) else data, (), problems)
    entries = {}
    for index, raw in enumerate(written if isinstance(written, list) else ()):
        entry = read(BuildEntry, raw, ("builds", index), problems)
        if entry is not None:
            entries[index] = entry
    return top.repository if top is not None else None, entries


def _build(
    entry: BuildEntry, index: int, earlier: list[Build], repository: str | None, problems: Problems, *, base: Path
) -> Build | None:
    place: PathIn = ("builds", index)
    given = [key for key in ("digest", "venv", "simulated", "same_as") if getattr(entry, key) is not None]
    if not given and (entry.tag is not None or entry.digest_prefix is not None):
        given = ["digest"]
    if len(given) != 1 and not given and problems.spoilt_keys(place) - _BESIDE:
        return None  # it was meant to have one
    if len(given) != 1:
        said = f"found {' and '.join(given)}" if given else "found none of them"
        problems.add(place, f"a build has one of digest (or tag), venv, simulated, same_as; {said}")
        return None
    source = _source(entry, given[0], place, earlier, repository or entry.repository, problems, base=base)
    if source is None:
        return None
    overrides = None
    if entry.overrides is not None:
        for name in secret_names(entry.overrides.env):
            problems.add(
                (*place, "overrides", "env", name), "looks like a secret; pass it by name (`pass_env` in the suite)"
            )
        overrides = Overrides(env=dict(entry.overrides.env), args=tuple(entry.overrides.args))
    return Build(
        name=entry.name,
        index=index,
        source=source,
        role=entry.role,
        line=entry.line,
        commit=entry.commit,
        created=entry.created,
        same_as=entry.same_as,
        rewrites=tuple(Rewrite(from_arg=r.from_arg, to_arg=r.to_arg, why=r.why) for r in entry.rewrite),
        overrides=overrides,
    )


def _source(
    entry: BuildEntry,
    kind: str,
    place: PathIn,
    earlier: list[Build],
    repository: str | None,
    problems: Problems,
    *,
    base: Path,
) -> Source | None:
    if kind != "digest":
        for key in ("tag", "digest_prefix", "repository"):
            if getattr(entry, key) is not None:
                problems.add((*place, key), f"belongs to an image; this build has {kind}")
    match kind:
        case "same_as":
            other = next((build for build in earlier if build.name == entry.same_as), None)
            written = [e.get("name") for e in problems.document.data["builds"][: place[1]] if isinstance(e, dict)]
            if other is None and entry.same_as in written:
                return None  # that one has a problem of its own
            if other is None:
                names = ", ".join(build.name for build in earlier) or "none"
                problems.add(
                    (*place, "same_as"), f"expected the name of an earlier build ({names}), found {entry.same_as!r}"
                )
                return None
            return other.source
        case "venv":
            return VenvSource(path=str((base / Path(entry.venv or "").expanduser()).resolve()))
        case "simulated":
            try:
                from_mapping(entry.simulated or {})
            except ProfileError as error:
                problems.add((*place, "simulated"), str(error))
                return None
            return SimulatedSource(profile=entry.simulated or {})
    return _image(entry, place, repository, problems)


def _image(entry: BuildEntry, place: PathIn, repository: str | None, problems: Problems) -> ImageSource | None:
    repository = entry.repository or repository
    if repository is None and problems.touched(("repository",), (*place, "repository")):
        return None
    if repository is None:
        problems.add(place, "expected `repository:` here or at the top of the file, e.g. vllm/vllm-openai")
        return None
    if "@" in repository or ":" in repository.rpartition("/")[2]:
        problems.add((*place, "repository"), f"expected a repository without tag or digest, found {repository!r}")
    digest = entry.digest
    if digest is not None and not DIGEST.fullmatch(digest):
        problems.add(
            (*place, "digest"),
            f"expected sha256: and 64 hexadecimal digits, found {digest!r}; "
            "what is known of a shorter one goes to `digest_prefix`",
        )
    prefix = entry.digest_prefix
    if prefix is not None and not (len(prefix) >= SHORTEST_PREFIX and DIGEST.fullmatch(prefix.ljust(71, "0"))):
        problems.add((*place, "digest_prefix"), f"expected sha256: and at least 7 hexadecimal digits, found {prefix!r}")
    if prefix is not None and digest is not None and not digest.startswith(prefix):
        problems.add((*place, "digest_prefix"), f"contradicts the digest {digest}")
    return ImageSource(repository=repository, digest=digest, tag=entry.tag, digest_prefix=prefix)


def _check_names(entries: dict[int, BuildEntry], problems: Problems) -> None:
    seen: dict[str, int] = {}
    for index, entry in entries.items():
        if problems.touched(("builds", index, "name")):
            continue
        if entry.name in seen:
            problems.add(
                ("builds", index, "name"), f"the name {entry.name} stands twice (also build {seen[entry.name]})"
            )
        seen.setdefault(entry.name, index)


def _check_list(builds: list[Build], problems: Problems) -> None:
    kinds = {build.source.kind for build in builds}
    if len(kinds) > 1:
        first = builds[0].source.kind
        other = next(build for build in builds if build.source.kind != first)
        problems.add(
            ("builds", other.index),
            f"{other.name} is of kind {other.source.kind} and {builds[0].name} of kind {first}: they cannot be compared",
        )
    seen: dict[str, Build] = {}
    for build in builds:
        key = _key(build.source)
        if key is None or build.same_as is not None:
            continue
        if key in seen:
            problems.add(
                ("builds", build.index),
                f"{build.name} is the same build as {seen[key].name}; if that is meant, write `same_as: {seen[key].name}`",
            )
        seen.setdefault(key, build)
    good = [build for build in builds if build.role is BuildRole.GOOD]
    bad = [build for build in builds if build.role is BuildRole.BAD]
    for role, found in ((BuildRole.GOOD, good), (BuildRole.BAD, bad)):
        if len(found) > 1:
            problems.add(("builds", found[1].index, "role"), f"{found[0].name} is the {role} end already")
    if good and bad and good[0].index == bad[0].index:
        problems.add(("builds", bad[0].index, "role"), f"{bad[0].name} cannot be both ends")


def _key(source: Source) -> str | None:
    match source:
        case ImageSource():
            return source.digest
        case VenvSource():
            return source.path
        case SimulatedSource():
            return None
