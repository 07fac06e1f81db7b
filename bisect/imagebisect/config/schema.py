"""The two files as pydantic sees them; the JSON Schemas for editors come from here."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from imagebisect.config.problems import as_found
from imagebisect.domain import BuildRole, TargetRole, Worse

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def seconds(value: Any) -> float:
    """Read `20m`, `90s`, `50ms`, `2h` or a number of seconds; ValueError for anything else or below zero."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf"):
        return float(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", value) if isinstance(value, str) else None
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"expected a time such as 90s, 20m or 2h, found {value!r}")
    return float(match[1]) * _UNITS[match[2]]


def not_bool(value: Any) -> Any:
    """Refuse true/false where text is meant: YAML's `yes` is a classic."""
    if isinstance(value, bool):
        raise ValueError(f"expected text, found {str(value).lower()} (put it in quotes)")
    return value


def whole(value: Any) -> Any:
    """Refuse true/false where a number is meant."""
    if isinstance(value, bool):
        raise ValueError(f"expected a whole number, found {as_found(value)}")
    return value


def cards(value: Any) -> Any:
    """Refuse what is neither a list nor a word of `gpus`."""
    if isinstance(value, list) or value in (None, "all", "none"):
        return value
    raise ValueError(f"expected a list of card numbers, `all` or `none`, found {as_found(value)}")


def rung(value: Any) -> Any:
    """Refuse a rung that is not two things."""
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return value
    said = f"[{', '.join(str(part) for part in value)}]" if isinstance(value, list) else as_found(value)
    raise ValueError(f"expected [prompt tokens, concurrency], found {said}")


def program(value: Any) -> Any:
    """Refuse what is neither a list of words nor a line."""
    if isinstance(value, bool) or value is None or isinstance(value, dict):
        raise ValueError(f"expected a program and its arguments, or a line for `sh -c`, found {as_found(value)}")
    return value


def changed(value: Any) -> Any:
    """Refuse what cannot be a flag's new value; a switch has none."""
    if isinstance(value, bool):
        raise ValueError("a switch has no value: put it into args+ (null drops one)")
    if isinstance(value, list):
        raise ValueError("expected a value, null or {add: an amount}, found a list")
    return value


Text = Annotated[str, BeforeValidator(not_bool), WithJsonSchema({"type": ["string", "number"]})]
Name = Annotated[str, Field(pattern=NAME), BeforeValidator(not_bool)]
Seconds = Annotated[
    float, BeforeValidator(seconds), WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]})
]
Positive = Annotated[
    int,
    Field(gt=0),
    BeforeValidator(whole),
    WithJsonSchema({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"^\$\{"}]}),
]


Gpus = Annotated[
    list[Annotated[int, Field(ge=0), BeforeValidator(whole)]] | Literal["all", "none"], BeforeValidator(cards)
]


class Strict(BaseModel):
    """No unknown keys; numbers may stand for text."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, populate_by_name=True)


# ------------------------------------------------------------------------ images.yaml


class RewriteEntry(Strict):
    """An argument replaced or dropped for one build, with the reason."""

    from_arg: Text = Field(alias="from")
    to_arg: Text | None = Field(default=None, alias="to")
    why: Text


class OverridesEntry(Strict):
    """Env and arguments that make this entry another build than the one it is the same as."""

    env: dict[str, Text] = Field(default_factory=dict)
    args: list[Text] = Field(default_factory=list)


class BuildEntry(Strict):
    """One build: an image by digest, an environment, a simulated server, or the same as another entry."""

    name: Name = Field(examples=["nightly-0817"])
    digest: Text | None = None
    digest_prefix: Text | None = None
    tag: Text | None = None
    repository: Text | None = None
    venv: Text | None = None
    simulated: dict[str, Any] | None = None
    same_as: Text | None = None
    role: BuildRole | None = None
    line: Text = "main"
    commit: Text | None = None
    created: Text | None = None
    rewrite: list[RewriteEntry] = Field(default_factory=list)
    overrides: OverridesEntry | None = None
    note: Text | None = None


class BuildsFile(Strict):
    """images.yaml: the builds, oldest first."""

    schema_version: Literal[1] = Field(alias="schema", examples=[1])
    repository: Text | None = None
    builds: list[BuildEntry]


# ------------------------------------------------------------------------ scenarios/*.yaml


class VarEntry(Strict):
    """A value that the suite leaves to its user: from --set, a vars file, `env`, or `default`."""

    env: Text | None = None
    required: bool = False
    default: Text | None = None
    help: Text | None = None


class HfCacheEntry(Strict):
    """A model inside a Hugging Face cache folder."""

    path: Text
    repo: Text
    revision: Text | None = None
    offline: bool = True


class LinearAttentionEntry(Strict):
    """The sizes of a linear-attention (GDN) layer, where config.json is not at hand or says otherwise."""

    value_heads: Positive
    value_head_dim: Positive
    dtype_bytes: Positive = 2


class ModelEntry(Strict):
    """The model's folder on this host and where the container sees it, or a Hugging Face cache."""

    path: Text | None = None
    at: Text = "/models/m"
    hf_cache: HfCacheEntry | None = None
    linear_attention: LinearAttentionEntry | None = None


