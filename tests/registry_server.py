"""A real registry (Debian's docker-registry) on a free loopback port, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}", headers: {{X-Content-Type-Options: [nosniff]}}}}
"""


def available() -> bool:
    """Whether this machine has the program."""
    return shutil.which("docker-registry") is not None


def free_port() -> int:
    """A port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Run it; yields `localhost:PORT`."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yml"
    config.write_text(CONFIG.format(root=folder / "data", port=port))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 30
            while True:
                with (
                    contextlib.suppress(urllib.error.URLError, ConnectionError),
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2),
                ):
                    break
                assert process.poll() is None, (folder / "registry.log").read_text()
                assert time.monotonic() < deadline, "the registry does not answer"
                time.sleep(0.05)
            yield f"localhost:{port}"
        finally:
            process.kill()
            process.wait()
