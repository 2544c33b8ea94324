"""Functions that the host binds, called by tasks and by whole programs."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.worlds.bundle_runs import ran, save_npz
from helpers.worlds.communicators import outcome, together, world
from helpers.worlds.schedules import cluster

import pcp
from pcp.errors import (
    CollectiveAborted,
    ConfigError,
    HostFunctionFailed,
    MissingRule,
    PassError,
)
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.program.executor import Program
from pcp.tools import cli, compile

#: @first doubles x, @second has the host make something of that.
MODEL = (
    """
func.func private @shift(tensor<4xf32>, tensor<i32>)
    -> (tensor<4xf32>, tensor<2xi64>) attributes {pcp.host}
func.func @main(%x: tensor<4xf32> {pcp.name = "x"})
    -> (tensor<4xf32> {pcp.name = "y"}, tensor<2xi64> {pcp.name = "counts"}) {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to FIRST
  %s = "pcp.schedule"() ({
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      %0 = arith.addf %i, %i : tensor<4xf32>
      "pcp.yield"(%0) : (tensor<4xf32>) -> ()
    }) {device = @first} : (FIRST) -> FIRST
    %c = "pcp.transfer"(%b) : (FIRST) -> SECOND
    %d = "pcp.task"(%c) ({
    ^bb0(%i: tensor<4xf32>):
      %three = stablehlo.constant dense<3> : tensor<i32>
      %0, %n = func.call @shift(%i, %three)
        : (tensor<4xf32>, tensor<i32>) -> (tensor<4xf32>, tensor<2xi64>)
      %1 = stablehlo.negate %0 : tensor<4xf32>
      %t = builtin.unrealized_conversion_cast %1, %n
        : tensor<4xf32>, tensor<2xi64> to tuple<tensor<4xf32>, tensor<2xi64>>
      "pcp.yield"(%t) : (tuple<tensor<4xf32>, tensor<2xi64>>) -> ()
    }) {device = @second} : (SECOND) -> tuple<SECOND, COUNTS>
    "pcp.yield"(%d) : (tuple<SECOND, COUNTS>) -> ()
  }) {kind = "custom", microbatches = 1} : () -> tuple<SECOND, COUNTS>
  %y, %n = builtin.unrealized_conversion_cast %s
    : tuple<SECOND, COUNTS> to tensor<4xf32>, tensor<2xi64>
  return %y, %n : tensor<4xf32>, tensor<2xi64>
}
""".replace("COUNTS", "!pcp.on<tensor<2xi64>, @second>")
    .replace("FIRST", "!pcp.on<tensor<4xf32>, @first>")
    .replace("SECOND", "!pcp.on<tensor<4xf32>, @second>")
)

FUNCTIONS = """
import numpy as np

def shift(x, n):
    return x + np.float32(n), np.array([len(x), 7])

def fails(x, n):
    raise ValueError("the probe is not there")
"""
X = np.arange(4, dtype=np.float32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    model = folder / "host.mlir"
    model.write_text(MODEL)
    (folder / "functions.py").write_text(FUNCTIONS)
    flags = ["--cluster", str(cluster(folder, "first", "second"))]
    assert compile.main([str(model), *flags, "-o", str(folder / "host.pcp")]) == 0
    return folder / "host.pcp"


def shift(x: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x + np.float32(n), np.array([len(x), 7])


def both(bundle: Path, function: Callable) -> list:
    """What the two members' programs give, or how they fail, in one process."""
    with world("tcp", 2) as comms:
        programs = [
            Program.load(bundle, "local-sync", communicator=c, host={"shift": function})
            for c in comms
        ]
        given = [(X,), ()]

        def run(rank: int) -> object:
            return outcome(lambda: _run(programs[rank], comms[rank], given[rank]))

        try:
            return together(range(2), run)
        finally:
            for program in programs:
                program.close()


def _run(program: Program, comm: Communicator, given: tuple) -> object:
    result = program["main"](*given)
    comm.barrier(tag="done")
    return result


def test_a_task_calls_the_host(bundle: Path) -> None:
    """Two processes over TCP; each is told of the function, and one calls it."""
    place = f"shift={bundle.with_name('functions.py')}:shift"
    found = ran(bundle, {"x": X}, "--host-function", place)
    np.testing.assert_array_equal(found["y"], -(2 * X + 3))
    np.testing.assert_array_equal(found["counts"], [4, 7])


def test_a_function_is_bound_in_python(bundle: Path) -> None:
    nothing, (y, counts) = both(bundle, shift)
    assert nothing == ()
    np.testing.assert_array_equal(y, -(2 * X + 3))
    np.testing.assert_array_equal(counts, [4, 7])


