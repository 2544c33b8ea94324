"""Ops that stand for others are gone before the walk; hidden numbers are seen."""

import pytest

from pcp.autodiff.core.activity import carries
from pcp.autodiff.core.expansion import expand
from pcp.autodiff.core.functions import body, functions
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context, parse

T = "tensor<4xf32>"


def names(text: str) -> list[str]:
    """Ops of `@main` after expansion, outer ones alone."""
    module = parse(text)
    main = functions(module)["main"]
    with module.context:
        expand(main)
    assert module.operation.verify()
    return [op.operation.name for op in body(main).operations]


def test_inner_ops_are_expanded_first() -> None:
    """A map in a branch; its body in turn has an op that stands for another."""
    found = names(f"""
    func.func @main(%x: {T}, %p: tensor<i1>) -> {T} {{
      %y = "stablehlo.if"(%p) ({{
        %m = "stablehlo.map"(%x) ({{
        ^bb0(%a: tensor<f32>):
          %s = chlo.broadcast_add %a, %a : (tensor<f32>, tensor<f32>) -> tensor<f32>
          stablehlo.return %s : tensor<f32>
        }}) {{dimensions = array<i64: 0>}} : ({T}) -> {T}
        stablehlo.return %m : {T}
      }}, {{
        stablehlo.return %x : {T}
      }}) : (tensor<i1>) -> {T}
      return %y : {T}
    }}""")
    assert found == ["stablehlo.if", "func.return"]


def test_a_future_that_is_waited_for_is_gone() -> None:
    found = names(f"""
    func.func @main(%x: {T}) -> {T} {{
      %f = "stablehlo.async_start"(%x) ({{
      ^bb0(%a: {T}):
        %c = "stablehlo.collective_permute"(%a)
          {{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}} : ({T}) -> {T}
        stablehlo.return %c : {T}
      }}) : ({T}) -> !stablehlo.future<{T}>
      %y = "stablehlo.async_done"(%f) : (!stablehlo.future<{T}>) -> {T}
      return %y : {T}
    }}""")
    assert found == ["stablehlo.collective_permute", "func.return"]


def test_what_cannot_be_expanded_stays() -> None:
    """Off the active path it harms nobody; on it, the walk refuses it."""
    found = names(f"""
    func.func @main(%t: tuple<{T}>) -> {T} {{
      %x = stablehlo.get_tuple_element %t[0] : (tuple<{T}>) -> {T}
      return %x : {T}
    }}""")
    assert found == ["stablehlo.get_tuple_element", "func.return"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tensor<4xf32>", True),
        ("tensor<?xcomplex<f64>>", True),
        ("tensor<4x!quant.uniform<i8:f32, 0.5>>", True),
        ("tuple<tensor<4xf32>>", True),
        ("!stablehlo.future<tensor<4xf32>>", True),
        ("!pcp.future<tensor<4xf32>>", True),
        ("tensor<4xi32>", False),
        ("tensor<4xi1>", False),
        ("!stablehlo.token", False),
    ],
)
def test_where_real_numbers_can_be(text: str, expected: bool) -> None:
    with make_context():
        assert carries(ir.Type.parse(text)) is expected
