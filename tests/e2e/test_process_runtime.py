"""Real process groups: nothing of a server outlives its start, whoever dies first, and nobody else's is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

import worlds
from imagebisect.domain import Build, Identity, ModelSpec, Overrides, Server, SimulatedSource, VenvSource
from imagebisect.errors import StartFailed
from imagebisect.interrupt import StopFlag
from imagebisect.outcome import Cause
from imagebisect.runtime import for_builds, groups
from imagebisect.runtime.base import StartSpec
from imagebisect.runtime.process import ProcessRuntime

SIMULATED = Build(name="sim", index=0, source=SimulatedSource(profile=worlds.profile(version="0.26.1rc1.dev7")))


@pytest.fixture
def runtime() -> ProcessRuntime:
    """The runtime under test."""
    return ProcessRuntime()


def environment(folder: Path, code: str) -> Build:
    """An environment whose `bin/vllm` runs this Python."""
    program = folder / "env" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\n{textwrap.dedent(code)}", encoding="utf-8")
    program.chmod(0o755)
    return Build(name="env", index=0, source=VenvSource(path=str(folder / "env")))


def spec_of(
    build: Build, folder: Path, *, start: str = "0001", stop_s: float = 10.0, model=None, **server
) -> StartSpec:
    """A start of a build."""
    return StartSpec(
        run_id="r",
        start_id=start,
        build=build,
        identity=Identity(id="x"),
        server=Server(name="s", **server),
        model=model,
        run_folder=folder / "run",
        stop_s=stop_s,
    )


def begin(runtime, spec):
    """Start a spec as the session does."""
    return runtime.start(spec, runtime.render(spec))


def until(condition, wait_s: float = 20.0, what=lambda: ""):
    """Wait for a truthy value and return it; `what` is said when it does not come."""
    deadline = time.monotonic() + wait_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what()!r}"
        time.sleep(0.02)
    return found


def healthy(url: str) -> bool:
    """Whether /health says 200."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def alive(pid: int) -> bool:
    """Whether a process lives (a zombie does not)."""
    return groups.start_ticks(pid) is not None


def pids(spec: StartSpec, count: int) -> list[int]:
    """Process ids that the server printed, once there are so many."""

    def read() -> list[int] | None:
        lines = [line for line in spec.log_path.read_text().splitlines() if line.isdigit()]
        return [int(line) for line in lines] if len(lines) >= count else None

    return until(read)


FAMILY = """
import os, signal, sys, time
child = os.fork()
if child == 0:
    {child}
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(600)
{parent}
os.write(1, b"%d\\n" % os.getpid())
time.sleep(600)
"""


def test_a_stand_in_serves_and_leaves_nothing(runtime, tmp_path):
    """It answers on loopback at its own port; after the block no process, no cache, no record is left."""
    spec = spec_of(SIMULATED, tmp_path, args=("--max-num-seqs=4",), gpus=(0, 1))

    with begin(runtime, spec) as running:
        until(lambda: healthy(running.url))
        assert running.exit_state() is None
        recorded = groups.on_record()
        assert [(g.run_id, g.start_id) for g in recorded] == [("r", "0001")]
        members = recorded[0].members()
        assert members
        assert Path(recorded[0].cache).is_dir()
    ended = running.stop()

    assert running.url.startswith("http://127.0.0.1:")
    assert not [pid for pid in members if alive(pid)]
    assert not Path(recorded[0].cache).exists()
    assert groups.on_record() == []
    assert running.stop() == ended == running.exit_state()
    assert "vLLM" in spec.log_path.read_text()


def test_two_servers_at_once_have_their_own_ports(runtime, tmp_path):
    """Starts do not meet at a fixed port."""
    with (
        begin(runtime, spec_of(SIMULATED, tmp_path, start="0001")) as one,
        begin(runtime, spec_of(SIMULATED, tmp_path, start="0002")) as other,
    ):
        until(lambda: healthy(one.url) and healthy(other.url))
        assert one.url != other.url


