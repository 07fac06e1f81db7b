"""GPU memory behind a protocol: NVML on the host, or an `nvidia-smi` on the host, in the container, of the stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from imagebisect.domain import CardMemory, ImageSource, Server, SimulatedSource, Source
from imagebisect.errors import EnvironmentFault
from imagebisect.measure.cards import CardDetails, GpuProbe, GpuProcess, NoProbe, Sample, arrived_since
from imagebisect.measure.nvml import NvmlProbe
from imagebisect.measure.sampling import GREW_MIB, Lowest, sampling
from imagebisect.measure.smi import ExecProbe, SmiProbe, parse_smi, run_here, run_standin, standin_argv
from imagebisect.outcome import Cause

__all__ = [
    "CardDetails",
    "ExecProbe",
    "GpuProbe",
    "GpuProcess",
    "Lowest",
    "NoProbe",
    "NvmlProbe",
    "Sample",
    "SmiProbe",
    "arrived_since",
    "choose",
    "parse_smi",
    "run_here",
    "run_standin",
    "sampling",
    "standin_argv",
    "strangers",
]


def choose(
    server: Server,
    source: Source,
    gpu_probe: Literal["auto", "nvml", "nvidia-smi", "exec", "none"],
    run_folder: Path,
) -> GpuProbe:
    """The probe for a server's cards.

    Args:
        server: names the cards; `none` means that there is nothing to read.
        source: of a build of the run; a simulated one says what its cards are like.
        gpu_probe: what the suite asks for (`exec` reads inside the container even where the server asks for no GPU); `auto` takes NVML, then the host's `nvidia-smi`, then the container's.
        run_folder: where the stand-in keeps its cards' state.

    Raises:
        EnvironmentFault: the suite asks for NVML or `nvidia-smi` by name and the host has none.
    """
    if gpu_probe == "none" or (server.gpus == "none" and gpu_probe != "exec"):
        return NoProbe()
    if isinstance(source, SimulatedSource):
        return SmiProbe(server.gpus, argv=standin_argv(run_folder, source.profile), command=run_standin)
    if gpu_probe == "exec":
        return ExecProbe()
    if gpu_probe in {"auto", "nvml"}:
        try:
            return NvmlProbe(server.gpus)
        except OSError as error:
            if gpu_probe == "nvml":
                raise EnvironmentFault(
                    f"NVML cannot be used on this host: {error}",
                    next_step="install the NVIDIA driver, or set `gpu_probe: auto` in the suite",
                    cause=Cause.NO_GPU,
                ) from error
    host = SmiProbe(server.gpus)
    if host.read():
        return host
    if gpu_probe == "nvidia-smi":
        raise EnvironmentFault(
            "`nvidia-smi` does not list the server's GPUs on this host",
            next_step="run `nvidia-smi` by hand, or set `gpu_probe: auto` in the suite",
            cause=Cause.NO_GPU,
        )
    return ExecProbe() if isinstance(source, ImageSource) else NoProbe()


def strangers(baseline: tuple[CardMemory, ...], now: tuple[GpuProcess, ...] | None, own: frozenset[int]) -> list[str]:
    """Who came onto the cards, or grew there, while a server started: in words, card by card.

    Nothing where none of the server's own pids is listed: then nobody can tell it from a stranger.
    """
    if not now or not any(process.pid in own for process in now):
        return []
    before = {(card.index, pid): used for card in baseline for pid, used in card.processes}
    found = []
    for process in now:
        if process.pid in own:
            continue
        was = before.get(process.key)
        named = f"pid {process.pid}" + (f" ({process.name})" if process.name else "")
        if was is None:
            found.append(f"{named} came onto GPU {process.index} with {process.used_mib:.0f} MiB")
        elif process.used_mib - was > GREW_MIB:
            found.append(f"{named} grew on GPU {process.index} by {process.used_mib - was:.0f} MiB")
    return found
