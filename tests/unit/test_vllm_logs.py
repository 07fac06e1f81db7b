"""Following a growing log, and the lines that taint a rep."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from imagebisect.vllm import loglines, logmarks
from imagebisect.vllm.logtail import LogTail

RECORDED = Path(__file__).parent.parent / "fixtures"


def test_only_new_complete_lines_come(tmp_path):
    """A line that is still being written comes once it has its end."""
    path = tmp_path / "server.log"
    tail = LogTail(path)
    assert tail.new_lines() == []

    path.write_bytes(b"one\ntw")
    assert tail.new_lines() == ["one"]
    with path.open("ab") as stream:
        stream.write(b"o\r\n\xff\n")
    assert tail.new_lines() == ["two", "�"]
    assert tail.new_lines() == []
    assert tail.last_line == "�"


def test_a_tail_from_the_end_skips_what_was_there(tmp_path):
    """A scenario looks at what happens during it."""
    path = tmp_path / "server.log"
    path.write_text("old\n")
    tail = LogTail(path, from_end=True)
    with path.open("a") as stream:
        stream.write("new\n")

    assert tail.new_lines() == ["new"]


def test_a_log_that_was_replaced_is_read_anew(tmp_path):
    """Shorter than before: another file."""
    path = tmp_path / "server.log"
    path.write_text("a long first line\n")
    tail = LogTail(path)
    tail.new_lines()
    path.write_text("b\n")

    assert tail.new_lines() == ["b"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=20))
def test_a_tail_loses_nothing(tmp_path_factory, pieces):
    """However the writes are cut, the lines are those of the whole."""
    path = tmp_path_factory.mktemp("log") / "server.log"
    path.touch()
    tail = LogTail(path)
    seen = []
    for piece in pieces:
        with path.open("ab") as stream:
            stream.write(piece)
        seen += tail.new_lines()

    whole = b"".join(pieces).split(b"\n")[:-1]
    assert seen == [line.decode(errors="replace").rstrip("\r") for line in whole]


def test_compilation_and_fallbacks_are_marks():
    """The recorded boot compiled two kernels on its first requests."""
    lines = (RECORDED / "vllm-0.26.0-h200" / "boot-and-prefill-ok.log").read_text().split("\n")
    flashinfer = (
        "2026-07-06 23:20:47,786 - WARNING - autotuner.py:1147 - flashinfer.jit: [AutoTuner]: No tuned config covers "
        "fp8_gemm input_shapes=((1, 2)); falling back to runner=CutlassFp8GemmRunner tactic=-1."
    )

    assert logmarks.marks(lines) == (
        "JIT compilation: _compute_slot_mapping_kernel",
        "JIT compilation: batch_memcpy_kernel",
    )
    assert logmarks.marks([flashinfer]) == ("autotuner fallback: fp8_gemm",)
    assert (
        logmarks.marks(
            ["Kernel JIT monitor activated; monitored JIT compilations during inference will use mode=warn."]
        )
        == ()
    )


def test_lines_lose_their_dress():
    """Process, level and text of each form that a log has."""
    seen = [
        loglines.undress(raw)
        for raw in (
            "(EngineCore_DP0 pid=5) ERROR 11-30 23:25:05 [core.py:1] x",
            "(APIServer pid=1) INFO:     Started",
            "2026-07-06 23:20:47,786 - WARNING - autotuner.py:1147 - y",
            "[rank0]:[W1130 23:15:19.29 ProcessGroupNCCL.cpp:1575] z",
            "plain",
        )
    ]

    assert [(line.process, line.level, line.text) for line in seen] == [
        ("EngineCore_DP0", "ERROR", "x"),
        ("APIServer", "INFO", "Started"),
        ("", "WARNING", "y"),
        ("", "WARNING", "z"),
        ("", "", "plain"),
    ]
