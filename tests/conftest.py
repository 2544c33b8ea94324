"""What all tests share."""

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from _pytest.unraisableexception import gc_collect_iterations_key
from helpers.repository.sources import ROOT
from helpers.servers import compile_cache, tester_reports
from helpers.servers.costs import Costs
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree
from helpers.servers.vulkan import Vulkan
from hypothesis import settings

from pcp.runtime.cage import cage

LARGE = 3 << 30
"""Bytes of a process of tests from which on JAX forgets what it has compiled."""

GARBAGE = 20_000, 10, 10
"""When Python looks for garbage: importing all tests, it would look 2,000 times."""

DRAWN_FOR = ("pcp", "runtime", "training")
"""The rooms whose formats and protocols Hypothesis draws for."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--costs`, or `--costs=FILE`."""
    text = "say what each file of tests costs, in full in a file if one is named"
    parser.addoption("--costs", nargs="?", const="-", metavar="FILE", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """A program that was compiled is not compiled again, in this run or the next."""
    gc.set_threshold(*GARBAGE)
    config.stash[gc_collect_iterations_key] = 1  # of millions of objects at the end
    # An example has no limit of time: a busy machine takes long for each.
    settings.register_profile("patient", deadline=None)
    settings.load_profile("patient")
    if file := config.getoption("--costs"):
        if file.endswith(".py"):  # `--costs test_x.py` would write over the test
            raise pytest.UsageError(f"--costs {file}: a test; say --costs behind it")
        config.pluginmanager.register(Costs(file))
    else:
        tester_reports.say_less(config)
    folder = config.rootpath / ".pytest_cache" / "pcp"
    slow_too = config.getoption("markexpr") != "not slow"
    if not hasattr(config, "workerinput"):
        compile_cache.tidy(folder, verify=slow_too)
    compile_cache.install(folder, verify=slow_too)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems() -> None:
    """Hypothesis looks for constants to draw in the rooms that it draws for.

    Else it parses every module that is imported, our tests too: five seconds a process.
    """
    asked = "hypothesis.internal.conjecture.providers.is_local_module_file"
    pytest.MonkeyPatch().setattr(asked, _drawn_for, raising=False)


def _drawn_for(path: str) -> bool:
    return _is_drawn_for(os.path.dirname(path))


@cache
def _is_drawn_for(folder: str) -> bool:
    place = Path(folder).resolve()  # pcp's rooms are links
    return any(place.is_relative_to(ROOT / room) for room in DRAWN_FOR)


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """The StableHLO reference interpreter."""
    with Interpreter() as running:
        yield running


@pytest.fixture(scope="session")
def iree() -> Iterator[Iree]:
    """IREE on this processor; `iree.on(target)` for another target."""
    with Iree() as running:
        yield running


@pytest.fixture(scope="session")
def vulkan() -> Iterator[Vulkan]:
    """A Vulkan device, or the test is skipped."""
    with Vulkan() as running:
        if why := running.missing():
            pytest.skip(why)
        yield running


@pytest.fixture(autouse=True, scope="session")
def never_caged() -> Iterator[None]:
    """A cage holds for a process and for good: tests have others for that."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cage, "enter", _no_cage)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """What killed processes wrote is there without; a power cut no test makes.

    A full queue of writes held one call for longer than a run under test may take.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", os.fstat)  # a handle that is none stays an error
        yield


def _no_cage(**_: object) -> NoReturn:
    pytest.exit("a test would cage pytest: give the worker --cage off", returncode=3)


@pytest.fixture(autouse=True, scope="module")
def kept_for_good() -> None:
    """What the modules before left behind is kept, and looked through no more.

    Oracles keep what they compiled: half a million objects, and each collection of
    garbage stops all threads for a second. Workers that later tests run in threads were
    taken for dead meanwhile. What JAX keeps grows to several GiB, so it goes at times.
    """
    if "jax" in sys.modules and psutil.Process().memory_info().rss > LARGE:
        gc.unfreeze()
        sys.modules["jax"].clear_caches()
    gc.collect()  # the last test of the module before has let go of all by now
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end all is let go of, as without us."""
    gc.unfreeze()
