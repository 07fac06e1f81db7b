"""Real containers: what a start leaves behind (nothing), what is refused and whose fault that is, what is kept."""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace

import pytest

import registry_server
import worlds
from imagebisect.domain import Build, ImageSource, Mount, Overrides, Server
from imagebisect.errors import BisectError, EnvironmentFault, Interrupted, StartFailed
from imagebisect.interrupt import StopFlag
from imagebisect.outcome import Cause
from imagebisect.runtime import render
from imagebisect.runtime.base import StartSpec
from imagebisect.runtime.docker import DockerRuntime

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

PYTHON = ("/usr/bin/python3",)
NOBODY = "sha256:" + "0" * 64


def build_of(reference: str, **changes) -> Build:
    """A build of an image by digest."""
    repository, _, digest = reference.partition("@")
    return Build(name="n", index=0, source=ImageSource(repository=repository, digest=digest), **changes)


def prepare(runtime, build, *, progress=lambda _done, _total: None, stop=None, idle_s=60.0):
    """Make a build present."""
    return runtime.prepare(build, progress=progress, stop=stop or StopFlag(), idle_s=idle_s)


@pytest.fixture(scope="session")
def image(stand_in_images) -> str:
    """One stand-in image by digest; only the registry has it until something pulls it."""
    return stand_in_images([worlds.profile(version="0.26.1rc1.dev7", seed=99)])[0]


@pytest.fixture
def runtime(engine) -> DockerRuntime:
    """The runtime under test, over an engine that answers."""
    assert engine.ping()
    return DockerRuntime()


@pytest.fixture
def left(engine, request):
    """What is left of this test's runs: names of containers and volumes that carry its run id."""
    run = f"t{os.getpid()}-{abs(hash(request.node.name)) % 10**8}"

    def look() -> list[str]:
        chosen = {"label": f"org.imagebisect.run={run}"}
        containers = engine.containers.list(all=True, filters=chosen, ignore_removed=True)
        return [str(c.name) for c in containers] + [str(v.name) for v in engine.volumes.list(filters=chosen)]

    look.run = run
    yield look
    for container in engine.containers.list(all=True, filters={"label": f"org.imagebisect.run={run}"}):
        container.remove(force=True)
    for volume in engine.volumes.list(filters={"label": f"org.imagebisect.run={run}"}):
        volume.remove(force=True)


@pytest.fixture
def begin(runtime, image, left, tmp_path):
    """Make a start of `image` under a server; `code` runs Python in it instead of the stand-in."""
    numbers = iter(range(1, 100))

    def make(code: str | None = None, *, stop_s: float = 10.0, build: Build | None = None, **server) -> StartSpec:
        if code is not None:
            server |= {"entrypoint": PYTHON, "args": ("-u", "-c", code)}
        build = build or build_of(image)
        return StartSpec(
            run_id=left.run,
            start_id=f"{next(numbers):04d}",
            build=build,
            identity=prepare(runtime, build),
            server=Server(name="s", **server),
            model=None,
            run_folder=tmp_path,
            stop_s=stop_s,
        )

    return make


def start(runtime, spec):
    """Start a spec as the session does."""
    return runtime.start(spec, runtime.render(spec))


