"""The words of the project as values: builds, suites, measurements, results.

Everything here is frozen, keyword-only, free of effects, and round-trips through
JSON (pydantic's TypeAdapter reads these dataclasses). Units are in the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from imagebisect.scenario import Metric, Scenario

JsonValue = Any

# --------------------------------------------------------------------------- enums


class BuildRole(StrEnum):
    """Which end of the range a build is; the first and the last entry unless said."""

    GOOD = "good"
    BAD = "bad"


class TargetRole(StrEnum):
    """`bisect` targets are searched; `watch` targets cost no start of their own."""

    BISECT = "bisect"
    WATCH = "watch"


class Worse(StrEnum):
    """The direction of a metric that is a complaint."""

    LOWER = "lower"
    HIGHER = "higher"


class Verdict(StrEnum):
    """One build's judgement for one target; `other` agrees with neither level."""

    GOOD = "good"
    BAD = "bad"
    UNCLEAR = "unclear"
    SKIP = "skip"
    OTHER = "other"


class Status(StrEnum):
    """How a target ends (design: section 2)."""

    CONFIRMED = "confirmed"
    NARROWED = "narrowed"
    INCONSISTENT = "inconsistent"
    NOT_REPRODUCED = "not_reproduced"
    IMPROVED = "improved"
    INCONCLUSIVE = "inconclusive"
    UNTESTABLE_ANCHOR = "untestable_anchor"


class Phase(StrEnum):
    """Where in a start something happened."""

    PULL = "pull"
    START = "start"
    BOOT = "boot"
    REQUEST = "request"
    STOP = "stop"


# ---------------------------------------------------------------- what a user writes


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place in a file; `str()` is `file:line:column`, counted from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A container image. Only a full `digest` may be started; the rest helps to find it."""

    kind: Literal["image"] = "image"
    repository: str
    digest: str | None = None
    tag: str | None = None
    digest_prefix: str | None = None

    @property
    def reference(self) -> str:
        """The `repository@sha256:...` that docker starts; ValueError when unpinned."""
        if self.digest is None:
            msg = f"{self.repository} is not pinned to a digest"
            raise ValueError(msg)
        return f"{self.repository}@{self.digest}"


@dataclass(frozen=True, kw_only=True)
class VenvSource:
    """A Python environment with its own `bin/vllm`."""

    kind: Literal["venv"] = "venv"
    path: str


@dataclass(frozen=True, kw_only=True)
class SimulatedSource:
    """A stand-in server with this profile (`imagebisect.simulator.profile`)."""

    kind: Literal["simulated"] = "simulated"
    profile: Mapping[str, JsonValue]


Source = ImageSource | VenvSource | SimulatedSource


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """A listed deviation of one build: an argument replaced, or dropped (`to` None)."""

    from_arg: str
    to_arg: str | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Extra env and arguments that are part of a build's identity."""

    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Build:
    """One entry of the builds file. `index` counts from 0, oldest first."""

    name: str
    index: int
    source: Source
    role: BuildRole | None = None
    line: str = "main"
    commit: str | None = None
    created: str | None = None
    same_as: str | None = None
    rewrites: tuple[Rewrite, ...] = ()
    overrides: Overrides | None = None
    location: Location | None = None


