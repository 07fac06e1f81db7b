"""What a record says of the host, and when two hosts are one for a measurement."""

from __future__ import annotations

import copy
import getpass
import json
import os
import socket

import pytest

from imagebisect import host
from imagebisect.domain import CardMemory
from imagebisect.measure.gpu import CardDetails

CARD = CardDetails(
    index=0,
    uuid="GPU-01bdf941-0a7a-585e-b49a-c7876b6b20c1",
    name="NVIDIA H200",
    total_mib=143771.0,
    driver_version="580.65.06",
    cuda_driver_version="13.0",
    power_limit_w=700.0,
    max_sm_clock_mhz=1980.0,
    ecc=True,
    pcie_generation_max=5,
    pcie_generation_now=5,
    pcie_width_max=16,
)


@pytest.fixture
def seen():
    """This host with a card."""
    return host.host_info([CARD], gpu_source="nvml", docker_version="28.1.0")


def changed(seen, key=None, value=None, **card):
    """The same host with one thing changed."""
    other = copy.deepcopy(seen)
    if key:
        other[key] = value
    other["gpus"][0].update(card)
    return other


def test_a_record_has_the_hardware_and_no_names(seen):
    """JSON, with the versions that matter; no host name, user name or home folder."""
    text = json.dumps(seen)

    assert seen["driver"] == "580.65.06"
    assert seen["docker"] == "28.1.0"
    assert seen["cpus"] == os.cpu_count()
    assert seen["gpus"][0]["pcie_width_max"] == 16
    assert "mig" not in seen["gpus"][0]
    for name in (socket.gethostname(), getpass.getuser(), os.path.expanduser("~")):  # noqa: PTH111
        assert name == "root" or f'"{name}"' not in text
    assert seen["kernel"] == os.uname().release


def test_a_host_without_cards_has_a_fingerprint():
    """CPU runs are compared, too."""
    seen = host.host_info()

    assert seen["gpus"] == []
    assert len(host.fingerprint(seen)) == 16
    assert host.fingerprint(seen) == host.fingerprint(host.host_info())


def test_what_changes_by_itself_changes_no_fingerprint(seen):
    """The link of an idle card, the index after a reboot, Python, the source that read the same values."""
    same = changed(seen, "python", "3.14.0", pcie_generation_now=1, index=1, total_mib=143770.9)
    same["gpu_source"] = "nvidia-smi"

    assert host.fingerprint(same) == host.fingerprint(seen)
    assert host.differences(seen, same) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"driver_version": "580.82.09"}, "driver 580.65.06 then, 580.82.09 now"),
        ({"power_limit_w": 250.0}, "GPU 0 power limit 700 W then, 250 W now"),
        ({"pcie_width_max": 8}, "GPU 0 PCIe width 16 then, 8 now"),
        ({"max_sm_clock_mhz": 1500.0}, "GPU 0 maximum SM clock 1980 MHz then, 1500 MHz now"),
        ({"ecc": False}, "GPU 0 ECC on then, off now"),
        ({"key": "kernel", "value": "6.9"}, f"kernel {os.uname().release} then, 6.9 now"),
        ({"key": "docker", "value": "29.0"}, "docker 28.1.0 then, 29.0 now"),
    ],
)
def test_what_makes_measurements_incomparable_is_said(seen, change, says):
    """In a line that tells what to put back."""
    other = changed(seen, **change)

    assert host.fingerprint(other) != host.fingerprint(seen)
    assert host.differences(seen, other) == [says]


def test_one_driver_is_said_once_for_all_cards(seen):
    """Eight cards, one line."""
    second = {**seen["gpus"][0], "index": 1, "uuid": "GPU-2"}
    then = {**seen, "gpus": [seen["gpus"][0], second]}
    now = {**seen, "gpus": [{**card, "driver_version": "590.1"} for card in then["gpus"]]}

    assert host.differences(then, now) == ["driver 580.65.06 then, 590.1 now"]


def test_another_card_is_named(seen):
    """By its name and UUID: the same model in the next slot is another card."""
    other = changed(seen, uuid="GPU-5b7c4991")

    assert host.differences(seen, other) == [
        f"GPU 0 (NVIDIA H200, {CARD.uuid}) is not there now",
        "GPU 0 (NVIDIA H200, GPU-5b7c4991) was not there then",
    ]


def test_a_cpu_limit_that_came_or_went_is_a_difference(seen):
    """A container's quota slows the part of vLLM that runs on the CPU."""
    then, now = changed(seen, "cpu_limit", None), changed(seen, "cpu_limit", 4.0)

    assert host.differences(then, now) == ["CPU limit none then, 4 now"]
    assert host.differences(now, then) == ["CPU limit 4 then, none now"]
    assert host.fingerprint(then) != host.fingerprint(now)


def test_an_old_record_is_still_readable(seen):
    """It has fewer keys, and those that it has are the same."""
    old = {key: seen[key] for key in ("cpu", "cpus", "memory_mib", "kernel", "architecture", "python", "gpu_source")}
    old["gpus"] = [{key: seen["gpus"][0][key] for key in ("index", "uuid", "name", "total_mib")}]
    old["fingerprint"] = "0123456789abcdef"

    assert host.differences(old, seen) == []
    assert host.differences({}, seen) == []
    assert host.differences({**old, "cpus": 1}, seen) == [f"CPUs 1 then, {os.cpu_count()} now"]


def test_cards_as_a_probe_reads_them_will_do():
    """Less is known of them then."""
    card = CardMemory(index=0, uuid="GPU-0", name="n", total_mib=10.0, free_mib=5.0)

    seen = host.host_info([card], gpu_source="nvidia-smi")

    assert seen["gpus"] == [{"index": 0, "uuid": "GPU-0", "name": "n", "total_mib": 10.0}]
    assert seen["driver"] is None


@pytest.mark.parametrize(
    ("own", "files", "quotas"),
    [
        ("0::/a/b\n", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}, [1.5]),
        ("0::/\n", {"cpu.max": "400000 100000\n"}, [4.0]),
        (
            "4:memory:/x\n3:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
            [0.5],
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, []),
        ("torn", {}, []),
        ("", {}, []),
    ],
)
def test_the_cpu_quota_is_found_in_both_kinds_of_control_groups(tmp_path, own, files, quotas):
    """Of the own group and of every group above it; no quota is none."""
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert list(host._quotas(str(tmp_path / "fs"), str(tmp_path / "own"))) == quotas