class MountEntry(Strict):
    """A folder of the host in the container."""

    source: Text
    target: Text
    read_only: bool = True


class ServerEntry(Strict):
    """A serving configuration; in `servers` its keys replace those of `base`, `args+` appends."""

    args: list[Text] | None = None
    args_added: list[Text] = Field(default_factory=list, alias="args+")
    env: dict[str, Text] = Field(default_factory=dict)
    pass_env: list[Text] | None = None
    gpus: Gpus | None = None
    ipc: Text | None = None
    shm_size: Text | None = None
    ulimits: dict[str, Annotated[int, BeforeValidator(whole)]] | None = None
    memory: Text | None = None
    cpuset: Text | None = None
    mounts: list[MountEntry] | None = None
    entrypoint: list[Text] | None = None
    network: Text | None = None
    docker: dict[str, Any] | None = None
    endpoint: Literal["completions", "chat"] | None = None
    cache: Literal["fresh", "per-build"] | None = None
    container_port: Annotated[int, Field(gt=0, lt=65536), BeforeValidator(whole)] | None = None


class DeadlinesEntry(Strict):
    """How long each phase may take."""

    pull_idle: Seconds = 300.0
    boot: Seconds = 1800.0
    request: Seconds | None = None
    stop: Seconds = 60.0


class IdleMemoryEntry(Strict):
    """Free memory after boot."""

    kind: Literal["idle-memory"]
    on: Text = Field(examples=["plain"])
    samples: Positive = 5
    interval: Seconds = 1.0
    deadline: Seconds | None = None


class PrefillEntry(Strict):
    """Prompts of exactly so many tokens, one output token."""

    kind: Literal["prefill"]
    on: Text = Field(examples=["plain"])
    prompt_tokens: Positive = Field(examples=[16000])
    concurrency: list[Positive] = Field(default_factory=lambda: [1], min_length=1)
    reps: Positive = 3
    deadline: Seconds | None = None


class DecodeEntry(Strict):
    """Short prompts, many output tokens."""

    kind: Literal["decode"]
    on: Text = Field(examples=["plain"])
    prompt_tokens: Positive = 512
    output_tokens: Annotated[int, Field(gt=1), BeforeValidator(whole)] = 256
    concurrency: list[Positive] = Field(default_factory=lambda: [1], min_length=1)
    reps: Positive = 3
    deadline: Seconds | None = None


class OomProbeEntry(Strict):
    """A ladder of [prompt tokens, concurrency] that the server must live through."""

    kind: Literal["oom-probe"]
    on: Text = Field(examples=["plain"])
    ladder: list[Annotated[tuple[Positive, Positive], BeforeValidator(rung)]] = Field(
        min_length=1, examples=[[[16000, 1], [16000, 4]]]
    )
    repeats: Positive = 1
    deadline: Seconds | None = None


