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


def test_a_log_that_another_file_took_the_place_of_is_read_anew(tmp_path):
    """Rotated: the name is the same and the new file is longer than what was read of the old one."""
    path = tmp_path / "server.log"
    path.write_text("old\n")
    tail = LogTail(path)
    tail.new_lines()
    (tmp_path / "new").write_text("a first line of the new file\n")
    (tmp_path / "new").replace(path)

    assert tail.new_lines() == ["a first line of the new file"]


def test_an_endless_line_is_cut_and_the_next_one_is_whole(tmp_path):
    """A line longer than any vLLM writes costs no memory and hides nothing that comes after it."""
    path = tmp_path / "server.log"
    path.write_bytes(b"x" * (3 << 20) + b"\nnext\n")
    tail = LogTail(path)
    seen = [line for _ in range(8) for line in tail.new_lines()]

    assert [len(line) for line in seen] == [loglines.LONGEST_LINE_BYTES, 4]
    assert tail.last_line == "next"


def test_a_line_that_another_process_wrote_into_is_taken_apart():
    """An error that landed in the middle of an access line is still an error, and of its own process."""
    seen = loglines.pieces(
        "(APIServer pid=1) INFO:     127.0.0.1:1 - (Worker_TP1 pid=7) ERROR 11-30 23:57:09 [a.py:1] ValueError: x"
    )

    assert [(line.process, line.is_quiet, line.text) for line in seen] == [
        ("APIServer", False, "127.0.0.1:1 - "),
        ("Worker_TP1", False, "ValueError: x"),
    ]
    whole = loglines.pieces("(Worker_TP1 pid=7) ERROR 11-30 23:57:09 [a.py:1] pid=3 told (x pid= y) ERROR")
    assert len(whole) == 1


def test_only_wanted_lines_come_and_the_last(tmp_path):
    """Lines that hold none of the words are left out, but for those right after one and the log's end."""
    path = tmp_path / "server.log"
    lines = [f"line {i}" for i in range(20_000)]
    lines[9000] = "an error"
    path.write_text("\n".join(lines) + "\n\n")

    seen = [(line.number, line.text) for line in loglines.read(path, wanted=(b"error",))]

    assert seen == [(9001, "an error"), *((n, f"line {n - 1}") for n in (9002, 9003, 9004)), (20_000, "line 19999")]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(["", "x", "error", " ", "a\rerror\rb", "\r", "y" * 70000]), max_size=30), st.booleans())
def test_what_is_wanted_is_found_wherever_it_lies(tmp_path_factory, lines, ended):
    """Whatever is left out in between, no wanted line is lost and none gets another's number."""
    path = tmp_path_factory.mktemp("log") / "server.log"
    path.write_text("\n".join(lines) + ("\n" if ended else ""), newline="")
    every = [(line.number, line.text) for line in loglines.read(path) if "error" in line.text]

    assert [
        (n, t)
        for n, t in ((line.number, line.text) for line in loglines.read(path, wanted=(b"error",)))
        if "error" in t
    ] == every


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
            "[rank1]: ValueError: v",
            "plain",
        )
    ]

    assert [(line.process, line.level, line.text) for line in seen] == [
        ("EngineCore_DP0", "ERROR", "x"),
        ("APIServer", "INFO", "Started"),
        ("", "WARNING", "y"),
        ("rank0", "WARNING", "z"),
        ("rank1", "", "ValueError: v"),
        ("", "", "plain"),
    ]
