"""Stacks on a device: rows as tensors, and manifests that say what is not so."""

import numpy as np
import pytest
from helpers.models.handwritten_imports import bundle, spec

from pcp.bundle import Bundle, Function, Part
from pcp.errors import RuntimeFault, UsageError
from pcp.runtime.program.executor import Program
from pcp.runtime.program.stacks import Row

TWICE = """
func.func @twice(%s: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = stablehlo.add %s, %s : tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
func.func @sum(%a: tensor<3xf32>, %b: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.add %a, %b : tensor<3xf32>
  return %0 : tensor<3xf32>
}
"""
A, B = np.arange(3, dtype=np.float32), np.full(3, 7, np.float32)


def stacked(part: Part, names: str = "ab") -> Bundle:
    specs = tuple(spec(name, [3]) for name in names)
    sums = (spec("a", [3]), spec("b", [3]))
    functions = {
        "both": Function(inputs=specs, results=specs, parts=(part,), returns=(2, 3)),
        "sum": Function(inputs=sums, results=(spec("c", [3]),)),
    }
    return bundle(TWICE, functions)


@pytest.fixture(scope="module")
def good() -> Bundle:
    return stacked(Part(name="twice", inputs=((0, 1),), results=1, rows=(2,)))


def test_rows_go_and_come_as_tensors(good, device):
    with Program.load(good, device) as program:
        both = program["both"]
        assert [x.tolist() for x in both(A, B)] == [[0, 2, 4], [14] * 3]
        a, b = both(A, B, device_arrays=True)
        assert isinstance(a.view, Row)
        assert (a.shape, a.dtype, a.nbytes) == ((3,), "f32", 12)
        # Together they are the stack that they lie in; in another order a copy.
        assert [x.tolist() for x in both(a, b)] == [[0, 4, 8], [28] * 3]
        assert [x.tolist() for x in both(b, a)] == [[28] * 3, [0, 4, 8]]
        assert [x.tolist() for x in both(a, B)] == [[0, 4, 8], [14] * 3]
        assert program["sum"](a, b).tolist() == [14, 16, 18]
        a.consume("given away")
        with pytest.raises(UsageError, match="given away"):
            a.numpy()
        assert b.numpy().tolist() == [14] * 3
    assert b.numpy().tolist() == [14] * 3, "arrays outlive their program"


def test_a_manifest_with_other_rows_than_there_are_is_refused(device):
    wrong = stacked(Part(name="twice", inputs=((0, 1),), results=1, rows=(3,)))
    with Program.load(wrong, device) as program:
        with pytest.raises(RuntimeFault, match="3 rows of a tensor of 2"):
            program["both"](A, B)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"inputs": ((0, 2),), "rows": (2,)}, "made behind it"),
        ({"inputs": ((),), "rows": (2,)}, "no values"),
        ({"inputs": ((0, 1),), "rows": (2, 2)}, "2 numbers of rows for 1"),
        ({"inputs": ((0, 1),), "rows": (-1,)}, "so many rows"),
    ],
)
def test_a_manifest_that_stacks_what_is_not_there_is_refused(said, message):
    with pytest.raises(ValueError, match=message):
        stacked(Part(name="twice", results=1, **said))


def test_tensors_of_different_types_are_no_stack(good, device):
    other = good.manifest.functions["both"].model_copy(
        update={"inputs": (spec("a", [3]), spec("b", [1]))}
    )
    functions = {**good.manifest.functions, "both": other}
    wrong = Bundle.build(
        good.manifest.model_copy(update={"functions": functions}),
        {k: v for k, v in good.members.items()},
    )
    with Program.load(wrong, device) as program:
        with pytest.raises(RuntimeFault, match="stacks tensors of different types"):
            program["both"](A, np.ones(1, np.float32))


def test_a_row_of_scalars_is_an_array(device):
    """A stack of scalars: its rows have no dimensions, and are arrays still."""
    double = """func.func @twice(%s: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.add %s, %s : tensor<2xf32>
      return %0 : tensor<2xf32>
    }"""
    specs = tuple(spec(name, []) for name in "ab")
    part = Part(name="twice", inputs=((0, 1),), results=1, rows=(2,))
    both = Function(inputs=specs, results=specs, parts=(part,), returns=(2, 3))
    with Program.load(bundle(double, {"both": both}), device) as program:
        a, b = program["both"](np.float32(3), np.float32(4), device_arrays=True)
        assert np.asarray(a).shape == b.numpy().shape == ()
        assert (float(np.asarray(a)), float(b.numpy())) == (6, 8)
        b, a = program["both"](b, a)
        assert (float(a), float(b)) == (12, 16)