@dataclass(frozen=True, kw_only=True)
class LinearAttention:
    """The sizes of a linear-attention layer's value side: heads over all cards, their width, bytes of a number."""

    value_heads: int
    value_head_dim: int
    dtype_bytes: int = 2


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The model: a folder (`path`, seen by the server as `at`), or a repo in a Hugging Face cache.

    `reference` is what `${model}` in args stands for inside a container.
    """

    path: str
    at: str
    repo: str | None = None
    revision: str | None = None
    offline: bool = True
    linear_attention: LinearAttention | None = None

    @property
    def reference(self) -> str:
        """What the server is told to load, inside a container."""
        return self.repo or self.at


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A bind mount: host path, path in the container, read-only unless said."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, kw_only=True)
class Server:
    """A serving configuration. `args` keep their order and spelling exactly."""

    name: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    gpus: tuple[int, ...] | Literal["all", "none"] = "none"
    ipc: str | None = None
    shm_size: str | None = None
    ulimits: Mapping[str, int] = field(default_factory=dict)
    memory: str | None = None
    cpuset: str | None = None
    mounts: tuple[Mount, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    network: str | None = None
    docker_options: Mapping[str, JsonValue] = field(default_factory=dict)
    endpoint: Literal["completions", "chat"] = "completions"
    cache: Literal["fresh", "per-build"] = "fresh"
    container_port: int = 8000

    @property
    def tensor_parallel_size(self) -> int:
        """Cards one instance spans, read from the args; 1 where they do not say."""
        return self.whole_number("--tensor-parallel-size", "-tp") or 1

    def value_of(self, *flags: str) -> str | None:
        """The value of a flag (the last one given counts, as argparse has it); None where the args do not name it."""
        found = None
        for position, arg in enumerate(self.args):
            name, equals, value = arg.partition("=")
            if name in flags:
                found = value if equals else (self.args[position + 1] if position + 1 < len(self.args) else "")
        return found

    def whole_number(self, *flags: str) -> int | None:
        """A flag's value as a number; None where the args do not name it or it is none."""
        text = self.value_of(*flags)
        return int(text) if text is not None and text.isascii() and text.isdigit() else None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A server of its own that differs from the server `of` by what `changes` says; tried by `probe --variants`."""

    of: str
    server: Server
    changes: tuple[str, ...]


# -------------------------------------------------------------------------- complaints


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The smallest change that matters: a share of the good value (0.10), or an amount in the metric's unit."""

    value: float
    relative: bool

    def amount(self, good_value: float) -> float:
        """The floor in the metric's own unit, given the good end's value."""
        return abs(good_value) * self.value if self.relative else self.value


@dataclass(frozen=True, kw_only=True)
class Target:
    """One complaint. `metric` is `<scenario>.<metric name>`; `claimed` is how large somebody says the change is."""

    name: str
    scenario: str
    metric: Metric
    worse: Worse
    floor: Floor
    role: TargetRole
    claimed: Floor | None = None

    @property
    def metric_path(self) -> str:
        """The metric as the suite spells it, e.g. `long.c1.prefill_tok_s`."""
        return f"{self.scenario}.{self.metric.name}"


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds each phase may take. `request_s` None: 3x the bad anchor's time, once known."""

    pull_idle_s: float = 300.0
    boot_s: float = 1800.0
    request_s: float | None = None
    stop_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The model, the servers, the scenarios, the targets."""

    name: str
    file: str
    model: ModelSpec | None
    servers: tuple[Server, ...]
    scenarios: tuple[Scenario, ...]
    targets: tuple[Target, ...]
    deadlines: Deadlines = Deadlines()
    seed: int = 1
    gpu_probe: Literal["auto", "nvml", "nvidia-smi", "exec", "none"] = "auto"
    deltas: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()

    def server(self, name: str) -> Server:
        """The server of that name; KeyError when there is none."""
        return next(server for server in self.servers if server.name == name)

    def scenario(self, name: str) -> Scenario:
        """The scenario of that name; KeyError when there is none."""
        return next(scenario for scenario in self.scenarios if scenario.name == name)

    def target(self, name: str) -> Target:
        """The target of that name."""
        return next(target for target in self.targets if target.name == name)

    def server_of(self, target: Target) -> str:
        """The server that a target's scenario runs on."""
        return self.scenario(target.scenario).on


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is about: the builds, oldest first, and the suite. `good` and `bad` are indices.

    `good < bad`, but where a fix is looked for the bad end is the older one.
    """

    builds: tuple[Build, ...]
    suite: Suite
    good: int
    bad: int
    images_file: str


# --------------------------------------------------------------------- what happened


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A typed failure: root cause first, wrappers named in `masked_by`.

    `details` holds numbers with units in their names (`asked_mib`, `free_mib`, `gpu`).
    """

    cause: str
    phase: Phase
    message: str
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    masked_by: str | None = None
    log_line: int | None = None
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rep:
    """One timed request round. `seconds` is the makespan on the client's clock.

    Server figures are deltas of /metrics around the round, None where the build has no such metric.
    `invalid` says which instrument evidence spoiled the rep; a value never does. Clock, temperature and power are the
    worst card's, to explain an outlier.
    """

    index: int
    concurrency: int
    warmup: bool
    prompt_tokens: int
    output_tokens: int
    seconds: float
    request_s: tuple[float, ...]
    usage_prompt_tokens: tuple[int | None, ...] = ()
    usage_completion_tokens: tuple[int | None, ...] = ()
    server_prefill_s: float | None = None
    server_queue_s: float | None = None
    server_ttft_s: float | None = None
    server_e2e_s: float | None = None
    cache_hit_tokens: int | None = None
    marks: tuple[str, ...] = ()
    invalid: str | None = None
    value: float | None = None
    min_free_mib: float | None = None
    min_sm_clock_mhz: float | None = None
    max_temperature_c: float | None = None
    max_power_w: float | None = None


