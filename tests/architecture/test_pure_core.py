"""The state machines of pcp touch no socket, file, thread or clock.

Nor does any module that it imports, directly or through others.
"""

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest
from helpers.present import present
from helpers.repository.sources import ROOT, imported, nodes

from pcp import errors
from pcp.runtime.group import membership
from pcp.serving import scheduler
from pcp.training.config import experiment
from pcp.training.coordinator import monitor, training_run
from pcp.training.coordinator.standby import election, leader_lease
from pcp.training.shepherd import shepherd
from pcp.training.wire import messages

OUTSIDE = {
    *("socket", "ssl", "select", "selectors", "asyncio", "signal", "http", "urllib"),
    *("threading", "queue", "concurrent", "multiprocessing", "subprocess"),
    *("os", "io", "pathlib", "shutil", "tempfile", "mmap", "fcntl", "glob"),
    *("time", "datetime", "random", "secrets", "logging"),
}
CALLS = {"open", "print", "input", "exec", "eval"}
CALLED = re.compile(rf"\b({'|'.join(sorted(CALLS))})\(")
FILE_NAMES = {errors.__name__, experiment.__name__}
"""They know paths: to name a file in an error, or to read one for somebody else."""
GIVEN = {election.__name__: {"random"}}
"""What is handed to them: a voter draws its patience from a seeded generator."""


def file_of(module: str) -> Path | None:
    """Where a module of pcp stands; None if it is none."""
    parts = module.split(".")[1:]
    tails = ("/".join(parts) + ".py", "/".join([*parts, "__init__.py"]))
    roots = (ROOT, ROOT / "pcp")
    found = [root / tail for root in roots for tail in tails if parts]
    return next((path for path in found if path.is_file()), None)


def reached(start: str) -> set[str]:
    """The modules of pcp that a module imports, directly or through others."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        module = todo.pop()
        path = file_of(module)
        if module in seen or path is None:
            continue
        seen.add(module)
        todo += [m for m in imported(path.read_text()) if m.startswith("pcp.")]
    # A package of which only modules are imported is on the way to them.
    return {module for module in seen if present(file_of(module)).name != "__init__.py"}


def outside(source: str) -> set[str]:
    """What a source uses that is not its own memory."""
    modules = {module.split(".")[0] for module in imported(source)}
    calls = {
        node.func.id
        for node in (nodes(source) if CALLED.search(source) else ())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return (modules & OUTSIDE) | (calls & CALLS)


def impure(start: str) -> dict[str, set[str]]:
    """What the modules that `start` reaches use of the outside, by module."""
    used = {
        module: outside(present(file_of(module)).read_text())
        for module in reached(start)
    }
    for module in FILE_NAMES & used.keys():
        used[module] -= {"pathlib"}
    for module in GIVEN.keys() & used.keys():
        used[module] -= GIVEN[module]
    return {module: found for module, found in used.items() if found}


def test_the_state_machine_touches_nothing() -> None:
    start = training_run.__name__
    modules = reached(start)
    assert len(modules) > 25, "the test would be vacuous"
    assert {start, messages.__name__, errors.__name__} <= modules
    assert impure(start) == {}


@pytest.mark.parametrize(
    "machine", [scheduler, membership, election, leader_lease, monitor]
)
def test_smaller_machines_touch_nothing(machine: ModuleType) -> None:
    assert len(reached(machine.__name__)) > 1, "the test would be vacuous"
    assert impure(machine.__name__) == {}


def test_the_shell_touches_all_of_it() -> None:
    """The twin: the same look at the shell finds what it owns."""
    found = impure(shepherd.__name__)
    assert "time" in found[shepherd.__name__]
    assert {"socket", "threading"} <= set().union(*found.values())
    assert training_run.__name__ not in found


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from socket import socket",
        "def f():\n    import os.path",
        "from concurrent.futures import Future",
        "if TYPE_CHECKING:\n    from pathlib import Path",
        "x = open('file')",
    ],
)
def test_the_look_bites(source: str) -> None:
    assert outside(source)


def test_what_is_in_memory_alone_is_let_through() -> None:
    source = "import math\nfrom pcp.training import tensors\nx.open()\nreopen()"
    assert not outside(source)
