"""`serve`: boot as vLLM does, serve until told to stop or dead, and say it all in vLLM's words."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from imagebisect.simulator import cards, flags, logs
from imagebisect.simulator.engine import Engine
from imagebisect.simulator.flags import Flags
from imagebisect.simulator.logs import Log
from imagebisect.simulator.memory import MIB, Memory
from imagebisect.simulator.noise import Noise
from imagebisect.simulator.profile import Profile, ProfileError, from_file, from_json
from imagebisect.simulator.server import Server

NONCE_VARIABLE = "BISECT_STANDIN_NONCE"
"""Sets what the noise of a start is drawn from; else it is the arguments and how many such starts came before."""

ENGINE_LIFE_S = 3600.0
"""How long an engine process whose parent was killed lives at most."""

STATS_EVERY_S = 10.0


class _Stop:
    """What ends the server: a signal, or its engine's death."""

    def __init__(self) -> None:
        self.signalled = threading.Event()

    def install(self) -> None:
        """Take SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.signalled.set()


def _profile(own: dict[str, str]) -> Profile:
    try:
        if "profile_json" in own:
            return from_json(own["profile_json"])
        return from_file(own["profile"]) if "profile" in own else Profile()
    except ProfileError as error:
        flags.refuse_own(str(error))


def _leave(code: int) -> NoReturn:
    """End at once: handler threads may be writing, and the interpreter would wait for their locks."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            continue
    os._exit(code)


def _visible_cards(profile: Profile) -> tuple[int, ...]:
    """The cards this process may use, by CUDA_VISIBLE_DEVICES."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not said or not all(part.strip().isdigit() for part in said.split(",")):
        return tuple(range(profile.cards))
    return tuple(int(part) for part in said.split(",") if int(part) < profile.cards)


def _args_hash(found: Flags, profile: Profile) -> str:
    """The start by what it serves: where it listens makes no difference."""
    given = {key: value for key, value in found.given.items() if key not in {"port", "host"}}
    text = json.dumps([given, profile.version, profile.seed], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _noise(found: Flags, profile: Profile, folder: Path) -> Noise:
    """The draws of this start, by which one of its kind it is and how many of any kind came before."""
    before = cards.count_start(folder, "all")
    said = os.environ.get(NONCE_VARIABLE)
    if said:
        return Noise(profile=profile, nonce=said, before=before)
    key = _args_hash(found, profile)
    return Noise(profile=profile, nonce=f"{key}.{cards.count_start(folder, key)}", before=before)


class _Boot:
    """One boot: its log, its memory, its moments."""

    def __init__(self, found: Flags, profile: Profile, began: float, stop: _Stop, engine_pid: int) -> None:
        self.flags = found
        self.profile = profile
        self.memory = Memory(profile=profile, flags=found)
        self.began = began
        self.stop = stop
        api = os.getpid()
        ranks = range(found.tensor_parallel_size)
        # One card: the engine is its own worker.
        single = found.tensor_parallel_size == 1
        self.workers = (
            [f"EngineCore pid={engine_pid}"] if single else [f"Worker_TP{r} pid={engine_pid + 1 + r}" for r in ranks]
        )
        self.log = Log(
            api_pid=api, engine_pid=engine_pid, version=profile.version, model=found.model, host=found.host,
            port=found.port, max_model_len=found.max_model_len, max_num_batched_tokens=found.max_num_batched_tokens,
            tensor_parallel_size=found.tensor_parallel_size, served_model_name=found.served_model_name,
            prefix_caching=found.prefix_caching, architecture=profile.unsupported_architecture or "Qwen3_5ForConditionalGeneration",
            worker=self.workers[0], last_worker=self.workers[-1], cards=profile.cards,
        )  # fmt: skip

    def until(self, share: float) -> None:
        """Wait until this share of the boot is over; leaves when a signal comes."""
        left = self.began + share * self.profile.boot_s - time.monotonic()
        if self.stop.signalled.wait(max(0.0, left)):
            self.quit()

    def quit(self) -> NoReturn:
        """Stopped from outside while booting."""
        self.log.write("shutdown")
        raise SystemExit(0)

    def on_workers(self, name: str, **values: object) -> None:
        """One template for each worker."""
        for rank, worker in enumerate(self.workers):
            self.log.write(name, worker=worker, rank=rank, **values)

    def fail(self, name: str, **values: object) -> NoReturn:
        """The boot ends here."""
        self.log.write(name, **values)
        raise SystemExit(1)

    def announce(self) -> None:
        """What the API server says of itself, and what stops it early."""
        profile, found = self.profile, self.flags
        if found.model_as_option:
            self.log.write("model_option")
        if profile.unsupported_architecture:
            self.fail("unsupported_architecture")
        if found.tensor_parallel_size > len(_visible_cards(profile)):
            self.fail("too_few_gpus", cards=len(_visible_cards(profile)))
        self.log.write("boot_api", non_default_args=_shown(found))
        self.until(0.2)
        self.log.write("boot_engine")

    def load(self) -> None:
        """Weights, KV pool, graphs."""
        memory, profile = self.memory, self.profile
        times = {"load_s": f"{profile.boot_s * 0.2:.6f}", "init_port": 20000 + os.getpid() % 20000}
        self.until(0.4)
        self.on_workers("boot_worker_load", weights_gib=round(profile.weights_mib / 1024, 2), **times)
        if profile.boot_exit_code is not None:
            raise SystemExit(profile.boot_exit_code)
        if profile.never_ready:
            self.stop.signalled.wait()
            self.quit()
        self.until(0.6)
        kv_gib = f"{memory.kv_mib / 1024:.2f}"
        shares = dict.fromkeys(("dynamo_s", "compile_s", "warmup_s"), f"{profile.boot_s * 0.1:.2f}")
        if self.flags.kv_cache_memory_bytes is None:
            self.on_workers("boot_worker_available", kv_gib=kv_gib)
        else:
            initial = f"{memory.initial_free_mib / 1024:.2f}"
            self.on_workers("boot_worker_kv", initial_free_gib=initial, kv_gib=kv_gib, **shares)
        self._check_kv(kv_gib)
        concurrency = f"{memory.kv_tokens / self.flags.max_model_len:.2f}"
        self.log.write(
            "boot_engine_kv",
            kv_tokens=f"{memory.kv_tokens:,}",
            max_model_len_commas=f"{self.flags.max_model_len:,}",
            max_concurrency=concurrency,
        )
        shortage = memory.shortage_at_start()
        if shortage is not None:
            self.until(0.8)
            self.fail("oom_at_start", **shortage.words())
        self.until(0.8)
        self.on_workers("boot_worker_graphs", graphs_gib=f"{profile.graphs_mib / 1024:.2f}")
        self.log.write("boot_engine_ready", init_s=f"{profile.boot_s * 0.6:.2f}", compile_s=shares["compile_s"])

    def _check_kv(self, kv_gib: str) -> None:
        memory = self.memory
        if memory.kv_tokens <= 0:
            self.fail("no_kv_memory")
        if memory.kv_tokens < self.flags.max_model_len:
            needed = self.flags.max_model_len * self.profile.kv_bytes_per_token / MIB / 1024
            self.fail("too_little_kv", needed_gib=f"{needed:.2f}", kv_gib=kv_gib, possible_len=memory.kv_tokens)


def _shown(found: Flags) -> str:
    """`non-default args` as vLLM prints them."""
    return str({key: value for key, value in found.given.items() if value is not None})


def _fork_engine(server: Server) -> int:
    """A child that does nothing but be there, as the engine's process is; it never outlives ENGINE_LIFE_S."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    server.socket.close()
    time.sleep(ENGINE_LIFE_S)
    os._exit(0)


