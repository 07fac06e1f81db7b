"""Builds as processes: an environment's own `vllm`, or the stand-in server.

A killed API server leaves EngineCore and workers alive in its group, so the group is ended, and waited for
until it is empty.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from imagebisect.domain import Build, Failure, Identity, Phase, Rendered, Server, SimulatedSource, VenvSource
from imagebisect.errors import EnvironmentFault, StartFailed
from imagebisect.interrupt import StopFlag
from imagebisect.outcome import Cause
from imagebisect.runtime import groups, render
from imagebisect.runtime.base import ExitState, PullProgress, StartSpec

BASE_ENV = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "LD_LIBRARY_PATH", "CUDA_HOME")
"""What a server inherits; everything else is in the suite or not there."""

ENGINE_GRACE_S = 5.0
"""How long the rest of the group may live after its leader ended."""

_PORT = "8000"
_WAIT_FOR_GO = 'read -r go && exec "$@"'


def _fingerprint(*parts: object) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _venv_version(path: Path) -> str | None:
    """The version of vllm in an environment, read from its metadata."""
    for pattern in ("lib/python*/site-packages", "site"):
        for folder in path.glob(pattern):
            for metadata in sorted(folder.glob("vllm-*.dist-info/METADATA")):
                with contextlib.suppress(OSError):
                    for line in metadata.read_text(encoding="utf-8", errors="replace").splitlines():
                        if line.startswith("Version: "):
                            return line.removeprefix("Version: ").strip()
    return None


def free_port() -> int:
    """A port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _run(argv: tuple[str, ...], env: Mapping[str, str], timeout_s: float) -> tuple[int, str]:
    try:
        done = subprocess.run(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout + done.stderr


class RunningProcess:
    """A started process group. See `Running`."""

    log_lag_s = 0.0  # it writes into the file itself

    def __init__(
        self, spec: StartSpec, process: subprocess.Popen[bytes], group: groups.Group, env: Mapping[str, str], port: int
    ) -> None:
        self.spec = spec
        self.url = f"http://127.0.0.1:{port}"
        self._process = process
        self._group = group
        self._env = dict(env)
        self._ended: ExitState | None = None

    def __enter__(self) -> RunningProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def exit_state(self) -> ExitState | None:
        """See `Running`: the leader's end is the server's."""
        code = self._process.poll()
        return None if code is None else ExitState(exit_code=code)

    def exec(self, argv: tuple[str, ...], timeout_s: float) -> tuple[int, str]:
        """See `Running`."""
        return _run(argv, self._env, timeout_s)

    def run_python(self, code: str, timeout_s: float) -> tuple[int, str]:
        """See `Running`: the environment's own `bin/python`, else what the server itself was started with."""
        source = self.spec.build.source
        if not isinstance(source, VenvSource):
            return 127, "a simulated server has no packages of its own"
        beside = Path(source.path) / "bin" / "python"
        if beside.is_file():
            return self.exec((str(beside), "-c", code), timeout_s)
        place = Path("/proc") / str(self._process.pid)
        try:
            program = str((place / "exe").readlink())
            said = (place / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError as error:
            return 127, str(error)
        if not Path(program).name.startswith("python"):
            return 127, f"the server's program is {program}, no Python"
        env = dict(item.partition("=")[::2] for item in said if "=" in item)
        return _run((program, "-c", code), env, timeout_s)

    def pids(self) -> frozenset[int]:
        """See `Running`."""
        return frozenset(self._group.members())

    def stop(self) -> ExitState:
        """See `Running`."""
        if self._ended is not None:
            return self._ended
        try:
            self._group.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.spec.stop_s)
            deadline = time.monotonic() + ENGINE_GRACE_S
            while self._process.poll() is not None and self._group.members() and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            emptied = self._group.kill()
            code = self._process.wait(ENGINE_GRACE_S) if emptied else self._process.poll()
            shutil.rmtree(self._group.cache, ignore_errors=True)
            if emptied:
                groups.strike_off(self._group)
        if not emptied:
            raise EnvironmentFault(
                f"processes of {self.spec.container_name} do not die: {self._group.members()}",
                where=f"process group {self._group.pgid}",
                next_step="a process stuck in the GPU driver needs a reset card or a reboot; then `bisect resume`",
                cause=Cause.DRIVER,
            )
        self._ended = ExitState(exit_code=-signal.SIGKILL if code is None else code)
        return self._ended


class ProcessRuntime:
    """Starts `venv` and `simulated` builds. See `Runtime`."""

    kind = "process"

    def check(self, server: Server) -> None:
        """Any host can run a process; whether it has GPUs shows when the server starts."""
        if server.entrypoint is not None and not server.entrypoint:
            raise EnvironmentFault("an empty entrypoint starts nothing", next_step="remove `entrypoint` from the suite")

    def version(self) -> str | None:
        """See `Runtime`: nothing stands between a process and the host."""
        return None

    def prepare(self, build: Build, *, progress: PullProgress, stop: StopFlag, idle_s: float) -> Identity:
        """See `Runtime`: nothing to fetch, only to look at."""
        del progress, idle_s
        stop.check()
        extra = {"env": dict(build.overrides.env), "args": build.overrides.args} if build.overrides else None
        match build.source:
            case SimulatedSource(profile=profile):
                version = profile.get("version")
                return Identity(
                    id=_fingerprint("simulated", dict(profile), extra),
                    version=version if isinstance(version, str) else None,
                )
            case VenvSource(path=path):
                program = Path(path) / "bin" / "vllm"
                if not os.access(program, os.X_OK):
                    raise StartFailed(
                        Failure(cause=Cause.IMPORT_ERROR, phase=Phase.START, message=f"{program} is not a program")
                    )
                version = _venv_version(Path(path))
                return Identity(id=_fingerprint("venv", path, version, extra), version=version)
            case _:
                raise AssertionError(build.source)

    def render(self, spec: StartSpec) -> Rendered:
        """See `Runtime`. The port shown is vLLM's own default; a free one is chosen at the start."""
        applied = render.apply_build(spec.server, spec.build)
        model_env = render.model_env(spec, spec.model.path if spec.model else "")
        reference = (spec.model.repo or spec.model.path) if spec.model else ""
        args = (*render.with_model(applied.args, reference), "--host", "127.0.0.1", "--port", _PORT)
        gpus = spec.server.gpus
        cards = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if isinstance(gpus, tuple) else {}
        env = {**model_env, **cards, **applied.env}
        shown = {**env, **{name: f"${{{name}}}" for name in spec.server.pass_env}}
        prefix = [f"{name}={value}" for name, value in env.items()]
        argv = (*(("env", *prefix) if prefix else ()), *self._program(spec), *args)
        form = render.canonical("process", spec.server, applied, env={**model_env, **cards}, mounts=())
        return render.rendered(argv, shown, (), form)

    @staticmethod
    def _program(spec: StartSpec) -> tuple[str, ...]:
        match spec.build.source:
            case SimulatedSource():
                simulator = (sys.executable, "-m", "imagebisect.simulator", "serve")
                profile = str(spec.start_folder / "profile.json")
                return (*simulator, "--profile", profile, "--state-dir", str(spec.run_folder / "standin"))
            case VenvSource(path=path):
                if spec.server.entrypoint:
                    return spec.server.entrypoint
                return (str(Path(path) / "bin" / "vllm"), "serve")
            case _:
                raise AssertionError(spec.build.source)

    def start(self, spec: StartSpec, rendered: Rendered) -> RunningProcess:
        """See `Runtime`. The program waits for its group to be on record before it runs."""
        spec.start_folder.mkdir(parents=True, exist_ok=True)
        if isinstance(spec.build.source, SimulatedSource):
            profile = json.dumps(dict(spec.build.source.profile))
            (spec.start_folder / "profile.json").write_text(profile, encoding="utf-8")
        caches = spec.run_folder / "caches"
        cache = (caches / spec.build.name) if spec.server.cache == "per-build" else (caches / spec.start_id)
        cache.mkdir(parents=True, exist_ok=True)
        port = free_port()
        argv = self._argv(rendered, port)
        env = self._env(spec, rendered, cache)
        with spec.log_path.open("ab") as log:
            try:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", _WAIT_FOR_GO, "sh", *argv],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=env,
                    cwd=spec.start_folder,
                    start_new_session=True,
                )
            except OSError as error:
                raise EnvironmentFault(
                    f"no process can be started: {error.strerror}",
                    next_step="see `ulimit -u` and free memory",
                    cause=Cause.DAEMON,
                ) from error
        group = groups.Group(
            run_id=spec.run_id,
            start_id=spec.start_id,
            pgid=process.pid,
            ticks=groups.start_ticks(process.pid) or 0,
            boot=groups.boot_id(),
            owner=str(groups.Owner.this()),
            cache="" if spec.server.cache == "per-build" else str(cache),
        )
        running = RunningProcess(spec, process, group, env, port)
        try:
            groups.put_on_record(group)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as go:
                go.write(b"go\n")
        except BaseException:
            running.stop()
            raise
        return running

    @staticmethod
    def _argv(rendered: Rendered, port: int) -> list[str]:
        argv = list(rendered.argv)
        argv[-1] = str(port)
        if argv[0] == "env":
            while len(argv) > 1 and (argv[0] == "env" or "=" in argv[0]):
                argv.pop(0)
        return argv

    @staticmethod
    def _env(spec: StartSpec, rendered: Rendered, cache: Path) -> dict[str, str]:
        env = {name: os.environ[name] for name in BASE_ENV if name in os.environ}
        folders = {
            "XDG_CACHE_HOME": cache,
            "VLLM_CACHE_ROOT": cache / "vllm",
            "TRITON_CACHE_DIR": cache / "triton",
            "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
            "FLASHINFER_WORKSPACE_BASE": cache / "flashinfer",
        }
        env |= {name: str(folder) for name, folder in folders.items()}
        env["PYTHONUNBUFFERED"] = "1"
        env |= {name: value for name, value in rendered.env.items() if name not in spec.server.pass_env}
        env |= {name: os.environ[name] for name in spec.server.pass_env if name in os.environ}
        return env

    def reap(self, run_id: str | None) -> tuple[str, ...]:
        """See `Runtime`: groups on record whose owner is dead; of one run, also what this process left."""
        return groups.reap(run_id)
