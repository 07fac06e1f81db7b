"""images.yaml: what it can say, and how it is refused."""

from __future__ import annotations

import pytest

from imagebisect import config
from imagebisect.config.json_schema import FILES, text
from imagebisect.domain import BuildRole, ImageSource, SimulatedSource, VenvSource
from imagebisect.errors import ConfigError, UsageError

D1, D2 = "sha256:" + "1" * 64, "sha256:" + "2" * 64

HEAD = "schema: 1\nrepository: vllm/vllm-openai\nbuilds:\n"


def load(tmp_path, body, head=HEAD):
    """Load a builds file with this body."""
    path = tmp_path / "images.yaml"
    path.write_text(head + body)
    return config.load_builds(path)


def problems(tmp_path, body, head=HEAD):
    """Every problem of such a file, as text after the folder."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, body, head)
    return [str(problem).partition("images.yaml:")[2] for problem in caught.value.problems]


def test_everything_the_format_can_say(tmp_path):
    """Digest, tag and prefix, same_as with overrides, rewrites, lines and roles arrive as written."""
    builds = load(
        tmp_path,
        f"""  - {{name: ship, tag: qwen, digest_prefix: "sha256:d392f621bb3e", role: good, line: off-main}}
  - {{name: n1, digest: "{D1}", commit: {"a" * 40}, created: 2026-08-17, rewrite: [{{from: --old, to: --new, why: renamed}}]}}
  - {{name: again, same_as: n1}}
  - {{name: swapped, same_as: n1, overrides: {{env: {{A: 1}}, args: [--x]}}}}
  - {{name: other, repository: ghcr.io/x/y, digest: "{D2}", role: bad}}
""",
    )

    assert builds[0].source == ImageSource(
        repository="vllm/vllm-openai", tag="qwen", digest_prefix="sha256:d392f621bb3e"
    )
    assert (builds[0].role, builds[0].line) == (BuildRole.GOOD, "off-main")
    assert builds[1].created == "2026-08-17"
    assert (builds[1].rewrites[0].from_arg, builds[1].rewrites[0].to_arg) == ("--old", "--new")
    assert builds[2].source == builds[3].source == builds[1].source
    assert (dict(builds[3].overrides.env), builds[3].overrides.args) == ({"A": "1"}, ("--x",))
    assert builds[4].source.reference == f"ghcr.io/x/y@{D2}"
    assert config.unpinned(builds) == (builds[0],)


def test_paths_are_relative_to_the_file(tmp_path):
    """An environment's folder is looked for beside the builds file."""
    builds = load(tmp_path, "  - {name: a, venv: envs/a}\n  - {name: b, venv: /abs/b}\n")

    assert builds[0].source == VenvSource(path=str(tmp_path / "envs/a"))
    assert builds[1].source == VenvSource(path="/abs/b")


