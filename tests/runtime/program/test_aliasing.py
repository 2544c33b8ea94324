"""Who shares memory: extents, and arrays that programs return twice."""

import doctest

import numpy as np
import pytest
from helpers.models.handwritten_imports import bundle, spec

from pcp.bundle import Function
from pcp.errors import RuntimeFault
from pcp.runtime.program import aliasing
from pcp.runtime.program.aliasing import extent, overlapping, place
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
