"""The stand-in's output: lines of recorded vLLM servers with the numbers put in.

The templates under `logs/` come from logs of vLLM 0.26.0 under the flags of a real bug report. Composed by hand
around a known last line, with invented frames and line numbers, are: bad_argument, engine_process_died,
fatal_runtimeerror (its end), import_error, port_in_use, too_few_gpus, too_little_kv, unsupported_architecture.
None of them is derived from the patterns that read them.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import cache
from pathlib import Path
from string import Template

_FOLDER = Path(__file__).parent / "logs"


@cache
def _template(name: str) -> Template:
    return Template((_FOLDER / f"{name}.txt").read_text(encoding="utf-8"))


def render(name: str, **values: object) -> str:
    """The lines of one template; a missing value is a KeyError."""
    now = time.time()
    clock = time.localtime(now)
    stamps = {
        "now": time.strftime("%m-%d %H:%M:%S", clock),
        "long_now": f"{time.strftime('%Y-%m-%d %H:%M:%S', clock)},{int(now % 1 * 1000):03d}",
    }
    return _template(name).substitute(stamps, **values)


class Log:
    """Writes templates as a server's processes do, whole blocks at a time. Values given here hold for all of them."""

    def __init__(self, **values: object) -> None:
        self.values = dict(values)
        self._lock = threading.Lock()

    def write(self, name: str, **values: object) -> None:
        """Write one template to stdout; a reader that has gone away is no error."""
        text = render(name, **{**self.values, **values})
        with self._lock:
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except (BrokenPipeError, ValueError):
                return