def _watch(child: int, died: Callable[[], None]) -> None:
    """Wait for the child's end in a thread."""

    def wait() -> None:
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            return
        died()

    threading.Thread(target=wait, daemon=True).start()


def _bind(found: Flags, profile: Profile, log: Log) -> Server:
    if not profile.port_in_use:
        try:
            return Server(found, profile, log)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    log.write("port_in_use")
    raise SystemExit(1)


def serve(arguments: Sequence[str]) -> int:
    """Run the server; returns its exit code, or leaves with it."""
    began = time.monotonic()
    stop = _Stop()
    stop.install()
    own = flags.own_options(arguments)
    profile = _profile(own)
    if profile.import_error is not None:
        sys.stderr.write(logs.render("import_error", message=profile.import_error))
        return 1
    found = flags.parse(arguments, profile.unknown_flags)
    folder = Path(found.state_dir or cards.DEFAULT_STATE_DIR)
    boot = _Boot(found, profile, began, stop, engine_pid=os.getpid() + 1)
    server = _bind(found, profile, boot.log)
    child = _fork_engine(server) if profile.engine_process else None
    if child is not None:
        boot = _Boot(found, profile, began, stop, engine_pid=child)
        server.log = boot.log
    try:
        registration = cards.Registration(
            folder,
            profile=profile,
            pid=child or os.getpid(),
            cards=_visible_cards(profile)[: found.tensor_parallel_size],
        )
        try:
            code = _run(boot, server, registration, child, _noise(found, profile, folder))
        finally:
            registration.close()
    finally:
        server.server_close()
        if child is not None:
            _end(child)
    _leave(code)


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        return


def _run(boot: _Boot, server: Server, registration: cards.Registration, child: int | None, noise: Noise) -> int:
    boot.announce()
    registration.hold(boot.profile.overhead_mib / 2)
    boot.load()
    engine = Engine(
        profile=boot.profile,
        flags=boot.flags,
        memory=boot.memory,
        noise=noise,
        log=boot.log,
        registration=registration,
    )
    registration.hold(boot.memory.idle_mib)
    boot.until(1.0)
    if child is not None:
        _watch(child, engine.process_died)
    server.listen(engine)
    boot.log.write("boot_ready")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    threading.Thread(target=_stats, args=(boot, engine), daemon=True).start()
    while not boot.stop.signalled.wait(0.05):
        if engine.dead.is_set():
            time.sleep(0.15)  # the clients under way get their 500
            server.shutdown()
            boot.log.write("exit_after_death")
            return boot.profile.death_exit_code
    boot.log.write("shutdown")
    server.shutdown()
    return 0


def _stats(boot: _Boot, engine: Engine) -> None:
    """The line that vLLM writes every ten seconds while something happens."""
    names = ("vllm:prompt_tokens", "vllm:generation_tokens", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits")
    before = [0.0, 0.0, 0.0, 0.0]
    while not engine.dead.wait(STATS_EVERY_S):
        now = [engine.counters.value(name) for name in names]
        if now == before and not engine.load():
            continue
        prompt, output = ((now[i] - before[i]) / STATS_EVERY_S for i in (0, 1))
        rate = 100 * now[3] / now[2] if now[2] else 0.0
        boot.log.write(
            "stats", prompt_tok_s=f"{prompt:.1f}", decode_tok_s=f"{output:.1f}", running=engine.load(), waiting=0,
            kv_usage="0.0", hit_rate=f"{rate:.1f}",
        )  # fmt: skip
        before = now
