"""What an interpreter answers about its packages."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from imagebisect.vllm import packages


def test_this_interpreter_lists_its_own_packages():
    """The question runs on a real interpreter and imports nothing of what it lists."""
    done = subprocess.run([sys.executable, "-c", packages.CODE], capture_output=True, text=True, timeout=60, check=True)

    found = packages.parse("a start-up hook talks\n" + done.stdout)
    assert found["packages"]["pytest"]
    assert "torch" not in found


def test_the_ones_that_matter_have_names_of_their_own():
    """Torch, triton, flashinfer, transformers, NCCL, and CUDA as torch was built for it."""
    answer = (
        'IMAGEBISECT {"packages": {"torch": "2.13.0", "triton": "3.7.1", "flashinfer-python": "0.6.17", '
        '"transformers": "5.15.0", "nvidia-nccl-cu13": "2.28.3"}, "torch_cuda": "13.0", "cuda_env": "13.0.1"}'
    )

    found = packages.parse(answer)
    del found["packages"]
    assert found == {
        "torch": "2.13.0",
        "triton": "3.7.1",
        "flashinfer": "0.6.17",
        "transformers": "5.15.0",
        "nccl_package": "2.28.3",
        "cuda": "13.0",
    }


@given(st.text())
def test_any_other_answer_is_no_fact(text):
    """Errors, half answers, nonsense: nothing is claimed."""
    assert packages.parse(text) == {}
    assert packages.parse(f"IMAGEBISECT {{{text}") == {}
    assert packages.parse('IMAGEBISECT {"packages": [1]}') == {}
