"""Builds as containers, started by digest. The only module that knows docker.

Everything we create carries labels with the run and with the process that owns it, so that a later run can
tell leftovers from what somebody still uses.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit
from requests.exceptions import RequestException

import docker
from imagebisect.domain import Build, Identity, ImageSource, Rendered, Server
from imagebisect.errors import EnvironmentFault
from imagebisect.interrupt import StopFlag
from imagebisect.outcome import Cause
from imagebisect.runtime import groups, pull, render
from imagebisect.runtime.base import ExitState, PullProgress, StartSpec
from imagebisect.runtime.groups import Owner
from imagebisect.runtime.refusal import refusal

LABEL = "org.imagebisect"
CALL_S = 60.0
"""One call to the daemon may take this long; a busy one removes a 30 GB container slowly."""

LOG_S = 20.0
"""The rest of an ended container's log may take so long to arrive."""

LOG_OPTIONS = {"max-size": "100g", "max-file": "1", "compress": "false", "mode": "blocking"}
"""The daemon's own defaults may rotate a log away; each of them is overruled."""


def _labels(spec: StartSpec) -> dict[str, str]:
    return {
        f"{LABEL}.owner": str(Owner.this()),
        f"{LABEL}.run": spec.run_id,
        f"{LABEL}.start": spec.start_id,
        f"{LABEL}.build": spec.build.name,
    }


def _daemon_fault(error: Exception) -> EnvironmentFault:
    return EnvironmentFault(
        f"the docker daemon does not answer: {' '.join(str(error).split())[:300]}",
        next_step="start it (`systemctl start docker`), check your rights (`docker ps`) and DOCKER_HOST",
        cause=Cause.DAEMON,
    )


@contextlib.contextmanager
def _daemon() -> Iterator[None]:
    """Say clearly that the daemon is away; its own answers pass."""
    try:
        yield
    except APIError:
        raise
    except (DockerException, RequestException, OSError) as error:
        raise _daemon_fault(error) from error