def test_an_unknown_flag_ends_it_with_its_own_code(runtime, tmp_path):
    """A refused flag is the server's exit, with the words in the log."""
    with begin(runtime, spec_of(SIMULATED, tmp_path, args=("--no-such-flag",))) as running:
        ended = until(running.exit_state)

    assert ended.exit_code == 2
    assert "--no-such-flag" in running.spec.log_path.read_text()


def test_workers_of_a_killed_server_are_ended_too(runtime, tmp_path):
    """Kill -9 of the API server leaves its engine alive in the group; stop waits until the group is empty."""
    build = environment(tmp_path, FAMILY.format(child="signal.signal(signal.SIGTERM, signal.SIG_IGN)", parent=""))
    spec = spec_of(build, tmp_path)
    running = begin(runtime, spec)
    family = pids(spec, 2)
    server = next(g for g in groups.on_record()).pgid
    os.kill(server, signal.SIGKILL)
    ended = until(running.exit_state)
    engine = next(pid for pid in family if pid != server)
    assert alive(engine)

    stopped = running.stop()

    assert ended.exit_code == stopped.exit_code == -signal.SIGKILL
    assert not alive(engine)
    assert groups.on_record() == []


def test_a_server_that_never_ends_is_killed_in_time(runtime, tmp_path):
    """SIGTERM ignored by server and engine: killed after the stop time, all of it."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    spec = spec_of(environment(tmp_path, FAMILY.format(child=deaf, parent=deaf)), tmp_path, stop_s=0.5)
    running = begin(runtime, spec)
    family = pids(spec, 2)
    began = time.monotonic()

    ended = running.stop()

    assert 0.4 < time.monotonic() - began < 10
    assert ended.exit_code == -signal.SIGKILL
    assert not [pid for pid in family if alive(pid)]


def test_a_server_that_ends_when_asked_is_not_killed(runtime, tmp_path):
    """SIGTERM is enough for a server that obeys: its own exit code is what is told."""
    obeys = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    build = environment(tmp_path, f"import signal, sys, time\n{obeys}\nprint(1, flush=True)\ntime.sleep(600)\n")
    spec = spec_of(build, tmp_path, stop_s=20)
    running = begin(runtime, spec)
    pids(spec, 1)

    assert running.stop().exit_code == 7


def test_an_error_while_it_is_used_leaves_nothing(runtime, tmp_path):
    """Whatever ends the block, the group goes."""
    spec = spec_of(environment(tmp_path, FAMILY.format(child="", parent="")), tmp_path)
    family = []

    def use() -> None:
        with begin(runtime, spec):
            family.extend(pids(spec, 2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()

    assert not [pid for pid in family if alive(pid)]
    assert groups.on_record() == []


def test_it_gets_the_suites_env_and_little_else(runtime, tmp_path, monkeypatch):
    """The suite's env, tokens by name, caches of its own; not whatever else our shell had."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("VLLM_SOMETHING_OF_THE_SHELL", "1")
    build = environment(
        tmp_path, "import json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]), flush=True)\n"
    )
    spec = spec_of(
        build,
        tmp_path,
        args=("--model", "${model}"),
        env={"PYTORCH_ALLOC_CONF": "a=b, c"},
        pass_env=("HF_TOKEN", "NOT_SET_ANYWHERE"),
        gpus=(1, 0),
        model=ModelSpec(path=str(tmp_path / "model"), at="/models/m"),
    )
    with begin(runtime, spec) as running:
        until(running.exit_state)
        argv, env = json.loads(spec.log_path.read_text())

    assert argv[:3] == ["serve", "--model", str(tmp_path / "model")]
    assert argv[3:] == ["--host", "127.0.0.1", "--port", running.url.rpartition(":")[2]]
    assert (env["PYTORCH_ALLOC_CONF"], env["HF_TOKEN"], env["CUDA_VISIBLE_DEVICES"]) == ("a=b, c", "hf_secret", "1,0")
    assert not {"NOT_SET_ANYWHERE", "VLLM_SOMETHING_OF_THE_SHELL"} & set(env)
    assert env["VLLM_CACHE_ROOT"].startswith(str(spec.run_folder))
    assert env["PATH"] == os.environ["PATH"]


