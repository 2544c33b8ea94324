"""The mesh that a module describes."""

import pytest

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