class RunningContainer:
    """A started container. See `Running`."""

    log_lag_s = 0.03  # from the container by the daemon to our thread

    def __init__(self, client: docker.DockerClient, spec: StartSpec, container: Container, volume: str | None) -> None:
        self.spec = spec
        self.url = ""
        self._client = client
        self._container = container
        self._volume = volume
        self._ended: ExitState | None = None
        self._gone = threading.Event()
        self._log = threading.Thread(target=self._follow, name=f"log-{spec.start_id}", daemon=True)

    def begin(self) -> None:
        """Start the container, follow its log, learn its port."""
        self._container.start()
        self._log.start()
        self._container.reload()
        server = self.spec.server
        if server.network == "host":
            self.url = f"http://127.0.0.1:{server.container_port}"
            return
        bound = (self._container.ports or {}).get(f"{server.container_port}/tcp") or []
        port = bound[0]["HostPort"] if bound else None
        # an image that exits at once has no port any more; the wait for readiness will see that it is dead
        self.url = f"http://127.0.0.1:{port or 1}"

    def __enter__(self) -> RunningContainer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _follow(self) -> None:
        """Copy the log as it comes; a broken stream is read again, past what the file already holds."""
        written = 0
        with self.spec.log_path.open("wb") as sink:
            while True:
                skip = written
                with contextlib.suppress(DockerException, RequestException, OSError):
                    for chunk in self._container.logs(stream=True, follow=True):
                        new = chunk[skip:]
                        skip = max(0, skip - len(chunk))
                        sink.write(new)
                        sink.flush()
                        written += len(new)
                    if self._state_soon() is not None:
                        return
                if self._gone.wait(0.5):
                    return

    def _state_soon(self) -> ExitState | None:
        """How it ended, asked for a second: the log ends a moment before the state says so."""
        deadline = time.monotonic() + 1.0
        while (ended := self._exit_of(self._state())) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return ended

    def _state(self) -> dict[str, Any] | None:
        try:
            self._container.reload()
        except NotFound:
            return {"Status": "removed", "ExitCode": 137, "OOMKilled": False}
        except (DockerException, RequestException, OSError):
            return None
        state: dict[str, Any] = self._container.attrs["State"]
        return state

    def exit_state(self) -> ExitState | None:
        """See `Running`. Once it says how, the log is whole. A daemon that does not answer now leaves it open."""
        if self._ended is not None:
            return self._ended
        ended = self._exit_of(self._state())
        if ended is not None and self._log.ident is not None:
            self._log.join(LOG_S)
        return ended

    @staticmethod
    def _exit_of(state: Mapping[str, Any] | None) -> ExitState | None:
        if state is None or state.get("Status") in ("created", "running", "paused", "restarting"):
            return None
        code = int(state.get("ExitCode") or 0)
        by_signal = 128 < code < 128 + signal.NSIG
        return ExitState(exit_code=128 - code if by_signal else code, oom_killed=bool(state.get("OOMKilled")))

    def exec(self, argv: tuple[str, ...], timeout_s: float) -> tuple[int, str]:
        """See `Running`."""
        answer: list[tuple[int, str]] = []

        def work() -> None:
            with contextlib.suppress(DockerException, RequestException, OSError):
                done = self._container.exec_run(list(argv), stdout=True, stderr=True)
                output = done.output if isinstance(done.output, bytes) else b""
                answer.append((int(done.exit_code or 0), output.decode(errors="replace")))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(timeout_s)
        return answer[0] if answer else (127, "no answer from the container")

    def run_python(self, code: str, timeout_s: float) -> tuple[int, str]:
        """See `Running`: vLLM's images have it as python3."""
        return self.exec(("python3", "-c", code), timeout_s)

    def pids(self) -> frozenset[int]:
        """See `Running`."""
        with contextlib.suppress(DockerException, RequestException, OSError, KeyError, ValueError):
            listed = self._container.top(ps_args="-eo pid")
            return frozenset(int(row[0]) for row in listed["Processes"] or [])
        return frozenset()

    def stop(self) -> ExitState:
        """See `Running`: stop, then kill, then remove with its volume."""
        if self._ended is not None:
            return self._ended
        try:
            before = self.exit_state()
            if before is None:
                with contextlib.suppress(DockerException, RequestException, OSError):
                    self._container.stop(timeout=int(self.spec.stop_s))
            ended = before or self.exit_state() or ExitState(exit_code=-signal.SIGKILL)
        finally:
            self._gone.set()
            self._remove()
            if self._log.ident is not None:
                self._log.join(5.0)
        self._ended = ended
        return ended

    def _remove(self) -> None:
        try:
            with contextlib.suppress(NotFound):
                self._container.remove(force=True, v=True)
            if self._volume is not None:
                with contextlib.suppress(NotFound):
                    self._client.api.remove_volume(self._volume, force=True)
        except (DockerException, RequestException, OSError) as error:
            raise EnvironmentFault(
                f"the container {self.spec.container_name} cannot be removed: {' '.join(str(error).split())[:200]}",
                where=self.spec.container_name,
                next_step="`docker rm -f` it, or `bisect clean`; then `bisect resume`",
                cause=Cause.ENGINE_REFUSED,
            ) from error
        finally:
            self._client.close()


