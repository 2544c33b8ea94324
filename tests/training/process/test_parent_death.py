"""A child ends with its parent: asked for in time, too late, or not at all."""

import os
import signal
import subprocess
import sys

from helpers.servers.processes import alive
from helpers.worlds.communicators import eventually

from pcp.training.process.parent_death import PARENT, with_parent

_CHILD = """
import os, time
from pcp.training.process.parent_death import PARENT, die_with_parent
die_with_parent()
print(os.getpid(), PARENT in os.environ, flush=True)
time.sleep(60)
"""
_PARENT = """
import os, subprocess, sys, time
from pcp.training.process.parent_death import with_parent
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=with_parent(os.environ))
time.sleep(60)
"""


def test_a_child_ends_with_a_killed_parent() -> None:
    command = [sys.executable, "-c", _PARENT, _CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child, still_said = parent.stdout.readline().split()
            assert still_said == "False", "a child's own children would end at once"
        finally:
            parent.kill()
    eventually(lambda: not alive(int(child)), 10)


def test_a_child_whose_parent_is_gone_already() -> None:
    values = with_parent(os.environ) | {PARENT: str(os.getpid() + 1)}
    child = subprocess.run([sys.executable, "-c", _CHILD], env=values, timeout=60)
    assert child.returncode == -signal.SIGKILL


def test_who_was_not_told_lives_on() -> None:
    values = {name: value for name, value in os.environ.items() if name != PARENT}
    code = _CHILD.replace("time.sleep(60)", "")
    child = subprocess.run([sys.executable, "-c", code], env=values, timeout=60)
    assert child.returncode == 0
