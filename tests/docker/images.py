"""Stand-in images for the container tests: made from the running interpreter, pushed, addressed by digest.

Nothing is downloaded: the interpreter, the libraries it links to and the standard library make the base.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import imagebisect

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = f"/usr/lib/{VERSION}"
_LEFT_OUT = {
    "test",
    "tests",
    "site-packages",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "__pycache__",
}

SMI = """#!/usr/bin/python3
import sys
from imagebisect.simulator.__main__ import main
sys.argv[1:1] = ["nvidia-smi", "--profile", "/etc/standin/profile.json"]
sys.exit(main())
"""

DOCKERFILE = f"""
FROM {{base}}
COPY imagebisect {LIBRARY}/imagebisect
COPY nvidia-smi /usr/bin/nvidia-smi
COPY profile.json /etc/standin/profile.json
LABEL org.opencontainers.image.revision={{revision}} org.opencontainers.image.version={{version}}
ENTRYPOINT ["/usr/bin/python3", "-m", "imagebisect.simulator", "serve", "--profile", "/etc/standin/profile.json"]
"""


def _linked(files: Iterable[Path]) -> set[Path]:
    """The shared libraries, and the loader, that some files link to."""
    found: set[Path] = set()
    for file in files:
        listed = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False).stdout
        for word in listed.split():
            if word.startswith("/"):
                found.add(Path(word))
    return found


def _base_tar() -> bytes:
    """A root file system with an interpreter at /usr/bin/python3 and nothing else: no shell, no packages."""
    program = Path(sys.executable).resolve()
    stdlib = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}))
    files = [
        path
        for path in sorted(stdlib.rglob("*"))
        if path.is_file() and not _LEFT_OUT & set(path.relative_to(stdlib).parts)
    ]
    libraries = _linked([program, *(path for path in files if path.suffix == ".so")])
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(program, "usr/bin/python3")
        for path in files:
            tar.add(path, f"{LIBRARY[1:]}/{path.relative_to(stdlib)}")
        for path in sorted(libraries):
            tar.add(path.resolve(), str(path)[1:])
        for folder in ("tmp", "root", "etc", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
    return buffer.getvalue()


def base_image(client: docker.DockerClient) -> str:
    """The base image's id, imported once for each interpreter."""
    tag = f"bisect-test-base:{hashlib.sha256(sys.version.encode()).hexdigest()[:12]}"
    try:
        return str(client.images.get(tag).id)
    except docker.errors.ImageNotFound:
        repository, _, name = tag.partition(":")
        client.api.import_image_from_data(_base_tar(), repository=repository, tag=name)
        return str(client.images.get(tag).id)


def _context(profile: Mapping[str, Any], base: str) -> io.BytesIO:
    """A build context: the package's stand-in part, the profile, a Dockerfile. Times are fixed, so layers are shared."""
    package = Path(imagebisect.__file__).parent
    contents: dict[str, bytes] = {
        "profile.json": json.dumps(dict(profile), sort_keys=True).encode(),
        "nvidia-smi": SMI.encode(),
        "imagebisect/__init__.py": (package / "__init__.py").read_bytes(),
    }
    for path in sorted((package / "simulator").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and "demo" not in path.parts:
            contents[f"imagebisect/{path.relative_to(package)}"] = path.read_bytes()
    revision = hashlib.sha1(contents["profile.json"], usedforsecurity=False).hexdigest()
    contents["Dockerfile"] = DOCKERFILE.format(
        base=base, revision=revision, version=profile.get("version", "0.0.0")
    ).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if name == "nvidia-smi" else 0o644
            tar.addfile(entry, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def build_images(client: docker.DockerClient, registry: str, profiles: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Build, push and forget one image a profile; `registry/standin@sha256:...` of each, to be pulled."""
    base = base_image(client)
    references = []
    for number, profile in enumerate(profiles):
        image, _ = client.images.build(fileobj=_context(profile, base), custom_context=True, rm=True)
        content = hashlib.sha256(json.dumps(dict(profile), sort_keys=True).encode()).hexdigest()[:12]
        tag = f"n{number}-{content}"
        image.tag(f"{registry}/standin", tag)
        answer = [json.loads(line) for line in client.images.push(f"{registry}/standin", tag=tag).splitlines()]
        errors = [line["error"] for line in answer if "error" in line]
        assert not errors, errors
        digest = next(line["aux"]["Digest"] for line in answer if "aux" in line)
        references.append(f"{registry}/standin@{digest}")
    for reference in references:
        for image in client.images.list(filters={"reference": f"{registry}/standin"}):
            client.images.remove(image.id, force=True)
        assert reference not in {d for i in client.images.list() for d in i.attrs["RepoDigests"] or ()}
    return tuple(references)