class DockerRuntime:
    """Starts `image` builds. See `Runtime`."""

    kind = "docker"

    @staticmethod
    def _client() -> docker.DockerClient:
        with _daemon():
            return docker.from_env(timeout=int(CALL_S))

    def check(self, server: Server) -> None:
        """See `Runtime`: the daemon answers. GPUs and limits show when the first container starts."""
        del server
        client = self._client()
        try:
            with _daemon():
                client.ping()
        except APIError as error:
            raise _daemon_fault(error) from error
        finally:
            client.close()

    def version(self) -> str | None:
        """See `Runtime`."""
        client = self._client()
        try:
            with _daemon():
                return str(client.version().get("Version") or "") or None
        except APIError as error:
            raise _daemon_fault(error) from error
        finally:
            client.close()

    def prepare(self, build: Build, *, progress: PullProgress, stop: StopFlag, idle_s: float) -> Identity:
        """See `Runtime`: pulled by digest unless it is here."""
        source = build.source
        assert isinstance(source, ImageSource)
        client = self._client()
        pulled = 0
        try:
            with _daemon():
                try:
                    image = client.images.get(source.reference)
                except ImageNotFound:
                    pulled = pull.pull(source.reference, progress=progress, stop=stop, idle_s=idle_s)
                    image = client.images.get(source.reference)
        except APIError as error:
            raise _daemon_fault(error) from error
        finally:
            client.close()
        return _identity(build, image.attrs, pulled)

    def render(self, spec: StartSpec) -> Rendered:
        """See `Runtime`."""
        return render.render_container(spec)

    def start(self, spec: StartSpec, rendered: Rendered) -> RunningContainer:
        """See `Runtime`. What the engine refuses is the host's fault, not the build's."""
        del rendered
        spec.start_folder.mkdir(parents=True, exist_ok=True)
        client = self._client()
        volume = render.cache_volume(spec)
        fresh = spec.server.cache == "fresh"
        container: Container | None = None
        try:
            with _daemon():
                labels = _labels(spec)
                if not fresh:
                    del labels[f"{LABEL}.start"]
                client.volumes.create(name=volume, driver="local", labels=labels)
                container = _create(client, spec, volume)
                running = RunningContainer(client, spec, container, volume if fresh else None)
                running.begin()
                return running
        except BaseException as error:
            _undo(client, container, volume if fresh else None)
            if isinstance(error, APIError):
                raise refusal(error, spec) from error
            raise

    def reap(self, run_id: str | None) -> tuple[str, ...]:
        """See `Runtime`: by label; what a living process owns stays unless its run is named. Commands go with it."""
        removed = [*groups.reap(run_id)]
        client = self._client()
        try:
            with _daemon():
                label = f"{LABEL}.owner" if run_id is None else f"{LABEL}.run={run_id}"
                for container in client.containers.list(all=True, filters={"label": label}, ignore_removed=True):
                    if _orphan(container.labels, run_id):
                        with contextlib.suppress(NotFound):
                            container.remove(force=True, v=True)
                        removed.append(f"container {container.name}")
                for volume in client.volumes.list(filters={"label": label}):
                    labels = volume.attrs.get("Labels") or {}
                    kept = run_id is not None and f"{LABEL}.start" not in labels  # a cache per build
                    if _orphan(labels, run_id) and not kept:
                        with contextlib.suppress(NotFound):
                            volume.remove(force=True)
                        removed.append(f"volume {volume.name}")
        except APIError as error:
            raise _daemon_fault(error) from error
        finally:
            client.close()
        return tuple(removed)


def _orphan(labels: Mapping[str, str], run_id: str | None) -> bool:
    """Of that run, or of any; never what another living process owns: two folders may hold a run of one name."""
    if run_id is not None and labels.get(f"{LABEL}.run") != run_id:
        return False
    owner = Owner.parse(labels.get(f"{LABEL}.owner", ""))
    return owner is None or not owner.alive or (run_id is not None and owner == Owner.this())


def _create(client: docker.DockerClient, spec: StartSpec, volume: str) -> Container:
    """Create it; what the SDK itself cannot make sense of is the suite's fault, not the daemon's silence."""
    try:
        return client.containers.create(**_arguments(spec, volume))
    except APIError:
        raise
    except (DockerException, TypeError, ValueError) as error:
        raise EnvironmentFault(
            f"docker does not understand an option of server {spec.server.name}: {error}",
            where=spec.container_name,
            next_step="correct memory, shm_size, ulimits or `docker:` in the suite; the last takes the docker SDK's names",
            cause=Cause.ENGINE_REFUSED,
        ) from error


