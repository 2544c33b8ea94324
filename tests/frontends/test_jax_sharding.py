"""JAX programs with shardings: partitioned, they compute what JAX does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pcp.dialect.context import parse
from pcp.errors import IRError

CASES = ("by_arguments", "by_constraint", "two_axes", "nested", "gradient")


@pytest.mark.parametrize("name", [*CASES, "whole_body"])
def test_a_sharded_program_is_equal_and_lies_where_jax_says(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "helpers.jax_sharded", name],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["error"] < 1e-5
    assert found["wrong"] == []
    assert not found["sdy"]
    assert found["said"] > 0
    assert found["members"] == 5  # the module, and one of each of four members


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
        ('@m, [{"x":(1)2}, {}]', "split the mesh axis into smaller ones"),
        ('mesh<["x"=2]>, [{"x"}, {}]', "the mesh is written inside the sharding"),
    ],
)
def test_what_cannot_be_said_is_refused(sharding: str, says: str) -> None:
    with pytest.raises(IRError, match=r"file\.mlir:2:5: func\.func: .*" + says):
        parse(_main(sharding), source="file.mlir")


def test_a_member_program_is_refused_at_its_place() -> None:
    text = f"""{MESH}
func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {{
  %0 = "sdy.manual_computation"(%a) <{{in_shardings = #sdy.sharding_per_value<[<@m, [{{"x"}}]>]>, manual_axes = #sdy<manual_axes{{"x"}}>, out_shardings = #sdy.sharding_per_value<[<@m, [{{"x"}}]>]>}}> ({{
  ^bb0(%b: tensor<4xf32>):
    "sdy.return"(%b) : (tensor<4xf32>) -> ()
  }}) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}}"""  # noqa: E501
    with pytest.raises(IRError, match=r"f\.mlir:3:8: .*sees tensor<4xf32> of tens"):
        parse(text, source="f.mlir")


def test_two_meshes_are_refused() -> None:
    other = MESH.replace('"y"=2', '"z"=2').replace('"m"', '"n"')
    with pytest.raises(IRError, match="@n has other axes than @m"):
        parse(f"{MESH}\n{other}\nfunc.func private @f()")


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
