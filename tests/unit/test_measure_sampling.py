"""Watching the cards during a rep: who came, who grew, what slowed them, and a driver that does not answer."""

from __future__ import annotations

import contextlib
import threading
import time

from imagebisect.domain import CardMemory
from imagebisect.measure import gpu
from imagebisect.measure.gpu import GpuProcess, Sample, sampling
from imagebisect.simulator import events

SERVER, NEIGHBOUR, NEWCOMER = 100, 200, 300


def on_card(pid, mib, index=0):
    """A process on a card."""
    return GpuProcess(index=index, pid=pid, used_mib=mib)


class Cards:
    """A probe of cards that a test changes while they are watched."""

    source = "nvidia-smi"
    interval_s = 0.01
    process_interval_s = 0.01
    host_pids = True

    def __init__(self, *processes):
        self.now = processes
        self.seen = Sample(free_mib={0: 1000.0})
        self.asked = 0

    def read(self):
        """Nothing."""
        return ()

    def sample(self):
        """What the test says."""
        return self.seen

    def processes(self):
        """Who the test says is there."""
        self.asked += 1
        return self.now

    def details(self):
        """Nothing."""
        return ()

    def attach(self, running):
        """Nothing to do."""


def look(probe):
    """Wait until the sampler has looked twice more."""
    until = probe.asked + 2
    deadline = time.monotonic() + 5
    while probe.asked < until and time.monotonic() < deadline:
        time.sleep(0.005)


def test_the_least_free_memory_is_kept_and_the_sampler_ends():
    """What dipped while the block ran is seen; the thread is gone after it, also after an error."""
    sizes = iter([1000, 400, 900])

    def smi(argv):
        return 0, f"0, {next(sizes, 950)}, 0x0, 1905, 60, 300.0\n" if "--query-gpu" in argv[1] else ""

    probe = gpu.SmiProbe("all", command=smi, interval_s=0.01)

    with contextlib.suppress(ZeroDivisionError), sampling(probe) as lowest:
        time.sleep(0.2)
        _ = 1 / 0

    assert lowest.worst_mib == 400.0
    reads = lowest.reads
    time.sleep(0.05)
    assert lowest.reads == reads
    assert not lowest.wedged


def test_a_process_that_came_is_seen_though_it_left_again():
    """Who shared the card with a rep spoils it, however short; what was there before does not."""
    probe = Cards(on_card(SERVER, 9000), on_card(NEIGHBOUR, 500))

    with sampling(probe, own=frozenset({SERVER})) as lowest:
        probe.now = (*probe.now, on_card(NEWCOMER, 700, index=1))
        look(probe)
        probe.now = probe.now[:-1]
        look(probe)

    assert lowest.new_processes == {(1, NEWCOMER): on_card(NEWCOMER, 700, index=1)}
    assert lowest.grown == {}


def test_a_process_that_came_between_two_looks_is_seen_at_the_end():
    """The cards are read once more after the block."""
    probe = Cards(on_card(SERVER, 9000))
    probe.process_interval_s = 60.0

    with sampling(probe, own=frozenset({SERVER})) as lowest:
        probe.now = (*probe.now, on_card(NEWCOMER, 700))

    assert (0, NEWCOMER) in lowest.new_processes


def test_reps_in_a_row_ask_once_each():
    """The list that ended one rep begins the next; who came between the two was there during the second."""
    probe = Cards(on_card(SERVER, 9000))
    probe.process_interval_s = 60.0
    with sampling(probe, own=frozenset({SERVER})):
        pass
    assert probe.asked == 2
    probe.now = (*probe.now, on_card(NEWCOMER, 700))

    with sampling(probe, own=frozenset({SERVER})) as lowest:
        pass

    assert probe.asked == 3
    assert set(lowest.new_processes) == {(0, NEWCOMER)}


def test_a_neighbour_that_grows_is_named_and_the_server_may_grow():
    """64 MiB are nobody's business; the server's own memory under load is its own affair, new workers included."""
    probe = Cards(on_card(SERVER, 9000), on_card(NEIGHBOUR, 500), on_card(201, 500))

    with sampling(probe, own=frozenset({SERVER, 101})) as lowest:
        probe.now = (on_card(SERVER, 12000), on_card(101, 400), on_card(NEIGHBOUR, 800), on_card(201, 560))
        look(probe)
        probe.now = (on_card(SERVER, 9000), on_card(101, 400), on_card(NEIGHBOUR, 500), on_card(201, 500))

    assert lowest.grown == {(0, NEIGHBOUR): 300.0}
    assert lowest.new_processes == {}


def test_growth_is_nobodys_where_the_server_cannot_be_told():
    """Without the server's pids its own growth would spoil every rep; a newcomer is seen all the same."""
    probe = Cards(on_card(SERVER, 9000))

    with sampling(probe) as lowest:
        probe.now = (on_card(SERVER, 12000), on_card(NEWCOMER, 100))

    assert lowest.grown == {}
    assert set(lowest.new_processes) == {(0, NEWCOMER)}