def until(condition, wait_s: float = 30.0):
    """Wait for a truthy value and return it."""
    deadline = time.monotonic() + wait_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def healthy(url: str) -> bool:
    """Whether /health says 200."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


# ------------------------------------------------------------------------------------ present


def test_an_image_is_pulled_once_and_says_what_it_is(runtime, stand_in_images, engine):
    """The first look pulls with progress; the second finds it here. Commit and version come from its labels."""
    reference = stand_in_images([worlds.profile(version="0.26.1rc1.dev8", seed=12345)])[0]
    told = []

    first = prepare(runtime, build_of(reference), progress=lambda done, total: told.append((done, total)))
    again = prepare(runtime, build_of(reference))

    assert first.id == engine.images.get(reference).id
    assert first.digest == reference.partition("@")[2]
    assert (len(first.revision), first.version) == (40, "0.26.1rc1.dev8")
    assert told
    assert first.pulled_bytes >= 0
    assert replace(again, pulled_bytes=first.pulled_bytes) == first
    assert again.pulled_bytes == 0


def test_overrides_make_another_build_of_the_same_image(runtime, image):
    """The same image with an env override is known by another identity."""
    plain = prepare(runtime, build_of(image))
    slowed = prepare(runtime, build_of(image, overrides=Overrides(env={"SLOW": "1"})))

    assert slowed.id != plain.id
    assert slowed.digest == plain.digest


def test_a_digest_that_the_registry_lost_is_the_builds_own_fault(runtime, image):
    """An unknown digest of a repository that answers: pull_failed, a skip, and it names the image."""
    missing = image.partition("@")[0] + "@" + NOBODY

    with pytest.raises(StartFailed) as caught:
        prepare(runtime, build_of(missing))

    assert caught.value.failure.cause == Cause.PULL_FAILED
    assert NOBODY in caught.value.failure.message


def test_a_dead_registry_is_the_environments_fault(runtime):
    """Nobody listens where the registry should be: transient, not the build's."""
    with pytest.raises(EnvironmentFault) as caught:
        prepare(runtime, build_of(f"localhost:{registry_server.free_port()}/standin@{NOBODY}"))

    assert caught.value.cause == Cause.REGISTRY
    assert caught.value.next_step


@pytest.fixture
def mute_registry():
    """A registry that takes every connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = []

        def accept() -> None:
            while True:
                try:
                    taken.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in taken:
            connection.close()


def test_a_registry_that_falls_silent_ends_the_pull(runtime, mute_registry):
    """No byte for the idle time: the wait ends there, with the registry as the cause."""
    began = time.monotonic()

    with pytest.raises(EnvironmentFault) as caught:
        prepare(runtime, build_of(f"{mute_registry}/standin@{NOBODY}"), idle_s=1.0)

    assert caught.value.cause == Cause.REGISTRY
    assert time.monotonic() - began < 10


def test_ctrl_c_ends_a_pull_that_hangs(runtime, mute_registry):
    """A stop asked for during a pull is obeyed at once, not when the registry answers."""
    stop = StopFlag()
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    began = time.monotonic()

    with pytest.raises(Interrupted):
        prepare(runtime, build_of(f"{mute_registry}/standin@{NOBODY}"), stop=stop, idle_s=60)

    timer.join()
    assert time.monotonic() - began < 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_engine_is_said_as_such(runtime, monkeypatch, tmp_path):
    """Without a daemon the check says so and what to do, instead of a traceback."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    with pytest.raises(EnvironmentFault) as caught:
        runtime.check(Server(name="s"))

    assert caught.value.cause == Cause.DAEMON
    assert "docker" in caught.value.next_step
    del caught
    gc.collect()  # the SDK leaves the socket that could not connect to the collector


# ---------------------------------------------------------------------------------- one start