def test_each_start_has_fresh_caches_unless_a_build_keeps_its_own(runtime, tmp_path):
    """`cache: fresh` starts empty each time; `per-build` finds what the start before it compiled."""
    build = environment(
        tmp_path,
        """
        import os, pathlib
        kernel = pathlib.Path(os.environ["TRITON_CACHE_DIR"], "kernel")
        print("warm" if kernel.exists() else "cold", flush=True)
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.touch()
        """,
    )
    seen = {}
    for cache in ("fresh", "per-build"):
        seen[cache] = []
        for number in range(2):
            spec = spec_of(build, tmp_path, start=f"{cache}{number}", cache=cache)
            with begin(runtime, spec) as running:
                until(running.exit_state)
            seen[cache].append(spec.log_path.read_text().strip())

    assert seen == {"fresh": ["cold", "cold"], "per-build": ["cold", "warm"]}


def test_the_whole_log_is_kept(runtime, tmp_path):
    """Both streams, to the last line before death, bytes as they came."""
    build = environment(
        tmp_path,
        r"""
        import os, sys
        for n in range(20000):
            os.write(1, b"out %d\n" % n)
            os.write(2, b"err %d \xff\n" % n)
        os.kill(os.getpid(), 9)
        """,
    )
    spec = spec_of(build, tmp_path)
    with begin(runtime, spec) as running:
        ended = until(running.exit_state)
        lines = spec.log_path.read_bytes().splitlines()

    assert ended.exit_code == -9
    assert lines[-2:] == [b"out 19999", b"err 19999 \xff"]
    assert len(lines) == 40000


def test_commands_run_beside_the_server(runtime, tmp_path):
    """A command's output and exit code come back; one that fails, hangs or comes too late is no exception."""
    with begin(runtime, spec_of(environment(tmp_path, "import time; time.sleep(600)"), tmp_path)) as running:
        done = running.exec((sys.executable, "-c", "import sys; print('hello'); sys.exit(4)"), 20)
        missing = running.exec(("/no/such/program",), 20)
        began = time.monotonic()
        hanging = running.exec(("sleep", "60"), 0.5)
        took = time.monotonic() - began
    late = running.exec((sys.executable, "-c", "print(1)"), 20)

    assert done == (4, "hello\n")
    assert missing[0] != 0
    assert hanging[0] != 0
    assert took < 5
    assert isinstance(late[0], int)


def test_an_environment_without_vllm_is_the_builds_own_fault(runtime, tmp_path):
    """No `bin/vllm`: a skip that names the missing program."""
    build = Build(name="empty", index=0, source=VenvSource(path=str(tmp_path)))

    with pytest.raises(StartFailed) as caught:
        runtime.prepare(build, progress=lambda *_: None, stop=StopFlag(), idle_s=1)

    assert caught.value.failure.cause == Cause.IMPORT_ERROR
    assert str(tmp_path / "bin" / "vllm") in caught.value.failure.message


def test_identities_tell_builds_apart(runtime, tmp_path):
    """Another profile, path or override is another build; the same entry is the same again."""

    def identity(build: Build) -> str:
        return runtime.prepare(build, progress=lambda *_: None, stop=StopFlag(), idle_s=1).id

    env = environment(tmp_path, "")
    others = [
        SIMULATED,
        Build(name="b", index=0, source=SimulatedSource(profile=worlds.profile(seed=5))),
        Build(name="c", index=0, source=SIMULATED.source, overrides=Overrides(args=("--x",))),
        env,
        Build(name="d", index=0, source=env.source, overrides=Overrides(env={"A": "1"})),
    ]

    assert len({identity(build) for build in others}) == len(others)
    assert identity(SIMULATED) == identity(SIMULATED)


