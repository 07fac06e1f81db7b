"""Who owns what: a leftover is one only when its owner is known to be dead."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from imagebisect.runtime.groups import Owner, start_ticks


def test_this_process_is_alive_and_survives_being_written_down():
    """What a label says can be read back."""
    owner = Owner.this()

    assert owner.alive
    assert Owner.parse(str(owner)) == owner


def test_a_dead_process_and_a_reused_id_are_dead():
    """An id that was given to somebody else is not the owner."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()

    assert not replace(Owner.this(), pid=child.pid).alive
    assert not replace(Owner.this(), ticks=(start_ticks(os.getpid()) or 0) + 1).alive


def test_another_boot_is_dead_and_another_pid_namespace_is_left_alone():
    """After a reboot nothing lives; what a harness in a container owns cannot be judged from here."""
    owner = Owner.this()
    _, _, namespace = owner.boot.partition("/")

    assert not replace(owner, boot=f"another/{namespace}").alive
    assert replace(owner, pid=1 << 22, boot=owner.boot.partition("/")[0] + "/pid:[1]").alive


def test_nonsense_is_nobody():
    """A label that we did not write names no owner."""
    assert Owner.parse("") is None
    assert Owner.parse("x:y:z") is None
