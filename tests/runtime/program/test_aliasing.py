"""Who shares memory: extents, and arrays that programs return twice."""

import doctest

import numpy as np
import pytest
from helpers.models.handwritten_imports import bundle, spec

from pcp.bundle import Bundle, Function
from pcp.compiler.driver import compile as compile_bundle
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.errors import RuntimeFault
from pcp.passes.core.straight_functions import straight
from pcp.runtime.program import aliasing
from pcp.runtime.program.aliasing import Overlaps, extent, overlapping, place
from pcp.runtime.program.executor import Program

SHARED = """
func.func @main(%x: tensor<4xf32>) -> (
    tensor<4xf32>, tensor<4xf32>, tensor<2x2xf32>, tensor<4xf32>, tensor<0xf32>) {
  %y = stablehlo.add %x, %x : tensor<4xf32>
  %z = stablehlo.reshape %y : (tensor<4xf32>) -> tensor<2x2xf32>
  %none = stablehlo.slice %x [0:0] : (tensor<4xf32>) -> tensor<0xf32>
  return %x, %y, %z, %y, %none
      : tensor<4xf32>, tensor<4xf32>, tensor<2x2xf32>, tensor<4xf32>, tensor<0xf32>
}
func.func @double(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.add %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


def test_the_example() -> None:
    assert doctest.testmod(aliasing).failed == 0


@pytest.mark.parametrize("seed", range(20))
def test_overlaps_are_those_of_a_set_of_bytes(seed: int) -> None:
    random = np.random.default_rng(seed)
    starts = random.integers(0, 60, 12)
    extents = [
        (int(s) % 2, int(a), int(a + n))
        for s, a, n in zip(
            random.integers(0, 9, 12), starts, random.integers(0, 9, 12), strict=True
        )
    ]
    taken, rest = extents[:4], extents[4:]
    used = {(e[0], byte) for e in taken for byte in range(*e[1:])}
    expected = []
    for i, (space, start, end) in enumerate(rest):
        bytes_ = {(space, byte) for byte in range(start, end)}
        expected += [i] if bytes_ & used else []
        used |= bytes_
    assert overlapping(rest, taken) == expected


def test_a_place_as_iree_describes_it() -> None:
    """As on devices whose memory has no address here."""
    with Program.load(_program()) as loaded:
        view = loaded.to_device(np.zeros(4, np.float32)).view
        assert place(str(view.get_buffer()), 16) == (16, 0, 16)
    with pytest.raises(RuntimeFault, match="place is not known"):
        place("<HalBuffer>", 16)


def _program():
    one, square = spec("x", [4]), spec("z", [2, 2])
    results = (one, spec("y", [4]), square, spec("y2", [4]), spec("none", [0]))
    return bundle(
        SHARED,
        {
            "main": Function(inputs=(one,), results=results),
            "double": Function(inputs=(one,), results=(one,), donates=(0,)),
        },
    )


def test_each_device_array_has_its_memory_to_itself(device: str) -> None:
    with Program.load(_program(), device) as loaded:
        x = loaded.to_device(np.arange(4, dtype=np.float32))
        results = loaded["main"](x, device_arrays=True)
        assert not overlapping([extent(a.view) for a in (x, *results)])
        for i in (1, 2, 3):
            assert results[i].numpy().ravel().tolist() == [0, 2, 4, 6]
        loaded["double"](results[0], device_arrays=True)
        assert x.numpy().tolist() == [0, 1, 2, 3]


BRANCHING = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %n, %y = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %more = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %less = stablehlo.subtract %i, %one : tensor<i32>
      %twice = stablehlo.add %y, %y : tensor<4xf32>
      stablehlo.return %less, %twice : tensor<i32>, tensor<4xf32>
    }
  return %r#1 : tensor<4xf32>
}
func.func @same(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %y = stablehlo.add %x, %x : tensor<4xf32>
  return %x, %y, %y : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
func.func @outside(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %y = call @main(%x, %n) : (tensor<4xf32>, tensor<i32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


@pytest.fixture(scope="module")
def branching() -> Bundle:
    with make_context():
        module = ir.Module.parse(BRANCHING)
    options = CompileOptions(targets=("cpu:host",), mode="forward", entry="main")
    return compile_bundle(module, options)


def test_what_goes_another_way_in_another_call_is_looked_at_in_each(
    branching: Bundle,
) -> None:
    """With no trips the loop may give back its argument; often, then otherwise."""
    assert "main" not in branching.manifest.modules["cpu:host"].straight
    with Program.load(branching) as loaded:
        x = loaded.to_device(np.ones(4, np.float32))
        for trips in (3, 3, 3, 3, 3, 3, 0):
            made = loaded["main"](x, np.int32(trips), device_arrays=True)
            assert made.numpy().tolist() == [2.0**trips] * 4
            assert not overlapping([extent(x.view), extent(made.view)])


def test_functions_that_a_call_reaches_count() -> None:
    with make_context():
        module = ir.Module.parse(BRANCHING)
        assert straight(module) == {"same"}
        declared = "func.func private @f(tensor<4xf32>) -> tensor<4xf32>\n"
        add = "stablehlo.add %x, %x : tensor<4xf32>"
        call = "call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>"
        outside = ir.Module.parse(declared + SHARED.replace(add, call, 1))
        assert straight(outside) == {"double"}


class _View:
    """A buffer view at an address of a device whose memory has none here."""

    def __init__(self, allocation: int, offset: int, size: int = 4) -> None:
        self.byte_length, self._place = size, f"at offset {offset} into {allocation}"
        self.asked = 0

    def get_buffer(self) -> "_View":
        self.asked += 1
        return self

    def memory_type(self) -> int:
        return 0

    def allowed_usage(self) -> int:
        return 0

    def __str__(self) -> str:
        return self._place


def test_a_straight_function_is_looked_at_until_it_is_known() -> None:
    overlaps = Overlaps(True)
    argument, apart, seems = _View(64, 0), _View(32, 0), _View(64, 0)
    assert overlaps.among([apart, seems], [argument]) == [1]
    # The same result in another allocation of another size: it lies apart, always.
    assert overlaps.among([apart, _View(16, 0)], [argument]) == []
    before = seems.asked
    assert overlaps.among([apart, seems], [argument]) == []
    assert seems.asked == before
    # Arguments that end with the call are no others' memory.
    assert overlaps.among([apart, seems], [None]) == []
    # What overlaps in each of the first calls counts as that from then on.
    overlaps = Overlaps(True)
    for _ in range(Overlaps.CALLS + 1):
        assert overlaps.among([seems, seems], [argument]) == [0, 1]
    told = seems.asked
    assert overlaps.among([seems, seems], [argument]) == [0, 1]
    assert seems.asked == told


def test_another_function_is_looked_at_in_each_call() -> None:
    overlaps = Overlaps(False)
    for _ in range(3 * Overlaps.CALLS):
        assert overlaps.among([_View(32, 0)], [_View(64, 0)]) == []
        assert overlaps.among([_View(64, 0)], [_View(64, 0)]) == [0]
