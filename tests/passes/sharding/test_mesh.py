"""The mesh that a module describes."""

import json

import numpy as np
import pytest
from helpers.oracles.spmd import partitioned

from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.sharding.mesh import only_mesh


def test_a_module_without_a_mesh_is_told_how_to_write_one() -> None:
    model = "func.func @main(%x: tensor<4xf32>) { return }"
    with pytest.raises(PassError) as refused:
        only_mesh(parse(model))
    said = str(refused.value)
    assert said.startswith("-: a program is spread over exactly one pcp.mesh; this")
    assert "pcp-compile --mesh dp=2" in said
    start = said.index('"pcp.mesh"')
    line = said[start : said.index(", or", start)]
    assert only_mesh(parse(f"{line}\n{model}")).axes == {"dp": 2}


def test_two_meshes_are_one_too_many() -> None:
    facts = 'axes = [#pcp.axis<"dp", 2>], devices = []'
    text = "\n".join(
        f'"pcp.mesh"() {{{facts}, sym_name = "{name}"}} : () -> ()' for name in "ab"
    )
    with pytest.raises(PassError, match="this module has @a, @b"):
        only_mesh(parse(text))


def _mesh(name: str, axes: dict[str, int]) -> str:
    listed = ", ".join(f'#pcp.axis<"{axis}", {n}>' for axis, n in axes.items())
    facts = f'axes = [{listed}], devices = [], sym_name = "{name}"'
    return f'"pcp.mesh"() {{{facts}}} : () -> ()'


def _on(mesh: str, *dims: list[str]) -> str:
    return f"#pcp.sharding<@{mesh}, {json.dumps(dims)}, [], []>"


def _over_two(first: dict[str, int], second: dict[str, int]) -> float:
    """How far a program on two meshes of the same devices is from numpy's result."""
    meshes = "\n".join(_mesh(*named) for named in (("a", first), ("b", second)))
    (x, y), (p, q) = first, second
    text = f"""{meshes}
    func.func @main(
        %x: tensor<16x24xf32> {{pcp.sharding = {_on("a", [x], [y])}}},
        %w: tensor<24x32xf32> {{pcp.sharding = {_on("b", [p], [q])}}})
        -> (tensor<16x32xf32> {{pcp.sharding = {_on("b", [q], [p])}}}) {{
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<16x24xf32>, tensor<24x32xf32>) -> tensor<16x32xf32>
      %1 = "pcp.constraint"(%0) {{sharding = {_on("a", [y, x], [])}}}
        : (tensor<16x32xf32>) -> tensor<16x32xf32>
      %2 = stablehlo.add %1, %1 : tensor<16x32xf32>
      return %2 : tensor<16x32xf32>
    }}"""
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, s).astype(np.float32) for s in ((16, 24), (24, 32)))
    (found,) = partitioned(text, [a, b])
    return float(np.abs(found - 2 * (a @ b)).max())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"x": 2, "y": 2}, {"y": 4, "q": 1}),
        ({"x": 2, "y": 4}, {"p": 4, "q": 2}),
        ({"x": 2, "y": 4}, {"y": 2, "x": 4}),
        ({"x": 8, "y": 1}, {"p": 2, "q": 4}),
        ({"x": 2, "y": 3}, {"p": 6, "q": 1}),
    ],
    ids=str,
)
def test_meshes_over_the_same_devices_are_one(first, second, elsewhere) -> None:
    assert elsewhere.submit(_over_two, first, second).result(300) == 0
