"""The printed command and the canonical form: what may differ between builds, and what must show when it does."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebisect.domain import Build, Identity, ImageSource, ModelSpec, Mount, Overrides, Rewrite, Server, VenvSource
from imagebisect.runtime import render
from imagebisect.runtime.base import StartSpec
from imagebisect.runtime.process import ProcessRuntime

ARGS = ("--tensor-parallel-size=2", "--max-num-batched-tokens=4096", "--enforce-eager")
SERVER = Server(
    name="bt4096",
    args=(*ARGS, "--served-model-name", "${model}"),
    env={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    pass_env=("HF_TOKEN",),
    gpus=(0, 1),
    ipc="host",
    shm_size="8g",
    ulimits={"memlock": -1},
    mounts=(Mount(source="/srv/data", target="/data"), Mount(source="/srv/out", target="/out", read_only=False)),
)
MODEL = ModelSpec(path="/srv/models/m", at="/models/m")


def image(number: int = 1, **changes) -> Build:
    """A build of an image."""
    source = ImageSource(repository="vllm/vllm-openai", digest="sha256:" + f"{number:064x}")
    return Build(name=f"n{number}", index=number, source=source, **changes)


def spec(build: Build | None = None, server: Server = SERVER, *, start: str = "0001", model=MODEL, run: str = "r1"):
    """A start of a build under a server."""
    return StartSpec(
        run_id=run,
        start_id=start,
        build=build or image(),
        identity=Identity(id="sha256:x"),
        server=server,
        model=model,
        run_folder=Path("/results/r1"),
        stop_s=60,
    )


def container(*args, **kwargs):
    """The rendered start of a container."""
    return render.render_container(spec(*args, **kwargs))


def after_image(rendered, build: Build) -> list[str]:
    """The arguments that the server itself gets."""
    return list(rendered.argv[rendered.argv.index(build.source.reference) + 1 :])


def test_the_line_is_what_one_would_type():
    """Every setting of the suite is in the `docker run` line, in docker's own spelling."""
    rendered = container()
    line = render.shell_line(rendered)

    assert shlex.split(line) == list(rendered.argv)
    for part in (
        "docker run --rm --init --name bisect-r1-0001 ",
        """--gpus '"device=0,1"' """,
        "--ipc host ",
        "--shm-size 8g ",
        "--ulimit memlock=-1 ",
        "-p 127.0.0.1::8000 ",
        "-e PYTORCH_ALLOC_CONF=expandable_segments:True ",
        "-e HF_TOKEN ",
        "-v /srv/models/m:/models/m:ro ",
        "-v /srv/data:/data:ro ",
        "-v /srv/out:/out ",
        "-v bisect-r1-0001-cache:/root/.cache ",
        f"vllm/vllm-openai@sha256:{1:064x} --tensor-parallel-size=2 ",
    ):
        assert part in line
    assert line.endswith("--served-model-name /models/m")
    assert " -t " not in line


def test_gpus_are_asked_for_as_the_suite_says():
    """`all` is passed on, `none` asks for nothing."""
    assert container(server=replace(SERVER, gpus="all")).argv.count("all") == 1
    assert "--gpus" not in container(server=replace(SERVER, gpus="none")).argv


def test_secrets_appear_by_name_only(monkeypatch):
    """A token passed by name is nowhere in what is stored or printed."""
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")

    for rendered in (
        container(),
        ProcessRuntime().render(spec(Build(name="v", index=0, source=VenvSource(path="/e")))),
    ):
        text = json.dumps([rendered.argv, dict(rendered.env), rendered.mounts, dict(rendered.canonical)])
        assert "HF_TOKEN" in text
        assert "hf_very_secret" not in text


def test_a_model_in_a_hugging_face_cache_is_found_and_not_fetched():
    """The cache is mounted read-only, the server told where it is and to stay offline."""
    cache = ModelSpec(path="/srv/hf", at="/root/.cache/huggingface", repo="org/m", revision="abc")
    rendered = container(model=cache)

    assert "/srv/hf:/root/.cache/huggingface:ro" in rendered.argv
    assert dict(rendered.env).items() >= {"HF_HOME": "/root/.cache/huggingface", "HF_HUB_OFFLINE": "1"}.items()
    assert rendered.argv[-1] == "org/m"
    assert "HF_HUB_OFFLINE" not in container(model=replace(cache, offline=False)).env


