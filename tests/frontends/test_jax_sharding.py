"""JAX programs with shardings: partitioned, they compute what JAX does."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.oracles.spmd import PLAN, run_joined

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.errors import IRError, PassError

CASES = (
    *("by_arguments", "by_constraint", "two_axes", "nested", "gradient"),
    *("whole_body", "members", "ring", "mean_of_groups", "left_axes"),
    *("nested_maps", "factors"),
)


FACTORIZATIONS = (
    *("cholesky", "eigenvalues", "singular_values"),
    *("exponential", "inverse", "solution"),
)


def _said(cases: Sequence[str], seconds: float = 280) -> dict[str, dict[str, Any]]:
    """What JAX over four devices, in a process of its own, says of each case."""
    done = subprocess.run(
        [sys.executable, "-m", "helpers.models.jax_sharded", *cases],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def checked() -> dict[str, dict[str, Any]]:
    return _said(CASES)


@pytest.fixture(scope="module")
def factorized() -> dict[str, dict[str, Any]]:
    return _said(FACTORIZATIONS, 600)


def _lies_where_jax_says(found: dict[str, Any]) -> bool:
    return (
        found["wrong"] == []
        and not found["sdy"]
        and found["said"] > 0
        and found["members"] == 5  # the module, and one of each of four members
    )


@pytest.mark.parametrize("name", CASES)
def test_a_sharded_program_is_equal_and_lies_where_jax_says(
    name: str, checked: dict[str, dict[str, Any]]
) -> None:
    assert checked[name]["error"] < 1e-5
    assert _lies_where_jax_says(checked[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_a_factorization_of_matrices_that_lie_apart(
    name: str, factorized: dict[str, dict[str, Any]]
) -> None:
    """A loss and its gradient."""
    assert factorized[name]["error"] < 1e-4
    assert _lies_where_jax_says(factorized[name])


MESH = '"sdy.mesh"() <{mesh = #sdy.mesh<["x"=2, "y"=2]>, sym_name = "m"}> : () -> ()'


def _main(sharding: str, shape: str = "8x4") -> str:
    t = f"tensor<{shape}xf32>"
    return f"""{MESH}
    func.func @main(%a: {t} {{sdy.sharding = #sdy.sharding<{sharding}>}}) -> {t} {{
      return %a : {t}
    }}"""


@pytest.mark.parametrize(
    ("sharding", "reads"),
    [
        ('@m, [{"x"}, {}]', '@m, [["x"], []], [], []'),
        ('@m, [{"x", "y"}, {}]', '@m, [["x", "y"], []], [], []'),
        ('@m, [{"x", ?}p2, {?}]', '["x"], 0 : i64, 2 : i64>, #pcp.dim<[], 0'),
        ('@m, [{"x"}p1, {}]', '#pcp.dim<["x"], 1 : i64, 1 : i64>, []'),
        ('@m, [{}, {}], replicated={"y"}', '@m, [[], []], ["y"], []'),
        ('@m, [{"x"}, {?}], unreduced={"y"}', '], [], ["y"]>'),
        ('@m, [{"x":(1)2}, {}]', '@m, [["x:(1)2"], []], [], []'),
    ],
)
def test_what_a_sharding_says(sharding: str, reads: str) -> None:
    text = str(parse(_main(sharding)))
    assert reads in text
    assert "sdy" not in text


def test_an_open_sharding_says_nothing() -> None:
    assert "sharding" not in str(parse(_main("@m, [{?}, {?}]")))


@pytest.mark.parametrize(
    ("sharding", "says"),
    [
        ('mesh<["x"=2]>, [{"x"}, {}]', "the mesh is written inside the sharding"),
    ],
)
def test_what_cannot_be_said_is_refused(sharding: str, says: str) -> None:
    with pytest.raises(IRError, match=r"file\.mlir:2:5: func\.func: .*" + says):
        parse(_main(sharding), source="file.mlir")


@pytest.mark.parametrize(
    ("said", "reads"),
    [("0 : i32", '"none"'), ("2 : i32", '"bwd"'), ("#sdy<dir FORWARD>", '"fwd"')],
)
def test_a_barrier_is_read_by_name_and_by_number(said: str, reads: str) -> None:
    text = _main("@m, [{?}, {?}]").replace(
        "return %a",
        '%b = "sdy.propagation_barrier"(%a) <{allowed_direction = '
        + said
        + "}> : (tensor<8x4xf32>) -> tensor<8x4xf32>\n      return %b",
    )
    assert f"direction = {reads}" in str(parse(text))


def test_an_unknown_direction_is_refused() -> None:
    text = _main("@m, [{?}, {?}]").replace(
        "return %a",
        '%b = "sdy.propagation_barrier"(%a) <{allowed_direction = 7 : i32}> '
        ": (tensor<8x4xf32>) -> tensor<8x4xf32>\n      return %b",
    )
    with pytest.raises(IRError, match="7 : i32 is no direction"):
        parse(text)


def test_a_sharding_of_no_result_says_nothing() -> None:
    said = (
        '"stablehlo.custom_call"(%a) <{call_target_name = "f", has_side_effect = true}>'
    )
    held = "{sdy.sharding = #sdy.sharding_per_value<[<@m, []>]>}"
    text = _main("@m, [{?}, {?}]").replace(
        "return %a", f"{said} {held} : (tensor<8x4xf32>) -> ()\n      return %a"
    )
    assert "sdy" not in str(parse(text))


def test_meshes_that_no_sharding_names_are_left_out() -> None:
    other = '"sdy.mesh"() <{mesh = #sdy.mesh<["z"=3]>, sym_name = "n"}> : () -> ()'
    text = str(parse(other + _main('@m, [{"x"}, {}]')))
    assert text.count("pcp.mesh") == 1
    assert '"z"' not in text


def _mapped(body: str, manual: str = '"x", "y"', sees: str = "4x4") -> str:
    """A shard_map of rows along x, its body from %b to %r."""
    types = f"tensor<{sees}xf32>"
    cut = '#sdy.sharding_per_value<[<@m, [{"x"}, {}]>]>'
    return f"""{MESH}
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {{
  %0 = "sdy.manual_computation"(%a) <{{in_shardings = {cut}, manual_axes =
      #sdy<manual_axes{{{manual}}}>, out_shardings = {cut}}}> ({{
  ^bb0(%b: {types}):
{body}
    "sdy.return"(%r) : ({types}) -> ()
  }}) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}}"""


NEGATE = "    %r = stablehlo.negate %b : tensor<4x4xf32>"


def _sum(groups: str, combine: str = "add") -> str:
    count = groups.count("],") + 1
    size = (groups.count(",") + 1) // count
    return f"""    %r = "stablehlo.all_reduce"(%b) <{{replica_groups = dense<{groups}> :
      tensor<{count}x{size}xi64>}}> ({{
    ^bb1(%c: tensor<f32>, %d: tensor<f32>):
      %e = stablehlo.{combine} %c, %d : tensor<f32>
      stablehlo.return %e : tensor<f32>
    }}) : (tensor<4x4xf32>) -> tensor<4x4xf32>"""


def test_a_member_program_stands_between_its_borders() -> None:
    text = str(parse(_mapped(_sum("[[0, 2], [1, 3]]"))))
    ops = [w for w in ("to_part", "all_reduce", "from_part") if f'"pcp.{w}"' in text]
    assert ops == ["to_part", "all_reduce", "from_part"]
    assert 'axes = ["x"], kind = "sum"' in text
    assert "sdy" not in text


SORTED = """    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %r = "stablehlo.sort"(%b) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb1(%c: tensor<f32>, %d: tensor<f32>):
      %e = stablehlo.add %c, %z : tensor<f32>
      %g = stablehlo.compare LT, %e, %d, TOTALORDER
        : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %g : tensor<i1>
    }) : (tensor<4x4xf32>) -> tensor<4x4xf32>"""


def test_a_member_sorts_by_a_constant_from_outside() -> None:
    """MLIR's canonicalization moves a comparator's constants in front of the sort."""
    module = parse(_mapped(SORTED))
    pipeline(PLAN).run(module)
    values = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    (found,) = run_joined(module, [values])
    np.testing.assert_array_equal(found, np.sort(values, axis=1))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_mapped(_sum("[[0, 3], [1, 2]]")), "6:10: .*no axes of @m"),
        (_mapped(_sum("[[0, 2], [1, 3]]", "divide")), "6:10: .*can only add"),
    ],
)
def test_what_members_cannot_do_is_refused_at_its_place(text: str, says: str) -> None:
    with pytest.raises(IRError, match=r"f\.mlir:" + says):
        parse(text, source="f.mlir")


def test_axes_left_to_the_compiler_cut_nothing_in_a_body() -> None:
    hint = """    %h = "sdy.sharding_constraint"(%b) <{sharding =
      #sdy.sharding<@m, [{}, {"y"}]>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %r = stablehlo.negate %h : tensor<4x4xf32>"""
    text = _mapped(hint, '"x"').replace('{"x"}, {}', '{"x"}, {"y", ?}')
    found = str(parse(text))
    assert found.count('"pcp.constraint"') == 2  # in front of the borders and behind
    assert found.count('[["x"], []], [], []') == 4
    assert '"y"' not in found.partition("func.func")[2]


def _within(body: str, sharding: str = '[{"y"}, {}]', outer: str = '"x"') -> str:
    """A shard_map along y, from %p to %q, in one along `outer`."""
    cut = f"#sdy.sharding_per_value<[<@m, {sharding}>]>"
    inner = f"""    %r = "sdy.manual_computation"(%b) <{{in_shardings = {cut},
      manual_axes = #sdy<manual_axes{{"y"}}>, out_shardings = {cut}}}> ({{
    ^bb0(%p: tensor<2x4xf32>):
{body}
      "sdy.return"(%q) : (tensor<2x4xf32>) -> ()
    }}) : (tensor<4x4xf32>) -> tensor<4x4xf32>"""
    return _mapped(inner, outer)


NESTED = "      %q = stablehlo.negate %p : tensor<2x4xf32>"


def test_a_shard_map_in_another_takes_its_part_and_joins_parts() -> None:
    text = str(parse(_within(NESTED)))
    words = ("to_part", "dynamic_slice", "negate", "all_gather", "from_part")
    places = [text.index(word) for word in words]
    assert places == sorted(places)
    assert text.count("to_part") == 1
    assert 'axes = ["y"], dim = 0' in text
    assert "sdy" not in text


def test_an_outer_body_knows_members_where_an_inner_one_does() -> None:
    """The outer cuts nothing, and may not become a program of whole tensors."""
    inner = _sum("[[0, 1], [2, 3]]").replace("%r", "%q").replace("%b", "%p")
    text = _within(inner.replace("4x4", "8x4"), "[{}, {}]").replace(
        '{"x"}, {}', "{}, {}"
    )
    for shape in ("2x4", "4x4"):
        text = text.replace(shape, "8x4")
    found = str(parse(text))
    assert found.count("to_part") == found.count("from_part") == 1


def test_an_inner_shard_map_that_leaves_sums_open_is_refused() -> None:
    said = '[{"y"}, {}], unreduced={"y"}'
    with pytest.raises(IRError, match=r"6:10: .*in the body of another shard_map"):
        parse(_within(NESTED, said))


def test_a_part_that_is_none_is_refused() -> None:
    body = "    %r = stablehlo.negate %b : tensor<2x4xf32>"
    module = parse(_mapped(body, sees="2x4"))
    with pytest.raises(PassError, match=r"the part is tensor<4x4xf32>, and the prog"):
        pipeline(PLAN).run(module)


def test_another_mesh_of_as_many_devices_is_made_one_with_the_first() -> None:
    other = MESH.replace('"x"=2, "y"=2', '"z"=4').replace('"m"', '"n"')
    text = _main('@m, [{"y"}, {}]').replace(") -> t", ", %b: tensor<8x4xf32> BY) -> t")
    text = text.replace("BY", '{sdy.sharding = #sdy.sharding<@n, [{"z"}, {}]>}')
    module = parse(f"{other}\n{text}")
    found = str(pipeline("builtin.module(pcp-import)").run(module))
    assert found.count('"pcp.mesh"') == 1
    assert '#pcp.sharding<@n, [["z:(2)2"], []]' in found
    assert '#pcp.sharding<@n, [["z:(1)2", "z:(2)2"], []]' in found


def test_the_same_mesh_again_is_the_first() -> None:
    again = MESH.replace('sym_name = "m"', 'sym_name = "n"')
    text = str(parse(again + "\n" + _main('@n, [{"x"}, {}]')))
    assert text.count('"pcp.mesh"') == 1
    assert '@n, [["x"]' in text


def test_pretty_text_says_how_to_print_it() -> None:
    with pytest.raises(IRError, match="print the module in generic form"):
        parse('sdy.mesh @m = <["x"=2]>\nfunc.func private @f()')


def test_a_clean_context_afterwards() -> None:
    module = parse(_main('@m, [{"x"}, {}]'))
    with pytest.raises(IRError, match=r"unregistered|does not exist|not found"):
        parse('"other.op"() : () -> ()', module.context)
