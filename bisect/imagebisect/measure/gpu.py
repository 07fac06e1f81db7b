"""GPU memory behind a protocol: NVML on the host, or an `nvidia-smi` on the host, in the container, of the stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from imagebisect.domain import ImageSource, Server, SimulatedSource, Source
from imagebisect.errors import EnvironmentFault
from imagebisect.measure.cards import CardDetails, GpuProbe, GpuProcess, NoProbe, Sample, arrived_since
from imagebisect.measure.nvml import NvmlProbe
from imagebisect.measure.sampling import Lowest, sampling
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
    "known",
    "parse_smi",
    "run_here",
    "run_standin",
    "sampling",
    "standin_argv",
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


def known(probe: GpuProbe) -> frozenset[tuple[int, int]] | None:
    """The (card index, pid) on the cards now; None where that cannot be read, or pids mean nothing on this host."""
    found = probe.processes() if probe.host_pids else None
    return None if found is None else frozenset(process.key for process in found)