def _raises(x, n):
    raise ValueError("the probe is not there")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_raises, r"@shift raised ValueError: the probe is not there \(.*:\d+\)"),
        (lambda x, n: x, r"@shift\(f32\[4\], i32\[\]\) -> .* gave 1 value$"),
        (lambda x, n: None, "gave 0 values"),
        (lambda x, n: (x[:2], [1, 2]), r"gave float32\[2\] as result 0"),
        (lambda x, n: (x, np.ones(2)), r"gave float64\[2\] as result 1"),
        (lambda x, n: (x, 7), r"gave int64\[\] as result 1"),
    ],
    ids="raises few none shape type number".split(),
)
def test_a_failure_is_heard_on_every_member(
    bundle: Path, function: Callable, says: str
) -> None:
    first, second = both(bundle, function)
    assert isinstance(second, HostFunctionFailed)
    assert re.search(says, str(second))
    assert isinstance(first, CollectiveAborted)
    assert str(first) == f"rank 1: {second}"


def test_every_process_of_a_failed_run_says_why(bundle: Path, capfd) -> None:
    place = f"shift={bundle.with_name('functions.py')}:fails"
    save_npz(bundle.with_name("in.npz"), {"x": X})
    files = ["--inputs", str(bundle.with_name("in.npz")), "--out", "-"]
    assert cli.main(["run", str(bundle), *files, "--host-function", place]) == 1
    said = capfd.readouterr().err
    assert "host function @shift raised ValueError: the probe is not there" in said
    assert "Traceback" not in said


def test_what_is_not_bound_is_said_before_anything_runs(bundle: Path, capfd) -> None:
    functions = bundle.with_name("functions.py")
    save_npz(bundle.with_name("in.npz"), {"x": X})
    run = ["run", str(bundle), "--inputs", str(bundle.with_name("in.npz"))]
    run += ["--out", "-"]
    for flags, says in {
        (): "calls the host function @shift(f32[4], i32[]) -> (f32[4], i64[2])",
        (f"shfit={functions}:shift",): "calls no host function 'shfit' (it calls: "
        "shift). Did you mean 'shift'?",
        (f"{functions}:shft",): "has no 'shft'. Did you mean 'shift'?",
        (f"{functions}:shift", f"shift={functions}:fails"): "@shift is bound already",
        ("shift",): "write [NAME=]FILE.py:FUNCTION",
    }.items():
        bound = [word for flag in flags for word in ("--host-function", flag)]
        assert cli.main([*run, *bound]) != 0
        assert says in capfd.readouterr().err
    with pytest.raises(ConfigError, match=r"shift.* is bound to a int"):
        Program.load(bundle, member="second", host={"shift": 3})  # pyright: ignore[reportArgumentType]
    Program.load(bundle, member="first").close()  # which calls none


def test_calls_are_made_once_in_order(tmp_path: Path) -> None:
    """Of functions that take nothing, or give nothing, too."""
    text = """
    func.func private @next() -> tensor<i32> attributes {pcp.host}
    func.func private @log(tensor<i32>) attributes {pcp.host}
    func.func @main() -> tensor<i32> {
      %a = call @next() : () -> tensor<i32>
      %b = call @next() : () -> tensor<i32>
      call @log(%b) : (tensor<i32>) -> ()
      %c = call @next() : () -> tensor<i32>
      call @log(%c) : (tensor<i32>) -> ()
      call @log(%a) : (tensor<i32>) -> ()
      return %b : tensor<i32>
    }"""
    numbers, logged = iter(range(1, 10)), []
    host = {"next": lambda: next(numbers), "log": lambda x: logged.append(int(x))}
    made = pcp.compile(text, mode="forward")
    with Program.load(made, "local-sync", host=host) as program:
        assert program["main"]() == 2
        assert logged == [2, 3, 1]
        assert program["main"]() == 5


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        (
            {"mode": "forward", "mesh": "dp=2"},
            PassError,
            "@f is a host function, which",
        ),
        ({"mode": "grad"}, MissingRule, "no derivative rule for @f, which has no body"),
    ],
    ids="mesh derivative".split(),
)
def test_where_no_host_function_can_be(asked, error, says) -> None:
    text = """
    func.func private @f(tensor<f32>) -> tensor<f32> attributes {pcp.host}
    func.func @main(%x: tensor<f32>) -> tensor<f32> {
      %y = call @f(%x) : (tensor<f32>) -> tensor<f32>
      return %y : tensor<f32>
    }"""
    with pytest.raises(error, match=f"4:12: func.call: .*{says}"):
        pcp.compile(text, **asked)
