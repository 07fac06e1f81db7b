"""When the host is at fault: it is said, nobody is blamed, and the run goes on once it is put right.

The builds are environments with a `bin/vllm` of their own that runs the stand-in, so that a test can break the
host under them.
"""

from __future__ import annotations

import json
import stat
import sys

import worlds


def environments(folder, profiles, extra):
    """One folder with a `bin/vllm` for each profile; `extra` is shell text by build index, run before the server."""
    lines = ["schema: 1", "builds:"]
    for index, profile in enumerate(profiles):
        program = folder / f"env{index}" / "bin" / "vllm"
        program.parent.mkdir(parents=True)
        (folder / f"env{index}" / "profile.json").write_text(json.dumps(profile))
        program.write_text(
            "#!/bin/sh\n"
            f"{extra.get(index, '')}\n"
            f'if [ -e "{folder}/broken" ]; then echo "the host is broken" >&2; exit 1; fi\n'
            "shift\n"
            f'exec "{sys.executable}" -m imagebisect.simulator serve --profile "{folder}/env{index}/profile.json" "$@"\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        lines.append(f"  - {{name: b{index}, venv: env{index}}}")
    (folder / "images.yaml").write_text("\n".join(lines) + "\n")
    text = worlds.SUITE.replace("  gpus: [0, 1]", "  gpus: none")
    kept = [line for line in text.splitlines() if "memory:" not in line and "survives" not in line]
    (folder / "suite.yaml").write_text("\n".join(kept) + "\n")


def test_a_broken_host_stops_the_run_and_takes_its_skips_back(tmp_path):
    """Two builds fail in a row, then so does the last good one: exit 20; after a repair the answer is whole."""
    breaks = f'if [ ! -e "{tmp_path}/mended" ]; then touch "{tmp_path}/broken"; fi'
    environments(tmp_path, worlds.planted(5, slow_from=3, hungry_from=9), {2: breaks})
    arguments = ("--results", "results")

    stopped = worlds.bisect("run", "--suite", "suite.yaml", *arguments, "--name", "h", "--json", cwd=tmp_path)

    assert stopped.returncode == 20, stopped.stderr
    failure = json.loads(stopped.stdout)
    assert failure["exit_code"] == 20
    assert "the host is at fault" in failure["message"]
    assert "bisect resume h" in stopped.stderr
    (tmp_path / "mended").touch()
    (tmp_path / "broken").unlink()

    resumed = worlds.bisect("resume", "h", *arguments, "--json", cwd=tmp_path)

    assert resumed.returncode == 10, resumed.stderr
    report = json.loads(resumed.stdout)
    long = next(target for target in report["targets"] if target["name"] == "long-prefill")
    assert (long["last_good"]["name"], long["first_bad"]["name"]) == ("b2", "b3")
    assert {start["outcome"] for start in report["builds"][2]["starts"]} >= {"void", "measured"}
    assert worlds.group_members(str(tmp_path)) == []


def test_a_build_that_crashes_by_itself_is_a_skip_and_the_host_is_cleared(tmp_path):
    """Two neighbours crash, the last good build measures again: they stay untestable suspects."""
    environments(tmp_path, worlds.planted(6, slow_from=4, hungry_from=9), {2: "exit 1", 3: "exit 1"})

    done = worlds.bisect("run", "--suite", "suite.yaml", "--json", cwd=tmp_path)

    assert done.returncode == 11, done.stderr
    report = json.loads(done.stdout)
    long = next(target for target in report["targets"] if target["name"] == "long-prefill")
    assert (long["status"], long["reason"]) == ("narrowed", "untestable")
    assert [build["name"] for build in long["suspects"]] == ["b2", "b3", "b4"]
    purposes = [start["purpose"] for build in report["builds"] for start in build["starts"]]
    assert 1 <= purposes.count("host_check") <= 2