def test_a_server_runs_as_rendered_and_leaves_nothing(runtime, begin, left, engine, tmp_path, monkeypatch):
    """Flags, env, mounts and labels reach the container; it publishes on loopback only; at the end all is gone."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    (tmp_path / "data").mkdir()
    spec = begin(
        args=("--max-model-len=32768", "--max-num-seqs=4"),
        env={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        pass_env=("HF_TOKEN", "NOT_SET_ANYWHERE"),
        ipc="host",
        mounts=(Mount(source=str(tmp_path / "data"), target="/data"),),
        ulimits={"nofile": 1024},
        shm_size=None,
        memory="2g",
    )
    rendered = runtime.render(spec)

    with runtime.start(spec, rendered) as running:
        until(lambda: healthy(running.url))
        assert running.exit_state() is None
        seen = engine.api.inspect_container(spec.container_name)
        volume = engine.volumes.get(render.cache_volume(spec))
    ended = running.stop()

    assert seen["Args"][-2:] == ["--max-model-len=32768", "--max-num-seqs=4"]
    assert {"PYTORCH_ALLOC_CONF=expandable_segments:True", "HF_TOKEN=hf_secret"} <= set(seen["Config"]["Env"])
    assert not [entry for entry in seen["Config"]["Env"] if entry.startswith("NOT_SET_ANYWHERE")]
    assert {b["HostIp"] for b in seen["NetworkSettings"]["Ports"]["8000/tcp"]} == {"127.0.0.1"}
    assert running.url.startswith("http://127.0.0.1:")
    host = seen["HostConfig"]
    assert (host["Init"], host["AutoRemove"], host["IpcMode"], host["Memory"]) == (True, False, "host", 2 << 30)
    assert host["LogConfig"]["Type"] == "json-file"
    assert seen["Config"]["Tty"] is False
    mounts = {m["Destination"]: m for m in seen["Mounts"]}
    assert mounts["/data"]["RW"] is False
    assert mounts["/root/.cache"]["Name"] == render.cache_volume(spec)
    assert volume.attrs["Labels"]["org.imagebisect.run"] == spec.run_id
    assert seen["Config"]["Labels"]["org.imagebisect.build"] == "n"
    assert "hf_secret" not in json.dumps([rendered.argv, rendered.env, rendered.mounts, rendered.canonical])
    assert running.stop() == ended
    assert left() == []


def test_the_printed_line_works_when_pasted(runtime, begin, engine):
    """The `docker run` line of a start does, typed into a shell, what the start does."""
    spec = begin(
        "import os, sys; print(os.environ['GREETING'], sys.argv[1:])",
        env={"GREETING": 'it\'s "quoted" & $HOME'},
        ulimits={"nofile": 512},
        docker_options={"cap_add": ["SYS_NICE"], "pids_limit": 100},
    )
    spec = replace(spec, server=replace(spec.server, args=(*spec.server.args, "a b", "--flag={'x': 1}")))
    line = render.shell_line(runtime.render(spec))

    try:
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    finally:
        engine.volumes.get(render.cache_volume(spec)).remove(force=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "it's \"quoted\" & $HOME ['a b', \"--flag={'x': 1}\"]"
    assert shlex.split(line)[:2] == ["docker", "run"]


def test_the_whole_log_is_there_when_the_server_is_seen_dead(runtime, begin, left):
    """100,000 lines on both streams, then exit 3: nothing is missing at the moment the exit is known."""
    count = 50_000
    code = (
        "import sys\n"
        f"for n in range({count}):\n"
        "    sys.stdout.write(f'out {n}\\n'); sys.stderr.write(f'err {n}\\n')\n"
        "sys.stdout.flush(); sys.exit(3)"
    )
    spec = begin(code)

    with start(runtime, spec) as running:
        ended = until(running.exit_state, 60)
        lines = spec.log_path.read_text().splitlines()

    assert (ended.exit_code, ended.oom_killed) == (3, False)
    assert [line for line in lines if line.startswith("out")] == [f"out {n}" for n in range(count)]
    assert [line for line in lines if line.startswith("err")] == [f"err {n}" for n in range(count)]
    assert spec.log_path.read_text().splitlines() == lines
    assert left() == []


def test_an_exit_at_once_is_an_exit_and_no_error_of_ours(runtime, begin, left):
    """A server that is over before its port can be read (an unknown flag) still has a log and an exit code."""
    with start(runtime, begin(args=("--no-such-flag",))) as running:
        ended = until(running.exit_state)
        log = running.spec.log_path.read_text()

    assert ended.exit_code == 2
    assert "--no-such-flag" in log
    assert left() == []


def test_a_killed_server_shows_the_signal(runtime, begin):
    """A server ended by SIGKILL has a negative exit code, as with processes, and was not out of memory."""
    with start(runtime, begin("import os; os.kill(os.getpid(), 9)")) as running:
        ended = until(running.exit_state)

    assert (ended.exit_code, ended.oom_killed) == (-9, False)


def test_the_hosts_own_memory_running_out_is_told_by_the_flag(runtime, begin):
    """A worker killed for memory shows in the flag although the server itself exits with 0."""
    code = "import os\nif os.fork() == 0:\n    hog = []\n    while True: hog.append(bytearray(b'x') * 2**20)\nos.wait()"

    with start(runtime, begin(code, memory="48m", docker_options={"memswap_limit": "48m"})) as running:
        ended = until(running.exit_state)

    assert (ended.exit_code, ended.oom_killed) == (0, True)


def test_a_server_that_never_ends_is_ended(runtime, begin, left):
    """SIGTERM ignored: after the stop time it is killed, and removed."""
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(999)"
    )
    spec = begin(code, stop_s=1.0)

    with start(runtime, spec) as running:
        until(lambda: spec.log_path.exists() and "up" in spec.log_path.read_text())
        began = time.monotonic()
    took = time.monotonic() - began

    assert 0.5 < took < 15
    assert running.stop().exit_code == -signal.SIGKILL
    assert left() == []


def test_commands_run_where_the_server_runs(runtime, begin):
    """A command's output and exit code come back; one that fails, hangs or comes too late is no exception."""
    with start(runtime, begin("import time; time.sleep(999)", stop_s=1)) as running:
        done = running.exec((*PYTHON, "-c", "import sys; print('hello'); sys.exit(4)"), 20)
        missing = running.exec(("/no/such/program",), 20)
        began = time.monotonic()
        hanging = running.exec((*PYTHON, "-c", "import time; time.sleep(60)"), 1.0)
        took = time.monotonic() - began
    late = running.exec(("anything",), 5)

    assert done == (4, "hello\n")
    assert missing[0] != 0
    assert hanging[0] != 0
    assert took < 5
    assert late[0] != 0