@dataclass(frozen=True, kw_only=True)
class CardMemory:
    """One card at one moment, in MiB. `processes` are (pid, used MiB) as the driver lists them."""

    index: int
    uuid: str
    name: str
    total_mib: float
    free_mib: float
    processes: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The reps of one scenario in one start. `metrics` holds what could be measured, by metric name.

    A failure may stand beside metrics measured before it.
    """

    scenario: str
    metrics: Mapping[str, float]
    reps: tuple[Rep, ...] = ()
    samples: Mapping[str, JsonValue] = field(default_factory=dict)
    failure: Failure | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A start as it will be run. `argv` is paste-ready; secrets appear by name only.

    `canonical` is the form in which all starts of one server must be equal: image or environment path,
    container name, labels, host port, cache volume and listed rewrites/overrides are taken out.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[str, ...]
    canonical: Mapping[str, JsonValue]
    canonical_sha256: str


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a build is once present: `id` is the config digest, or a fingerprint for other sources."""

    id: str
    digest: str | None = None
    index_digest: str | None = None
    revision: str | None = None
    version: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    pulled_bytes: int = 0


# -------------------------------------------------------------------------- results


@dataclass(frozen=True, kw_only=True)
class LevelSummary:
    """One build's values of one target: the value of each start, and what they say together."""

    build: int
    values: tuple[float, ...]
    value: float | None
    verdict: Verdict
    causes: tuple[str, ...] = ()
    marked: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """A change of verdict between two neighbours that were measured (build indices); the change is signed as measured."""

    last: int
    first: int
    before: Verdict
    after: Verdict
    suspects: tuple[int, ...]
    change_percent: float | None = None


@dataclass(frozen=True, kw_only=True)
class TargetResult:
    """Where one target stands; `status` None while it is still open. Builds are indices, oldest first.

    `last_good` and `first_bad` are the two sides of the step; where a fix was looked for (`find`), the good side is the
    newer one. `interval_percent` is the 95 % interval of `change_percent`.
    """

    target: str
    status: Status | None
    reason: str | None
    sentence: str
    last_good: int | None
    first_bad: int | None
    suspects: tuple[int, ...]
    untestable: tuple[int, ...]
    steps: tuple[Step, ...]
    builds: tuple[LevelSummary, ...]
    good_value: float | None
    bad_value: float | None
    change_percent: float | None
    spread_percent: float | None
    good_rate: float | None = None
    bad_rate: float | None = None
    anchor_good: float | None = None
    anchor_bad: float | None = None
    threshold: float | None = None
    confidence: float | None = None
    interval_percent: tuple[float, float] | None = None
    find: Literal["regression", "fix"] = "regression"