def test_starts_of_different_builds_are_canonically_equal():
    """Image, container name, run and cache volume differ; the canonical form does not."""
    one = container(image(1))
    other = container(image(2), start="0002", run="r2")

    assert one.argv != other.argv
    assert one.canonical == other.canonical
    assert one.canonical_sha256 == other.canonical_sha256
    assert render.diff_canonical(one.canonical, other.canonical) == ()
    assert "sha256:" not in json.dumps(dict(one.canonical))


def test_environments_at_different_paths_are_canonically_equal():
    """The path of a `venv` build is its own; everything else must agree."""
    runtime = ProcessRuntime()
    forms = [
        runtime.render(spec(Build(name=f"v{n}", index=n, source=VenvSource(path=f"/envs/{n}")), start=f"000{n}"))
        for n in (1, 2)
    ]

    assert forms[0].argv != forms[1].argv
    assert forms[0].canonical_sha256 == forms[1].canonical_sha256


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"args": (*ARGS, "--served-model-name", "${model}", "--max-num-seqs=4")}, "args: with --max-num-seqs=4"),
        ({"args": ("--max-num-batched-tokens=4096", *ARGS[:1], *SERVER.args[2:])}, "args: in another order"),
        ({"env": {"PYTORCH_ALLOC_CONF": "x"}}, "env PYTORCH_ALLOC_CONF: expandable_segments:True there, x here"),
        ({"env": {**SERVER.env, "NEW": "1"}}, "env NEW: unset there, 1 here"),
        ({"pass_env": ()}, "pass_env: without HF_TOKEN"),
        ({"gpus": (0, 2)}, "gpus: without 1, with 2"),
        ({"gpus": "all"}, "gpus"),
        ({"ipc": None}, "ipc: host there, None here"),
        ({"shm_size": "9g"}, "shm_size: 8g there, 9g here"),
        ({"ulimits": {"memlock": 1}}, "ulimits memlock: -1 there, 1 here"),
        ({"memory": "1g"}, "memory"),
        ({"cpuset": "0-1"}, "cpuset"),
        ({"mounts": ()}, "mounts: without /srv/data:/data:ro /srv/out:/out"),
        ({"mounts": (replace(SERVER.mounts[0], read_only=False), SERVER.mounts[1])}, "mounts"),
        ({"entrypoint": ("sh",)}, "entrypoint"),
        ({"network": "host"}, "network"),
        ({"docker_options": {"privileged": True}}, "docker_options privileged: unset there, True here"),
        ({"cache": "per-build"}, "cache: fresh there, per-build here"),
        ({"container_port": 9000}, "container_port"),
    ],
)
def test_any_other_difference_shows_and_is_named(change, says):
    """Whatever of a server changes between two starts changes the hash and is said in words."""
    before, after = container(), container(server=replace(SERVER, **change))

    assert before.canonical_sha256 != after.canonical_sha256
    assert says in "; ".join(render.diff_canonical(before.canonical, after.canonical))


def test_another_model_is_a_difference():
    """The model's folder is not among what may differ."""
    before, after = container(), container(model=replace(MODEL, path="/srv/models/other"))

    assert before.canonical_sha256 != after.canonical_sha256


@pytest.mark.parametrize(
    ("rewrite", "expected"),
    [
        (("--enforce-eager", "--eager"), [*ARGS[:2], "--eager"]),
        (("--enforce-eager", None), list(ARGS[:2])),
        (("--max-num-batched-tokens", "--batched"), [ARGS[0], "--batched=4096", ARGS[2]]),
        (("--max-num-batched-tokens=4096", "--batched=4096"), [ARGS[0], "--batched=4096", ARGS[2]]),
        (("--max-num-batched-tokens", None), [ARGS[0], ARGS[2]]),
        (("--max-num", "--x"), list(ARGS)),
    ],
)
def test_a_listed_rewrite_reaches_the_server_and_not_the_canonical_form(rewrite, expected):
    """One build gets its flag under another name (value kept) or not at all; the comparison undoes exactly that."""
    build = image(rewrites=(Rewrite(from_arg=rewrite[0], to_arg=rewrite[1], why="renamed"),))
    server = replace(SERVER, args=ARGS)

    rendered = container(build, server)

    assert after_image(rendered, build) == expected
    assert rendered.canonical_sha256 == container(image(2), server).canonical_sha256


