"""PyTorch's own tests of `torch.distributed`, on Gloo or with pcp in its place.

    python -m helpers.oracles.torch_own_tests pcp [--only NAME ...] [--files FILE ...]

The tests are those of the wheel (`torch.testing._internal.distributed`): every
collective, groups, DDP and its hooks, among four ranks. `FILE`s are modules of a
checkout of PyTorch (`test/distributed/...`). With pcp every group that a test asks of
Gloo is pcp's. Prints a line a test: "passed", "skipped" or "failed", its name, why.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CLASS = "TestDistBackendWithSpawn"  # what the tests' tables of time limits know


def main() -> int:
    """Run the tests; 0 if none failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("backend", choices=("gloo", "pcp"))
    parser.add_argument("--only", nargs="+", default=[], help="names of tests")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--into", type=Path, help="write the lines to a file instead")
    parser.add_argument("--files", nargs="+", type=Path, default=[])
    options = parser.parse_args()
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(options.ranks)}
    os.environ["TEMP_DIR"] = tempfile.mkdtemp()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    import torch._dynamo

    torch.set_num_threads(1)
    if options.backend == "pcp":
        stand_in_for_gloo()
    fork_ranks()
    suite = unittest.TestSuite(_chosen(options.files, options.only))
    told = suite.run(Told(options.into))
    return len(told.failures) + len(told.errors) > 0


class Told(unittest.TestResult):
    """Says how each test ended; what the ranks print comes in between."""

    def __init__(self, into: Path | None) -> None:
        super().__init__()
        self._into = into

    def _tell(self, how: str, test: unittest.TestCase, why: str = "") -> None:
        lines = why.strip().splitlines()
        told = f"{how} {test.id().rpartition('.')[2]} | {' / '.join(lines[-12:])}"
        if self._into is None:
            print(told, flush=True)
        else:
            with self._into.open("a") as file:
                file.write(told + "\n")

    def addSuccess(self, test: unittest.TestCase) -> None:
        """A test passed."""
        self._tell("passed", test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        """A test does not apply here."""
        self._tell("skipped", test, reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        """A test failed."""
        super().addFailure(test, err)
        self._tell("failed", test, str(err[1]))

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        """A test ended with an error."""
        super().addError(test, err)
        self._tell("failed", test, str(err[1]))


def stand_in_for_gloo() -> None:
    """Make groups of pcp of those that are asked of Gloo."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    import pcp.engines.torch_backend  # noqa: F401

    make = c10d._new_process_group_helper

    def helper(*args: Any, **named: Any) -> Any:
        given = list(args)
        if str(given[3]) in ("gloo", "cpu:gloo", "undefined"):
            given[3] = dist.Backend("pcp")
        return make(*given, **named)

    c10d._new_process_group_helper = helper


def fork_ranks() -> None:
    """Have ranks be forks of this process, which has imported torch for all."""
    import torch.multiprocessing as mp
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    def fork(self: Any) -> None:
        self._start_processes(mp.get_context("fork").Process)

    MultiProcessTestCase._spawn_processes = fork


def _chosen(files: list[Path], only: list[str]) -> Iterator[unittest.TestCase]:
    loader = unittest.TestLoader()
    modules = [_imported(file) for file in files]
    found = [loader.loadTestsFromModule(module) for module in modules]
    if not files:
        found = [loader.loadTestsFromTestCase(_own())]
    for test in _flat(found):
        if not only or test.id().rpartition(".")[2] in only:
            yield test


def _flat(tests: Any) -> Iterator[unittest.TestCase]:
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def _own() -> type:
    from torch.testing._internal.distributed import distributed_test as tests

    def begin(self: Any) -> None:
        tests.TestDistBackend.setUp(self)
        self._spawn_processes()

    bases = tests.TestDistBackend, tests.DistributedTest._DistTestBase
    return type(_CLASS, bases, {"setUp": begin})


def _imported(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None, file
    assert spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
