"""How far a server had come when GPU memory ran out: by the frames that asked for it, else by its progress lines.

Frames and wordings are those of vLLM 0.19 to 0.33. Where they do not tell, there is no stage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from imagebisect.vllm.loglines import LogLine


class Stage(StrEnum):
    """A part of a server's life in which memory may run out."""

    LOAD = "load"
    PROFILING = "profiling"
    KV_FIT = "kv_fit"
    GRAPH_CAPTURE = "graph_capture"
    WARM_UP = "warm_up"
    REQUEST = "request"


SAYS = {
    Stage.LOAD: "while the weights were loaded",
    Stage.PROFILING: "while memory was profiled",
    Stage.KV_FIT: "while the KV cache was laid out",
    Stage.GRAPH_CAPTURE: "while CUDA graphs were captured",
    Stage.WARM_UP: "while it warmed up",
    Stage.REQUEST: "while it served a request",
}
"""Each stage in a sentence."""

_SURE = {
    "load_model": Stage.LOAD,
    "determine_available_memory": Stage.PROFILING,
    "profile_run": Stage.PROFILING,
    "profile_cudagraph_memory": Stage.PROFILING,
    "initialize_kv_cache": Stage.KV_FIT,
    "_allocate_kv_cache_tensors": Stage.KV_FIT,
    "_check_enough_kv_cache_memory": Stage.KV_FIT,
    "capture_model": Stage.GRAPH_CAPTURE,
    "kernel_warmup": Stage.WARM_UP,
    "warmup_kernels": Stage.WARM_UP,
}
"""A function that belongs to one stage; the outermost counts, since profiling captures graphs too."""

_WEAK = {
    "compile_or_warm_up_model": Stage.WARM_UP,
    "_dummy_sampler_run": Stage.WARM_UP,
    "_dummy_pooler_run": Stage.WARM_UP,
    "execute_model": Stage.REQUEST,
    "sample_tokens": Stage.REQUEST,
}
"""Used by more than one stage: counts only where no sure one is seen."""

_PROGRESS = re.compile(
    r"(?P<load>Starting to load model|Loading model from scratch)"
    r"|(?P<loaded>Model loading took)"
    r"|(?P<profiled>Available KV cache memory: |memory for KV Cache as specified)"
    r"|(?P<warm_up>(?:Compile and w|W)arming up |Autotuning process starts)"
    r"|(?P<capture>Capturing (?:[\w-]{1,40} ){0,3}CUDA graphs)"
    r"|(?P<captured>Graph capturing finished)"
    r"|(?P<ready>init engine \()"
)
WORDS = (
    "load model",
    "Loading model",
    "loading took",
    "arming up ",
    "Autotuning process",
    "CUDA graphs",
    "Graph capturing",
    "init engine",
)
"""One of these, or `memory`, is in every line that says how far a boot has come."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """A stage, and whether something that belongs to it alone said so."""

    stage: Stage
    sure: bool


@dataclass(kw_only=True)
class Frames:
    """What the functions of one traceback say, given outermost first."""

    sure: Stage | None = None
    weak: Stage | None = None

    def add(self, function: str) -> None:
        """Take in the next inner frame."""
        if self.sure is None:
            self.sure = _SURE.get(function)
        if self.weak is None:
            self.weak = _WEAK.get(function)

    @property
    def told(self) -> Told | None:
        """The stage that they belong to, if any."""
        if self.sure is not None:
            return Told(stage=self.sure, sure=True)
        return None if self.weak is None else Told(stage=self.weak, sure=False)


@dataclass(kw_only=True)
class Progress:
    """How far each process of a boot has come, from what it logged."""

    most: int = 64
    _words: dict[str, str] = field(default_factory=dict)

    def add(self, line: LogLine) -> None:
        """Take in a line."""
        hit = _PROGRESS.search(line.text)
        if not hit or line.process.startswith("APIServer"):
            return
        word = hit.lastgroup or ""
        if word == "capture" and "loaded" in (
            {self._words.get(line.process)} if line.process else self._words.values()
        ):
            word = "profiled"  # profiling captures graphs as well, and not every rank tells when it is over
        if line.process:
            self._words.pop("", None)
        if line.process in self._words or len(self._words) < self.most:
            self._words[line.process] = word

    def stage(self, process: str) -> Stage | None:
        """Where a process is; one that told nothing is where all others are, if they are at one place.

        Progress bars have no process from 0.33 on; while one is the last that was told, it counts for all.
        """
        last = "" if "" in self._words else process
        words = {self._words[last]} if last in self._words else set(self._words.values())
        if len(words) != 1:
            return None
        return {
            "load": Stage.LOAD,
            "loaded": Stage.PROFILING,
            "warm_up": Stage.WARM_UP,
            "capture": Stage.GRAPH_CAPTURE,
            "captured": Stage.WARM_UP,
        }.get(words.pop())


_FRAME = re.compile(r'^\s*File "(?P<file>[^"]{1,400})", line \d+, in (?P<function>.{1,120})')
_MODEL_CODE = re.compile(r"vllm/(?:model_executor|third_party)/|flash_linear_attention|/fla/|flashinfer/")
_PACKAGES = re.compile(r".*/(?:dist|site)-packages/")
_CHAINED = re.compile(r"(?:The above exception was the direct cause|During handling of the above exception)")


@dataclass(kw_only=True)
class Traceback:
    """The frames being printed by one process: the innermost, and the innermost of model or kernel code.

    `chained`: it tells how the one before it was dealt with. `over`: its exception was printed.
    """

    frame: str = ""
    model_frame: str = ""
    code: str = ""
    frames: Frames = field(default_factory=Frames)
    chained: bool = False
    over: bool = False

    def add(self, text: str) -> bool:
        """Take in its next line; whether that is the one that ends it, the exception's."""
        if _CHAINED.match(text):
            self.chained = True
            return False
        hit = _FRAME.match(text)
        if hit:
            function = hit["function"].strip()
            self.frame = f"{_PACKAGES.sub('', hit['file'])}:{function}"
            self.frames.add(function)
            if _MODEL_CODE.search(hit["file"]):
                self.model_frame = self.frame
            self.code, self.over = "", False
        elif text.startswith(" "):
            if self.frame and not self.code and text.startswith("    "):
                self.code = text.strip()[:200]
        elif text and not self.over:
            self.over = True
            return True
        return False
