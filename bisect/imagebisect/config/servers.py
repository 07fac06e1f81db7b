"""A suite's servers, and whether what is done to them fits them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from imagebisect.config.problems import Problems
from imagebisect.config.schema import ServerEntry
from imagebisect.config.words import size, values_of
from imagebisect.config.yaml import PathIn
from imagebisect.domain import Mount, Server
from imagebisect.scenario import Command, Decode, Growth, IdleMemory, Ladder, OomProbe, Prefill, Scenario, Startup
from imagebisect.secrets import secret_names

MAX_MODEL_LEN = "--max-model-len"
_OWN_FLAGS = ("--host", "--port", "--uds")
_OWN_OPTIONS = ("detach", "remove", "auto_remove", "ports", "name", "labels", "tty", "image", "command")


def read_server(
    name: str,
    base: ServerEntry,
    entry: ServerEntry,
    problems: Problems,
    *,
    add_args: tuple[str, ...],
    envs: Mapping[str, str],
) -> Server:
    """A server: its own keys over those of `base`; `args+` of both and the overlays appended, env merged."""
    place: PathIn = ("servers", name)
    given = {**base.model_dump(exclude_unset=True), **entry.model_dump(exclude_unset=True)}
    args = (*(given.get("args") or ()), *base.args_added, *entry.args_added, *add_args)
    for position, arg in enumerate(args):
        if not arg.strip():
            problems.add((*place, "args"), f"argument {position + 1} is empty")
        elif arg.partition("=")[0] in _OWN_FLAGS:
            problems.add((*place, "args"), f"{arg.partition('=')[0]} is set by bisect for each start; remove it")
    for key, owner in ((place, entry), (("base",), base)):
        for secret in secret_names(owner.env):
            problems.add((*key, "env", secret), "looks like a secret: pass it by name with `pass_env`, never by value")
    for secret in secret_names(envs):
        problems.add(place, f"--env {secret}=... looks like a secret: pass it by name with `pass_env`, never by value")
    mounts = entry.mounts if entry.mounts is not None else (base.mounts or [])
    options = given.get("docker") or {}
    for option in options:
        if option in _OWN_OPTIONS:
            problems.add((*place, "docker", option), "is set by bisect for each start; remove it")
    gpus = given.get("gpus", "none")
    server = Server(
        name=name,
        args=args,
        env={**base.env, **entry.env, **envs},
        pass_env=tuple(given.get("pass_env") or ()),
        gpus=tuple(gpus) if isinstance(gpus, list) else gpus or "none",
        ipc=given.get("ipc"),
        shm_size=given.get("shm_size"),
        ulimits=given.get("ulimits") or {},
        memory=given.get("memory"),
        cpuset=given.get("cpuset"),
        mounts=tuple(
            Mount(source=str(Path(m.source).expanduser().resolve()), target=m.target, read_only=m.read_only)
            for m in mounts
        ),
        entrypoint=tuple(given["entrypoint"]) if given.get("entrypoint") else None,
        network=given.get("network"),
        docker_options=options,
        endpoint=given.get("endpoint") or "completions",
        cache=given.get("cache") or "fresh",
        container_port=given.get("container_port") or 8000,
    )
    wrong = wrong_gpus(server, args_known=not args_touched(name, problems))
    if wrong is not None and not problems.touched((*place, "gpus"), ("base", "gpus")):
        problems.add((*(place if entry.gpus is not None else ("base",)), "gpus"), wrong)
    return server


def args_touched(server: str, problems: Problems) -> bool:
    """Whether a server's args have a word that cannot be used, so that nothing follows from them."""
    return problems.touched(*((*owner, key) for owner in (("base",), ("servers", server)) for key in ("args", "args+")))


def wrong_gpus(server: Server, *, args_known: bool = True) -> str | None:
    """What is wrong with a server's cards: named twice, or too few for the tensor-parallel size; None if nothing is."""
    if not isinstance(server.gpus, tuple):
        return None
    if len(set(server.gpus)) != len(server.gpus) or not server.gpus:
        return f"expected different card numbers, found {list(server.gpus)}"
    if args_known and len(server.gpus) < server.tensor_parallel_size:
        cards = "1 card is" if len(server.gpus) == 1 else f"{len(server.gpus)} cards are"
        return f"{cards} too few for --tensor-parallel-size={server.tensor_parallel_size}"
    return None


def does_not_fit(scenario: Scenario, server: Server) -> str | None:
    """Why the longest request of a scenario is refused by this server's `--max-model-len`; None if it is not."""
    given = values_of(server.args, MAX_MODEL_LEN)
    limit = size(given[-1]) if given else None
    if limit is None:
        return None
    match scenario:
        case Prefill():
            prompt, output = scenario.prompt_tokens, 1
        case Ladder():
            prompt, output = max(scenario.prompt_tokens), 1
        case OomProbe():
            prompt, output = max(tokens for tokens, _ in scenario.ladder), 1
        case Decode() | Growth():
            prompt, output = scenario.prompt_tokens, scenario.output_tokens
        case IdleMemory() | Startup() | Command():
            return None
    if prompt + output <= limit:
        return None
    outputs = f"{output} output token{'' if output == 1 else 's'}"
    return f"{prompt} prompt tokens and {outputs} do not fit {MAX_MODEL_LEN}={limit} of server {server.name}"


def check_lengths(scenarios: tuple[Scenario, ...], servers: tuple[Server, ...], problems: Problems) -> None:
    """Note every scenario with a prompt that its server would refuse."""
    for scenario in scenarios:
        server = next((server for server in servers if server.name == scenario.on), None)
        place: PathIn = ("scenarios", scenario.name)
        lengths = tuple((*place, key) for key in ("prompt_tokens", "output_tokens", "ladder"))
        if server is None or args_touched(server.name, problems) or problems.touched(*lengths):
            continue
        why = does_not_fit(scenario, server)
        if why is not None:
            problems.add((*place, "ladder" if isinstance(scenario, OomProbe) else "prompt_tokens"), why)