def test_an_error_while_it_is_used_leaves_nothing(runtime, begin, left):
    """Whatever ends the block (Ctrl-C twice, a bug), container and cache volume go."""
    spec = begin("import time; time.sleep(999)", stop_s=1)

    def use() -> None:
        with start(runtime, spec):
            assert len(left()) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()

    assert left() == []


def test_each_start_has_fresh_caches_unless_a_build_keeps_its_own(runtime, begin, left):
    """`cache: fresh` starts empty each time; `per-build` finds what the start before it compiled."""
    code = "import pathlib; p = pathlib.Path('/root/.cache/kernel'); print('warm' if p.exists() else 'cold'); p.touch()"
    seen = {}
    for cache in ("fresh", "per-build"):
        seen[cache] = []
        for _ in range(2):
            with start(runtime, begin(code, cache=cache)) as running:
                until(running.exit_state)
            seen[cache].append(running.spec.log_path.read_text().strip())

    assert seen == {"fresh": ["cold", "cold"], "per-build": ["cold", "warm"]}
    assert left() == [f"bisect-{left.run}-n-cache"]


# ------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("server", "cause", "says"),
    [
        ({"gpus": "all"}, Cause.NO_GPU, "NVIDIA"),
        ({"gpus": (0, 1)}, Cause.NO_GPU, "NVIDIA"),
        ({"ulimits": {"nofile": 2**31}}, Cause.ENGINE_REFUSED, "ulimits"),
        ({"mounts": (Mount(source="/no/such/folder", target="/m"),)}, Cause.ENGINE_REFUSED, "/no/such/folder"),
        ({"memory": "12 apples"}, Cause.ENGINE_REFUSED, "12 apples"),
        ({"docker_options": {"runtime": "nope"}}, Cause.ENGINE_REFUSED, "nope"),
        ({"docker_options": {"devices": ["/dev/no-such-device"]}}, Cause.ENGINE_REFUSED, "no-such-device"),
    ],
    ids=["gpus-all", "gpus-by-number", "ulimit", "mount", "memory", "runtime", "device"],
)
def test_what_the_engine_refuses_is_the_hosts_or_the_suites_fault(runtime, begin, left, server, cause, says):
    """One clear paragraph with a next step, the right cause, and no container or volume left behind."""
    spec = begin(**server)

    with pytest.raises(EnvironmentFault) as caught:
        start(runtime, spec)

    assert caught.value.cause == cause
    assert says in caught.value.what
    assert caught.value.next_step
    assert left() == []


