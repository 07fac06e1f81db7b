"""The two files a user writes, read into frozen values or refused with file:line:column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from imagebisect.config import words
from imagebisect.config.builds import load_builds
from imagebisect.config.pinning import pin
from imagebisect.config.suite import load_suite
from imagebisect.config.yaml import load
from imagebisect.domain import Build, BuildRole, ImageSource, Location, Plan, Suite, VenvSource
from imagebisect.errors import ConfigError, Problem, UsageError

__all__ = ["load_builds", "load_plan", "load_suite", "pin", "require_pinned", "require_startable", "unpinned"]


def load_plan(
    images: Path,
    suite: Path,
    *,
    good: str | None = None,
    bad: str | None = None,
    sets: Mapping[str, str] | None = None,
    vars_file: Path | None = None,
    add_args: tuple[str, ...] = (),
    envs: Mapping[str, str] | None = None,
    find_fix: bool = False,
) -> Plan:
    """Read both files. ConfigError with every problem of both; UsageError for anchors that are not there.

    `find_fix`: the bad end is the older one.
    """
    problems: list[Problem] = []
    builds: tuple[Build, ...] = ()
    try:
        builds = load_builds(images)
    except ConfigError as error:
        problems += error.problems
    try:
        loaded = load_suite(suite, sets=sets, vars_file=vars_file, add_args=add_args, envs=envs)
    except ConfigError as error:
        raise ConfigError((*problems, *error.problems)) from error
    problems += _words_that_are_no_flags(builds, loaded)
    if problems:
        raise ConfigError(tuple(problems))
    oldest, newest = 0, len(builds) - 1
    low, high = (newest, oldest) if find_fix else (oldest, newest)
    first = _anchor(builds, good, BuildRole.GOOD, default=low, option="--good")
    last = _anchor(builds, bad, BuildRole.BAD, default=high, option="--bad")
    if find_fix and last >= first:
        raise UsageError(
            f"to find a fix, the bad end {builds[last].name} must stand before the good end {builds[first].name} in "
            f"{images}",
            next_step="the list is ordered oldest first; choose other ends with --good and --bad, or leave --find-fix out",
        )
    if not find_fix and first >= last:
        raise UsageError(
            f"the good end {builds[first].name} must stand before the bad end {builds[last].name} in {images}",
            next_step="the list is ordered oldest first; choose other ends with --good and --bad (or --find-fix, to find "
            "the first good build after a bad one)",
        )
    return Plan(builds=builds, suite=loaded, good=first, bad=last, images_file=str(images))


def _anchor(builds: Sequence[Build], name: str | None, role: BuildRole, *, default: int, option: str) -> int:
    if name is not None:
        for build in builds:
            if build.name == name:
                return build.index
        raise UsageError(
            f"{option} {name}: there is no such build", next_step=f"builds: {', '.join(b.name for b in builds)}"
        )
    return next((build.index for build in builds if build.role is role), default)


def _words_that_are_no_flags(builds: Sequence[Build], suite: Suite) -> list[Problem]:
    """Words such as `serve`, or a model's path, among the args of servers that run from an environment."""
    if not any(isinstance(build.source, VenvSource) for build in builds):
        return []
    found = [
        (server, word)
        for server in suite.servers
        if server.entrypoint is None
        for word in words.positional(server.args)
    ]
    if not found:
        return []
    document = load(Path(suite.file))
    return [
        Problem(
            location=document.at(("servers", server.name, "args")),
            key=f"servers.{server.name}.args",
            message=f"found {word!r}: an environment is started with `vllm serve` by bisect itself, and args are flags "
            "only (the model is --model=${model})",
        )
        for server, word in found
    ]


def _place(build: Build) -> Location:
    return build.location or Location(file="images.yaml", line=1, column=1)


def unpinned(builds: Sequence[Build]) -> tuple[Build, ...]:
    """Image builds without a full digest; they cannot be started."""
    return tuple(b for b in builds if isinstance(b.source, ImageSource) and b.source.digest is None)


def require_pinned(builds: Sequence[Build], images_file: str = "images.yaml") -> None:
    """Raise ConfigError at every image build that is known by tag or prefix only."""
    problems = []
    for build in unpinned(builds):
        assert isinstance(build.source, ImageSource)
        known = build.source.digest_prefix or f"tag {build.source.tag}"
        message = f"{build.name} is known by {known} only; a run starts nothing but full digests"
        problems.append(Problem(location=_place(build), key="digest", message=message))
    if problems:
        raise ConfigError(
            tuple(problems), next_step=f"`bisect images resolve --images {images_file}` asks the registry and pins them"
        )


def require_startable(plan: Plan) -> None:
    """Raise for what would fail every start: unpinned images, a missing environment, a missing model folder."""
    require_pinned(plan.builds, plan.images_file)
    missing = [
        Problem(location=_place(b), key="venv", message=f"{b.source.path}/bin/vllm is not there")
        for b in plan.builds
        if isinstance(b.source, VenvSource)
        and b.same_as is None
        and not (Path(b.source.path) / "bin" / "vllm").is_file()
    ]
    if missing:
        raise ConfigError(tuple(missing), next_step="give the folder of an environment that has vllm installed")
    model = plan.suite.model
    if model is not None and not Path(model.path).is_dir():
        raise UsageError(
            f"the model folder {model.path} is not there",
            where=plan.suite.file,
            next_step="set `model.path` (or its variable) to the folder that holds config.json and the weights",
        )