def test_a_difference_beside_a_rewrite_still_shows():
    """A rewrite hides itself and nothing else."""
    build = image(rewrites=(Rewrite(from_arg="--enforce-eager", to_arg="--eager", why="renamed"),))
    smuggled = replace(SERVER, args=(*ARGS, "--max-num-seqs=1"))

    assert (
        container(build, smuggled).canonical_sha256 != container(image(2), replace(SERVER, args=ARGS)).canonical_sha256
    )


def test_overrides_reach_the_server_and_not_the_canonical_form():
    """A planted env and argument are part of the build, so its starts compare with the others'."""
    build = image(overrides=Overrides(env={"SLOW": "1", "PYTORCH_ALLOC_CONF": "off"}, args=("--slow",)))

    rendered = container(build)

    assert after_image(rendered, build)[-1] == "--slow"
    assert dict(rendered.env).items() >= {"SLOW": "1", "PYTORCH_ALLOC_CONF": "off"}.items()
    assert rendered.canonical_sha256 == container(image(2)).canonical_sha256


@given(
    args=st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(lambda text: f"--{text}")),
    value=st.text(st.characters(exclude_categories=["Cs", "Cc"])),
)
def test_any_text_survives_the_shell(args, value):
    """Whatever stands in an argument or a value, the printed line gives it back."""
    build = image()
    rendered = container(build, replace(SERVER, args=tuple(args), env={"X": value}), model=None)

    words = shlex.split(render.shell_line(rendered))

    assert words == list(rendered.argv)
    assert f"X={value}" in words


def test_order_of_keys_does_not_change_the_hash():
    """Two suites that list the same env in another order are the same server."""
    one = container(server=replace(SERVER, env={"A": "1", "B": "2"}))
    other = container(server=replace(SERVER, env={"B": "2", "A": "1"}))

    assert one.canonical_sha256 == other.canonical_sha256


@pytest.mark.parametrize(
    ("option", "flags"),
    [
        ({"cap_add": ["SYS_NICE", "IPC_LOCK"]}, ["--cap-add", "SYS_NICE", "--cap-add", "IPC_LOCK"]),
        ({"security_opt": ["seccomp=unconfined"]}, ["--security-opt", "seccomp=unconfined"]),
        ({"privileged": True}, ["--privileged"]),
        ({"privileged": False}, ["--privileged=false"]),
        ({"runtime": "nvidia"}, ["--runtime", "nvidia"]),
        ({"pids_limit": 100}, ["--pids-limit", "100"]),
        ({"devices": ["/dev/a:/dev/b"]}, ["--device", "/dev/a:/dev/b"]),
        ({"extra_hosts": {"h": "127.0.0.1"}}, ["--add-host", "h:127.0.0.1"]),
        ({"sysctls": {"net.core.somaxconn": "1"}}, ["--sysctl", "net.core.somaxconn=1"]),
        ({"tmpfs": {"/t": "size=1g"}}, ["--tmpfs", "/t:size=1g"]),
        ({"pid_mode": "host"}, ["--pid", "host"]),
        ({"working_dir": "/w"}, ["--workdir", "/w"]),
        ({"mem_reservation": "1g"}, ["--memory-reservation", "1g"]),
        ({"memswap_limit": "1g"}, ["--memory-swap", "1g"]),
    ],
)
def test_extra_docker_options_are_printed_as_docker_spells_them(option, flags):
    """Options of the SDK whose flag has another name appear under the flag's name."""
    argv = list(container(server=replace(SERVER, docker_options=option)).argv)

    assert argv[argv.index(flags[0]) : argv.index(flags[0]) + len(flags)] == flags