def test_an_option_that_does_not_exist_is_an_error_of_the_suites(runtime, begin, left):
    """A misspelt docker option is told by name, not by a traceback."""
    with pytest.raises(BisectError, match="shm_seize"):
        start(runtime, begin(docker_options={"shm_seize": "1g"}))

    assert left() == []


def test_a_taken_port_is_tried_again(runtime, begin, left):
    """A port taken meanwhile is transient."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(EnvironmentFault) as caught:
            start(runtime, begin(docker_options={"ports": {"8000/tcp": ("127.0.0.1", port)}}))

    assert caught.value.cause == Cause.PORT
    assert left() == []


# ------------------------------------------------------------------------------------ leftovers

HARNESS = """
import json, os, pathlib, signal, sys
from imagebisect.domain import Build, ImageSource, Server
from imagebisect.interrupt import StopFlag
from imagebisect.runtime.base import StartSpec
from imagebisect.runtime.docker import DockerRuntime
run, repository, digest, folder = sys.argv[1:]
build = Build(name="n", index=0, source=ImageSource(repository=repository, digest=digest))
runtime = DockerRuntime()
identity = runtime.prepare(build, progress=lambda *_: None, stop=StopFlag(), idle_s=60)
spec = StartSpec(run_id=run, start_id="0009", build=build, identity=identity, server=Server(name="s"), model=None,
                 run_folder=pathlib.Path(folder), stop_s=5)
running = runtime.start(spec, runtime.render(spec))
print("started", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def harness(image, left, tmp_path):
    """Another process of ours with a server running, as `bisect run` in another terminal."""
    repository, _, digest = image.partition("@")
    process = subprocess.Popen(
        [sys.executable, "-c", HARNESS, left.run, repository, digest, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process
        process.kill()


def test_what_a_killed_run_left_is_found_and_removed(runtime, left, harness):
    """After kill -9 of the harness, its container and volume are found by their labels, without its run's folder."""
    assert len(left()) == 2
    harness.kill()
    harness.wait()

    removed = runtime.reap(None)

    assert any(f"container bisect-{left.run}-0009" in line for line in removed)
    assert left() == []


def test_clean_removes_what_a_killed_run_left_and_says_so(tmp_path, left, harness):
    """`bisect clean` beside an engine: shown with --dry-run, then removed, exit code 0."""
    harness.kill()
    harness.wait()

    shown = worlds.bisect("clean", "--dry-run", cwd=tmp_path)
    assert len(left()) == 2
    done = worlds.bisect("clean", cwd=tmp_path)

    assert shown.returncode == done.returncode == 0, shown.stderr + done.stderr
    assert f"would remove container bisect-{left.run}-0009" in shown.stdout
    assert f"removed container bisect-{left.run}-0009" in done.stdout
    assert left() == []


def test_a_resumed_run_removes_what_its_own_process_left(runtime, left, harness):
    """`reap` of one run removes that run's leftovers and no other's."""
    harness.kill()
    harness.wait()

    assert runtime.reap("some-other-run") == ()
    assert len(left()) == 2
    assert len(runtime.reap(left.run)) == 2
    assert left() == []


def test_a_living_run_is_left_alone(runtime, left, harness):
    """Nothing of a run that goes on elsewhere is touched, not even by a run of the same name in another folder."""
    runtime.reap(None)
    runtime.reap(left.run)

    assert len(left()) == 2
    assert harness.poll() is None