def test_pids_of_a_container_accuse_nobody():
    """They are the container's own, and so are the processes behind them."""
    probe = Cards(on_card(1, 9000))
    probe.host_pids = False

    with sampling(probe, own=frozenset({SERVER})) as lowest:
        probe.now = (on_card(1, 9000), on_card(77, 400))
        time.sleep(0.05)

    assert (lowest.new_processes, lowest.grown, probe.asked) == ({}, {}, 0)


def test_a_list_that_cannot_be_read_accuses_nobody():
    """Neither at the beginning nor later."""
    for first, later in ((None, (on_card(NEWCOMER, 100),)), ((on_card(SERVER, 9000),), None)):
        probe = Cards()
        probe.now = first
        with sampling(probe, own=frozenset({SERVER})) as lowest:
            probe.now = later
            time.sleep(0.03)
        assert lowest.new_processes == {}


def test_clocks_heat_and_power_are_kept_at_their_extremes():
    """What explains an outlier: the lowest clock under load, the highest temperature and power, each slowdown."""
    probe = Cards()

    with sampling(probe) as lowest:
        for clock, heat, power in ((1905.0, 60.0, 280.0), (1185.0, 92.0, 150.0), (1800.0, 88.0, 310.0)):
            slow = ("GPU 0: hardware thermal slowdown",) if heat > 90 else ()
            probe.seen = Sample(
                free_mib={0: 1.0}, sm_clock_mhz={0: clock}, temperature_c={0: heat}, power_w={0: power}, slowdowns=slow
            )
            look(probe)

    assert (lowest.min_sm_clock_mhz, lowest.max_temperature_c, lowest.max_power_w) == (
        {0: 1185.0},
        {0: 92.0},
        {0: 310.0},
    )
    assert lowest.slowdowns == {"GPU 0: hardware thermal slowdown"}


class Hangs(Cards):
    """A probe whose driver stops answering until it is let go."""

    def __init__(self, *methods):
        super().__init__(on_card(SERVER, 9000))
        self.methods = methods
        self.go = threading.Event()

    def sample(self):
        """Late, if at all."""
        if "sample" in self.methods:
            self.go.wait(30)
        return super().sample()

    def processes(self):
        """Late, if at all."""
        if "processes" in self.methods:
            self.go.wait(30)
        return super().processes()


def test_a_wedged_driver_ends_no_rep():
    """The block is left in time, the record says that the driver hung, and an answer that comes late is dropped."""
    probe = Hangs("sample")
    began = time.monotonic()

    with sampling(probe, patience_s=0.1) as lowest:
        pass

    assert time.monotonic() - began < 2
    assert lowest.wedged
    probe.go.set()
    time.sleep(0.1)
    assert (lowest.reads, lowest.free_mib) == (0, {})


def test_a_driver_that_is_wedged_before_the_rep_costs_its_patience_once():
    """While the first question hangs no other is asked; once it answers, the next rep is watched again."""
    probe = Hangs("processes")
    began = time.monotonic()
    for _ in range(3):
        with sampling(probe, patience_s=0.2) as lowest:
            pass
        assert lowest.wedged
    assert time.monotonic() - began < 0.6

    probe.go.set()
    time.sleep(0.1)
    with sampling(probe, patience_s=5.0) as lowest:
        look(probe)

    assert not lowest.wedged
    assert lowest.reads > 0


def test_the_servers_processes_are_those_that_came_with_it():
    """Told from the cards as they were before the start."""
    before = CardMemory(index=0, uuid="GPU-0", name="n", total_mib=1.0, free_mib=1.0, processes=((NEIGHBOUR, 500.0),))

    assert gpu.arrived_since((before,), (on_card(NEIGHBOUR, 500), on_card(SERVER, 9000))) == {SERVER}
    assert gpu.arrived_since((before,), None) == frozenset()


def test_what_happens_to_the_stand_ins_cards_shows_in_a_sampled_block(tmp_path):
    """A foreign process and a thermal slowdown, planted from outside while the real command is asked."""
    probe = gpu.SmiProbe("all", argv=gpu.standin_argv(tmp_path), interval_s=0.05)

    with sampling(probe) as lowest:
        events.plant(tmp_path / "standin", foreign={1: 2048}, slowdown_bits={1: 0x40})
        deadline = time.monotonic() + 10
        while not lowest.slowdowns and time.monotonic() < deadline:
            time.sleep(0.05)

    assert [(p.index, p.used_mib, p.name) for p in lowest.new_processes.values()] == [(1, 2048.0, "python3")]
    assert lowest.slowdowns == {"GPU 1: hardware thermal slowdown"}
    assert lowest.max_temperature_c[1] > 90
    assert lowest.free_mib[1] == lowest.free_mib[0] - 2048