def test_anchors_and_merge_keys_share_profiles(tmp_path):
    """YAML's own way not to repeat oneself works."""
    builds = load(
        tmp_path,
        "  - {name: a, simulated: &base {boot_s: 1, seed: 1}}\n  - {name: b, simulated: {<<: *base, seed: 2}}\n",
    )

    assert builds[1].source == SimulatedSource(profile={"boot_s": 1, "seed": 2})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "  - {name: a, digest: 'sha256:12'}\n  - {name: b, tag: x}\n",
            "4:15: builds[0].digest: expected sha256: and 64",
        ),
        (
            f"  - {{name: a, digest: '{D1}'}}\n  - {{name: b, digest: '{D1}'}}\n",
            "5:5: builds[1]: b is the same build as a",
        ),
        (
            f"  - {{name: a, digest: '{D1}'}}\n  - {{name: a, digest: '{D2}'}}\n",
            "5:6: builds[1].name: the name a stands twice",
        ),
        (f"  - {{name: a, digest: '{D1}', rôle: good}}\n  - {{name: b, digest: '{D2}'}}\n", "there is no such key"),
        (f"  - {{name: a, digst: '{D1}'}}\n  - {{name: b, digest: '{D2}'}}\n", "did you mean digest?"),
        (
            f"  - {{name: a, digest: '{D1}', role: good}}\n  - {{name: b, digest: '{D2}', role: good}}\n",
            "a is the good end already",
        ),
        (f"  - {{name: a, digest: '{D1}'}}\n  - {{name: b, venv: x}}\n", "they cannot be compared"),
        (f"  - {{name: a, digest: '{D1}', name: b}}\n", "4:"),
        ("  - {name: a}\n  - {name: b, tag: x}\n", "found none of them"),
        ("  - {name: a, tag: x, venv: y}\n  - {name: b, tag: x}\n", "belongs to an image"),
        ("  - {name: a, same_as: b}\n  - {name: b, tag: x}\n", "expected the name of an earlier build (none)"),
        ("  - {name: 'a b', tag: x}\n  - {name: b, tag: y}\n", "builds[0].name"),
        ("  - {name: yes, tag: x}\n  - {name: b, tag: y, role: nice}\n", "'good' or 'bad'"),
        ("  - {name: a, simulated: {seeed: 1}}\n  - {name: b, simulated: {}}\n", "seed"),
        ("  - {name: a, simulated: {prefill_tok_s: fast}}\n  - {name: b, simulated: {}}\n", "must be a number"),
        ("  - {name: a, tag: x, overrides: {env: {HF_TOKEN: abc}}}\n  - {name: b, tag: y}\n", "looks like a secret"),
        ("  - {name: a, tag: x}\n", "there is only one build"),
        ("  []\n", "the list is empty"),
        ("  a: 1\n", "expected a list"),
        ("  - {name: a, tag: x\n", "this is no YAML"),
        ("\t- x\n", "this is no YAML"),
    ],
)
def test_errors_have_a_place_a_key_and_what_was_expected(tmp_path, body, expected):
    """file:line:column, the key, what was expected."""
    found = problems(tmp_path, body)

    assert any(expected in problem for problem in found), found
    assert all(problem.split(":")[0].isdigit() and problem.split(":")[1].isdigit() for problem in found)


def test_all_problems_are_told_at_once(tmp_path):
    """Three mistakes are three lines, in the order of the file."""
    found = problems(tmp_path, "  - {name: a, digest: x}\n  - {name: b, digest: y}\n  - {name: c, same_as: nobody}\n")

    assert len(found) == 3
    assert [problem.split(":")[0] for problem in found] == ["4", "5", "6"]


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"[1, 2]", b"just text", b"schema: 2\nbuilds: []\n", b"a: &x [*x]\n"]
)
def test_files_that_are_no_builds_files(tmp_path, content):
    """Empty, binary, a list, a text, another schema, a YAML that eats itself: an error, never a traceback."""
    path = tmp_path / "images.yaml"
    path.write_bytes(content)

    with pytest.raises(UsageError):
        config.load_builds(path)


def test_missing_file_and_folder(tmp_path):
    """Neither is a traceback."""
    with pytest.raises(UsageError, match="there is no file"):
        config.load_builds(tmp_path / "nothing.yaml")
    with pytest.raises(UsageError, match="is a folder"):
        config.load_builds(tmp_path)


def test_pinning_keeps_comments_and_order(tmp_path):
    """Only the digests change."""
    path = tmp_path / "images.yaml"
    path.write_text(
        "# the list\nschema: 1\nrepository: r/x\nbuilds:\n  # first\n  - name: a\n    tag: t1  # moved on\n    line: off-main\n"
        "  - {name: b, tag: t2}\n"
    )
    config.pin(path, {"a": D1, "b": D2})
    written = path.read_text()

    assert "# the list" in written
    assert "  # first" in written
    assert "# moved on" in written
    builds = config.load_builds(path)
    assert [build.source.digest for build in builds] == [D1, D2]
    assert builds[0].line == "off-main"
    assert config.unpinned(builds) == ()


@pytest.mark.parametrize("name", FILES)
def test_schemas_in_the_repository_are_current(name, pytestconfig):
    """`python -m imagebisect.config.json_schema schemas` was run after the last change."""
    assert text(name) == (pytestconfig.rootpath / "schemas" / name).read_text(encoding="utf-8")