class LadderEntry(Strict):
    """Prefill at several lengths in one start."""

    kind: Literal["ladder"]
    on: Text = Field(examples=["plain"])
    prompt_tokens: list[Positive] = Field(min_length=2, examples=[[4000, 16000]])
    concurrency: Positive = 1
    reps: Positive = 2
    deadline: Seconds | None = None


class StartupEntry(Strict):
    """How long the start took, with its parts."""

    kind: Literal["startup"]
    on: Text = Field(examples=["plain"])
    deadline: Seconds | None = None


class GrowthEntry(Strict):
    """Free memory before and after load."""

    kind: Literal["growth"]
    on: Text = Field(examples=["plain"])
    prompt_tokens: Positive = 4096
    output_tokens: Positive = 64
    concurrency: Positive = 1
    rounds: Positive = 10
    samples: Positive = 5
    interval: Seconds = 1.0
    deadline: Seconds | None = None


class PrintsEntry(Strict):
    """The number on the last line that a command prints: what it is called, its unit, how values compare."""

    name: Name
    unit: Text = ""
    compare: Literal["ratio", "level"] = "ratio"
    worse: Literal["lower", "higher"] | None = None


class CommandEntry(Strict):
    """A program of the user's: a list of words, or a line for `sh -c`."""

    kind: Literal["command"]
    on: Text = Field(examples=["plain"])
    run: Annotated[Annotated[list[Text], Field(min_length=1)] | Text, BeforeValidator(program)] = Field(
        examples=["true"]
    )
    prints: PrintsEntry | None = None
    deadline: Seconds = 600.0


AnyScenario = (
    IdleMemoryEntry
    | StartupEntry
    | PrefillEntry
    | LadderEntry
    | DecodeEntry
    | GrowthEntry
    | CommandEntry
    | OomProbeEntry
)
ScenarioEntry = Annotated[AnyScenario, Field(discriminator="kind")]
KINDS: dict[str, type[AnyScenario]] = {
    "idle-memory": IdleMemoryEntry,
    "startup": StartupEntry,
    "prefill": PrefillEntry,
    "ladder": LadderEntry,
    "decode": DecodeEntry,
    "growth": GrowthEntry,
    "command": CommandEntry,
    "oom-probe": OomProbeEntry,
}


class AddedEntry(Strict):
    """An amount added to a flag's number: `{add: -64MiB}`."""

    add: Text


class VariantEntry(Strict):
    """A server with one thing changed, to try on one build; what is not named stays as in `of`."""

    of: Text = Field(examples=["plain"])
    set_args: dict[str, Annotated[AddedEntry | Text | None, BeforeValidator(changed)]] = Field(default_factory=dict)
    args_added: list[Text] = Field(default_factory=list, alias="args+")
    env: dict[str, Text] = Field(default_factory=dict)
    gpus: Gpus | None = None
    memory: Text | None = None
    cpuset: Text | None = None


class TargetEntry(Strict):
    """One complaint: a metric, the direction that is worse, the smallest change that matters."""

    metric: Text = Field(examples=["long.c1.prefill_tok_s"])
    worse: Worse = Field(examples=["lower"])
    floor: Text | None = None
    claimed: Text | None = Field(default=None, examples=["47%"])
    role: TargetRole = TargetRole.BISECT


class SuiteFile(Strict):
    """A file under scenarios/: the model, the servers, the scenarios, the targets."""

    schema_version: Literal[1] = Field(alias="schema", examples=[1])
    vars: dict[str, VarEntry] = Field(default_factory=dict)
    model: ModelEntry | None = None
    base: ServerEntry = Field(default_factory=ServerEntry)
    servers: dict[str, ServerEntry]
    variants: dict[str, VariantEntry] = Field(default_factory=dict)
    scenarios: dict[str, ScenarioEntry]
    targets: dict[str, TargetEntry]
    deadlines: DeadlinesEntry = Field(default_factory=DeadlinesEntry)
    seed: Annotated[int, BeforeValidator(whole)] = 1
    gpu_probe: Literal["auto", "nvml", "nvidia-smi", "exec", "none"] = "auto"