def _undo(client: docker.DockerClient, container: Container | None, volume: str | None) -> None:
    """Leave nothing of a start that failed, whatever else goes wrong."""
    quiet = contextlib.suppress(DockerException, RequestException, OSError)
    if container is not None:
        with quiet:
            container.remove(force=True, v=True)
    if volume is not None:
        with quiet:
            client.api.remove_volume(volume, force=True)
    with quiet:
        client.close()


def _arguments(spec: StartSpec, volume: str) -> dict[str, Any]:
    """What the SDK is given: the same as the rendered line says."""
    server, source = spec.server, spec.build.source
    assert isinstance(source, ImageSource)
    applied = render.apply_build(server, spec.build)
    env = {**render.model_env(spec, spec.model.at if spec.model else ""), **applied.env}
    env |= {name: os.environ[name] for name in server.pass_env if name in os.environ}
    mounts = [Mount(target=render.CACHE_AT, source=volume, type="volume")]
    if spec.model is not None:
        mounts.append(Mount(target=spec.model.at, source=spec.model.path, type="bind", read_only=True))
    mounts += [Mount(target=m.target, source=m.source, type="bind", read_only=m.read_only) for m in server.mounts]
    reference = spec.model.reference if spec.model else ""
    entry = server.entrypoint or ()
    arguments: dict[str, Any] = {
        "image": source.reference,
        "command": [*entry[1:], *render.with_model(applied.args, reference)],
        "name": spec.container_name,
        "labels": _labels(spec),
        "environment": env,
        "mounts": mounts,
        "init": True,
        "detach": True,
        "tty": False,
        "log_config": LogConfig(type=LogConfig.types.JSON, config=dict(LOG_OPTIONS)),
    }
    if entry:
        arguments["entrypoint"] = [entry[0]]
    if server.gpus != "none":
        ids = None if server.gpus == "all" else [str(index) for index in server.gpus]
        count = {"count": -1} if ids is None else {"device_ids": ids}
        arguments["device_requests"] = [DeviceRequest(capabilities=[["gpu"]], **count)]
    if server.network != "host":
        arguments["ports"] = {f"{server.container_port}/tcp": ("127.0.0.1", None)}
    if server.network is not None:
        arguments["network"] = server.network
    if server.ulimits:
        arguments["ulimits"] = [Ulimit(name=name, soft=value, hard=value) for name, value in server.ulimits.items()]
    optional = {
        "ipc_mode": server.ipc,
        "shm_size": server.shm_size,
        "mem_limit": server.memory,
        "cpuset_cpus": server.cpuset,
    }
    arguments |= {key: value for key, value in optional.items() if value is not None}
    return {**arguments, **server.docker_options}


def _identity(build: Build, attrs: Mapping[str, Any], pulled: int) -> Identity:
    """What an image is: its config digest, and the commit by label, env, or tag (vllm.md 1.3)."""
    source = build.source
    assert isinstance(source, ImageSource)
    config = attrs.get("Config") or {}
    labels: dict[str, str] = config.get("Labels") or {}
    env = dict(item.partition("=")[::2] for item in config.get("Env") or [])
    revision = (
        labels.get("org.opencontainers.image.revision")
        or labels.get("ai.vllm.build.commit")
        or env.get("VLLM_BUILD_COMMIT")
    )
    if revision in (None, "", "unknown"):
        tag = source.tag or ""
        revision = tag.removeprefix("nightly-") if tag.startswith("nightly-") and len(tag) == 48 else None
    identity = str(attrs["Id"])
    if build.overrides is not None:
        extra = json.dumps([dict(build.overrides.env), build.overrides.args], sort_keys=True)
        identity += "+" + hashlib.sha256(extra.encode()).hexdigest()[:12]
    version = labels.get("org.opencontainers.image.version")
    return Identity(
        id=identity,
        digest=source.digest,
        revision=revision or build.commit,
        version=None if version in (None, "", "local") else version,
        labels={k: v for k, v in labels.items() if k.startswith(("org.opencontainers.image.", "ai.vllm."))},
        pulled_bytes=pulled,
    )
