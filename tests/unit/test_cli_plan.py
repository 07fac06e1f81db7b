"""`bisect plan`: the run before it is run."""

from __future__ import annotations

import json

import pytest

import worlds
from imagebisect.outcome import Cause

DIGEST = "sha256:" + "ab" * 32


def images(folder, *entries):
    """A builds file of images."""
    lines = ["schema: 1", "repository: example/vllm", "builds:", *(f"  - {entry}" for entry in entries)]
    (folder / "images.yaml").write_text("\n".join(lines) + "\n")


def test_it_prints_the_docker_line_of_each_start(tmp_path):
    """Digest, loopback port and the flags in their order, ready to paste; starts at worst; nothing is created."""
    worlds.write(tmp_path, [])
    images(tmp_path, f"{{name: a, digest: {DIGEST}}}", f"{{name: b, digest: {DIGEST[:-1]}0}}")

    done = worlds.bisect("plan", "--images", "images.yaml", "--suite", "suite.yaml", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("docker run") and DIGEST in line)
    assert f"example/vllm@{DIGEST}" in line
    assert "127.0.0.1" in line
    assert "--tensor-parallel-size=2 --max-model-len=32768" in line
    assert "bt8192: at most" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images.yaml", "suite.yaml"]


def test_an_unpinned_build_is_named_with_what_pins_it(tmp_path):
    """`plan` shows it; `run` refuses it with the command that helps."""
    worlds.write(tmp_path, [])
    images(tmp_path, f"{{name: a, digest: {DIGEST}}}", "{name: b, tag: nightly}")

    planned = worlds.bisect("plan", "--images", "images.yaml", "--suite", "suite.yaml", cwd=tmp_path)
    run = worlds.bisect("run", "--images", "images.yaml", "--suite", "suite.yaml", cwd=tmp_path)

    assert "NOT PINNED" in planned.stdout
    assert run.returncode == 2
    assert "bisect images resolve --images images.yaml" in run.stderr
    assert not (tmp_path / "results").exists()


def test_overlays_are_called_deltas(tmp_path):
    """What was added on the command line is shown as a difference from the published suite."""
    files = worlds.write(tmp_path, worlds.planted(3, slow_from=1, hungry_from=9))

    done = worlds.bisect(
        "plan", "--images", str(files[0]), "--suite", str(files[1]), "--add-arg=--seed=7", "--json", cwd=tmp_path
    )

    document = json.loads(done.stdout)
    assert any("--seed=7" in delta for delta in document["deltas"])
    assert all("--seed=7" in line for lines in document["commands"].values() for line in lines.values())


def test_variants_are_listed_with_their_command(tmp_path):
    """What each variant is, how to run it, and what would be started; in JSON too."""
    variants = "variants:\n  relaxed: {of: bt4096, set_args: {--kv-cache-memory-bytes: {add: -64MiB}}}\n"
    files = worlds.write(tmp_path, worlds.planted(3, slow_from=1, hungry_from=9), worlds.SUITE + variants)
    call = ("plan", "--images", str(files[0]), "--suite", str(files[1]))

    shown = worlds.bisect(*call, cwd=tmp_path).stdout
    (variant,) = json.loads(worlds.bisect(*call, "--json", cwd=tmp_path).stdout)["variants"]

    assert "relaxed is bt4096 with --kv-cache-memory-bytes -64MiB (to 4227858432)" in shown
    assert "--variant NAME" in shown
    assert (variant["name"], variant["of"], variant["build"]) == ("relaxed", "bt4096", "b00")
    assert "--kv-cache-memory-bytes=4227858432" in variant["command"]
    assert variant["command"] in shown


@pytest.mark.parametrize(
    ("call", "missing", "advice"),
    [
        (("--images", "images.yaml"), "there is no file scenarios/qwen35-gdn.yaml\n", "name your suite with --suite\n"),
        (("--suite", "suite.yaml", "--images", "x.yaml"), "no file x.yaml\n", "name your builds file with --images\n"),
        (("--images", "x.yaml"), "x.yaml and no file scenarios/", "with --images and your suite with --suite\n"),
        (("--suite", "suite.yaml", "--vars", "v.yaml"), "no file v.yaml\n", "name your variables with --vars\n"),
    ],
)
def test_a_missing_file_names_its_own_option(tmp_path, call, missing, advice):
    """Outside the repository, the option to give is the one whose file is not there, and no other."""
    worlds.write(tmp_path, worlds.planted(2, slow_from=1, hungry_from=9))

    done = worlds.bisect("plan", *call, cwd=tmp_path)

    assert done.returncode == 2
    assert missing in done.stderr
    assert advice in done.stderr


def test_explain_has_every_cause(tmp_path):
    """The whole table of what each cause leads to, and the rule for a host at fault."""
    done = worlds.bisect("plan", "--explain", cwd=tmp_path)

    for cause in Cause:
        assert f"\n{cause.value} " in done.stdout
    assert "last good build is started again" in done.stdout
