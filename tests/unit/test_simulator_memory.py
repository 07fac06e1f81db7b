"""GPU memory by arithmetic, and the cards that show it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from imagebisect.simulator import cards
from imagebisect.simulator.flags import parse
from imagebisect.simulator.memory import Memory
from imagebisect.simulator.profile import Profile, from_mapping
from imagebisect.simulator.smi import main as nvidia_smi

PIN = 4 << 30


def memory(batched: int = 4096, overhead: float = 1000.0, pin: int | None = PIN, **profile: object) -> Memory:
    """One card of a server at TP=2."""
    arguments = ["-tp=2", f"--max-num-batched-tokens={batched}"]
    if pin is not None:
        arguments.append(f"--kv-cache-memory-bytes={pin}")
    return Memory(profile=from_mapping({"overhead_mib": overhead, **profile}), flags=parse(arguments))


def test_more_memory_taken_at_start_is_less_that_is_free():
    """1,178 MiB of overhead are 1,178 MiB less."""
    assert memory().free_mib - memory(overhead=2178).free_mib == 1178


def test_the_larger_batch_fails_only_on_the_hungry_build():
    """The issue's table: bt=4096 lives on both builds, bt=8192 on the older one only."""
    assert memory(4096).shortage(16000, 1) is None
    assert memory(8192).shortage(16000, 4) is None
    assert memory(4096, overhead=2178).shortage(16000, 4) is None
    shortage = memory(8192, overhead=2178).shortage(16000, 1)
    assert shortage is not None
    assert shortage.asked_mib == 48.0
    assert 0 <= shortage.free_mib < 48.0
    assert shortage.words()["asked"] == "48.00 MiB"
    assert shortage.words()["total_gib"] == "15.51"
    assert shortage.gpu == 1


def test_memory_can_run_out_under_concurrency_only():
    """What every request of a batch adds may be what is too much."""
    tight = memory(4096, overhead=2178, activation_mib_per_request=100)

    assert tight.shortage(16000, 1) is None
    assert tight.shortage(64000, 4) is not None


def test_a_pool_that_leaves_nothing_is_an_oom_at_start():
    """The pin is taken as said, and the warm-up finds nothing left."""
    assert memory().shortage_at_start() is None
    assert memory(pin=6 << 30).shortage_at_start() is not None
    assert memory(oom_at_start=True).shortage_at_start() is not None


def test_without_a_pin_the_pool_is_what_the_utilization_leaves():
    """And it fits."""
    free = memory(pin=None)

    assert free.kv_blocks > 0
    assert free.shortage_at_start() is None


def smi(capsys, folder, *arguments: str) -> tuple[int, str]:
    """Exit code and output of the stand-in's nvidia-smi."""
    code = nvidia_smi(["--state-dir", str(folder), *arguments])
    return code, capsys.readouterr().out


def test_cards_show_live_servers_and_forget_dead_ones(tmp_path, capsys):
    """A file whose process is dead is nobody's memory."""
    query = ("--query-gpu=index,memory.total,memory.used,memory.free", "--format=csv,noheader,nounits")
    assert smi(capsys, tmp_path, *query) == (0, "0, 15882, 612, 15270\n1, 15882, 612, 15270\n")
    registration = cards.Registration(tmp_path, profile=Profile(), pid=os.getpid(), cards=(1,))
    registration.hold(1000)
    assert smi(capsys, tmp_path, *query)[1].splitlines()[1] == "1, 15882, 1612, 14270"
    registration.close()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    left = cards.Registration(tmp_path, profile=Profile(), pid=dead.pid, cards=(0,))
    left.hold(5000)
    dead.wait()
    assert smi(capsys, tmp_path, *query) == (0, "0, 15882, 612, 15270\n1, 15882, 612, 15270\n")
    assert not list(tmp_path.glob("server-*"))


def test_nvidia_smi_answers_the_queries_that_readers_use(tmp_path, capsys):
    """Header and units by default, processes with their card, an error for a field it does not have."""
    registration = cards.Registration(tmp_path, profile=Profile(), pid=os.getpid(), cards=(0,))
    registration.hold(2048)

    _, table = smi(capsys, tmp_path, "--query-gpu=index,memory.used,temperature.gpu", "--format=csv", "-i", "0")
    assert table == "index, memory.used [MiB], temperature.gpu\n0, 2660 MiB, 52\n"
    _, rest = smi(
        capsys,
        tmp_path,
        "--query-gpu=uuid,name,driver_version,power.draw,clocks.current.sm,clocks_event_reasons.active",
        "--format=csv,noheader",
    )
    uuids = [line.split(", ")[0] for line in rest.splitlines()]
    assert len(set(uuids)) == 2
    assert all(uuid.startswith("GPU-") for uuid in uuids)
    _, processes = smi(
        capsys, tmp_path, "--query-compute-apps=pid,used_memory,gpu_uuid", "--format=csv,noheader,nounits"
    )
    assert processes == f"{os.getpid()}, 2048, {uuids[0]}\n"
    code, said = smi(capsys, tmp_path, "--query-gpu=no.such", "--format=csv")
    assert code == 2
    assert 'Field "no.such" is not a valid field to query.' in said
    code, profiled = smi(
        capsys,
        tmp_path,
        "--profile-json",
        json.dumps({"cards": 4, "card_total_mib": 24000}),
        "--query-gpu=memory.total",
        "--format=csv,noheader,nounits",
    )
    assert profiled == "24000\n" * 4
    registration.close()