def test_the_version_of_an_environment_is_read_from_its_metadata(runtime, tmp_path):
    """The version of vllm in an environment is known before it is started."""
    build = environment(tmp_path, "")
    info = tmp_path / "env" / "lib" / "python3.12" / "site-packages" / "vllm-0.27.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.27.1\n", encoding="utf-8")

    assert runtime.prepare(build, progress=lambda *_: None, stop=StopFlag(), idle_s=1).version == "0.27.1"


def test_simulated_builds_and_environments_need_no_docker():
    """A builds file of simulated entries gets the process runtime."""
    assert for_builds([SIMULATED]).kind == "process"


# ------------------------------------------------------------------------------------ leftovers

HARNESS = """
import pathlib, sys
from imagebisect.domain import Build, Identity, Server, VenvSource
from imagebisect.runtime.base import StartSpec
from imagebisect.runtime.process import ProcessRuntime
runtime = ProcessRuntime()
folder = pathlib.Path(sys.argv[1])
spec = StartSpec(run_id="r", start_id="0009", build=Build(name="env", index=0, source=VenvSource(path=str(folder / "env"))),
                 identity=Identity(id="x"), server=Server(name="s"), model=None, run_folder=folder / "run", stop_s=5)
running = runtime.start(spec, runtime.render(spec))
print("started", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def harness(tmp_path):
    """Another process of ours with a server of two processes, as `bisect run` in another terminal."""
    environment(tmp_path, FAMILY.format(child="", parent=""))
    process = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        log = tmp_path / "run" / "starts" / "0009" / "server.log"
        until(lambda: len(log.read_text().split()) >= 2, what=log.read_text)
        process.family = [int(pid) for pid in log.read_text().split()]
        yield process
        process.kill()
        process.wait()
        for group in groups.on_record():
            group.kill()


def test_what_a_killed_run_left_is_found_and_ended(runtime, harness):
    """After kill -9 of the harness its server lives on; the next look finds the group and ends all of it."""
    harness.kill()
    harness.wait()
    assert all(alive(pid) for pid in harness.family)

    removed = runtime.reap(None)

    assert len(removed) == 1
    assert "start 0009 of run r" in removed[0]
    assert not [pid for pid in harness.family if alive(pid)]
    assert groups.on_record() == []
    assert runtime.reap(None) == ()


def test_only_the_run_in_question_is_cleaned(runtime, harness):
    """`reap` of one run ends that run's leftovers and no other's."""
    harness.kill()
    harness.wait()

    assert runtime.reap("some-other-run") == ()
    assert all(alive(pid) for pid in harness.family)
    assert len(runtime.reap("r")) == 1
    assert not [pid for pid in harness.family if alive(pid)]


def test_a_living_run_is_left_alone(runtime, harness):
    """Nothing of a run that goes on elsewhere is touched, not even by a run of the same name in another folder."""
    assert runtime.reap(None) == ()
    assert runtime.reap("r") == ()

    assert all(alive(pid) for pid in harness.family)
    assert harness.poll() is None


def test_a_process_id_given_to_somebody_else_is_not_killed(runtime):
    """A group on record whose id now belongs to another process is struck off, and that process lives."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        dead = groups.Owner(pid=2**22 - 1, ticks=1, boot=groups.boot_id())
        groups.put_on_record(
            groups.Group(
                run_id="old",
                start_id="0001",
                pgid=stranger.pid,
                ticks=(groups.start_ticks(stranger.pid) or 0) - 5,
                boot=groups.boot_id(),
                owner=str(dead),
                cache="",
            )
        )

        assert runtime.reap(None) == ()

        assert stranger.poll() is None
        assert groups.on_record() == []
        stranger.kill()
