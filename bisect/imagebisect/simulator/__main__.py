"""`python -m imagebisect.simulator serve|nvidia-smi ...`: see `serve` and `nvidia-smi` in this package."""

from __future__ import annotations

import sys

USAGE = """usage: python -m imagebisect.simulator serve [--profile FILE | --profile-json TEXT] [--state-dir DIR] VLLM-FLAGS...
       python -m imagebisect.simulator nvidia-smi [--state-dir DIR] [--profile FILE] --query-gpu=... --format=csv

A profile is a JSON object that says what the simulated build is like; its keys are in imagebisect.simulator.profile.
"""


def main() -> int:
    """Dispatch; 2 for anything else."""
    command, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    is_help = command in {"-h", "--help"} or (command == "serve" and bool({"-h", "--help"} & set(arguments)))
    if command == "serve" and not is_help:
        from imagebisect.simulator.boot import serve

        return serve(arguments)
    if command == "nvidia-smi":
        from imagebisect.simulator.smi import main as nvidia_smi

        return nvidia_smi(arguments)
    (sys.stdout if is_help else sys.stderr).write(USAGE)
    return 0 if is_help else 2


if __name__ == "__main__":
    sys.exit(main())
