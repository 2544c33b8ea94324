"""What is stored and what is held at once, on programs small enough to count."""

import pytest

from pcp.dialect.context import parse
from pcp.passes.planning.storage import temporary_bytes
from pcp.passes.rewriting import functions
from pcp.passes.sharding.flow import block_of

T = "tensor<256x256xf32>"
SIZE = 4 * 256 * 256
DOT = f"contracting_dims = [1] x [0] : ({T}, {T}) -> {T}"

CASES = {
    # A map of a product's result is written with the product.
    "map behind a product": (
        f"%c = stablehlo.dot_general %a, %b, {DOT}\n%y = stablehlo.tanh %c : {T}",
        "%y",
        SIZE,
    ),
    # Each product's result dies with the next one.
    "chain": (
        f"%c = stablehlo.dot_general %a, %b, {DOT}\n"
        f"%d = stablehlo.dot_general %c, %b, {DOT}\n"
        f"%y = stablehlo.dot_general %d, %b, {DOT}",
        "%y",
        2 * SIZE,
    ),
    # One is kept for later, as a backward pass would.
    "kept for later": (
        f"%c = stablehlo.dot_general %a, %b, {DOT}\n"
        f"%d = stablehlo.dot_general %c, %b, {DOT}\n"
        f"%e = stablehlo.dot_general %d, %b, {DOT}\n"
        f"%y = stablehlo.dot_general %e, %c, {DOT}",
        "%y",
        3 * SIZE,
    ),
    # Constants and broadcasts take no room.
    "broadcast": (
        f"%k = stablehlo.constant dense<2.0> : tensor<f32>\n"
        f"%w = stablehlo.broadcast_in_dim %k, dims = [] : (tensor<f32>) -> {T}\n"
        f"%y = stablehlo.multiply %a, %w : {T}",
        "%y",
        SIZE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_held(name: str) -> None:
    body, result, expected = CASES[name]
    module = parse(f"""
func.func @f(%a: {T}, %b: {T}) -> {T} {{
{body}
  return {result} : {T}
}}""")
    with module.context:
        (function,) = functions(module)
        assert temporary_bytes(block_of(function, 0)) == expected


def test_what_takes_an_arguments_place_holds_nothing() -> None:
    module = parse(f"""
func.func @f(%a: {T}, %b: {T}) -> ({T}, {T}) {{
  %c = stablehlo.dot_general %a, %b, {DOT}
  %x = stablehlo.add %a, %c : {T}
  %y = stablehlo.add %b, %c : {T}
  return %x, %y : {T}, {T}
}}""")
    with module.context:
        (function,) = functions(module)
        block = block_of(function, 0)
        *_, end = block.operations
        assert temporary_bytes(block) == 3 * SIZE
        assert temporary_bytes(block, list(end.operation.operands)) == SIZE


def test_what_lasts_is_held_to_the_end() -> None:
    module = parse(f"""
func.func @f(%a: {T}, %b: {T}) -> {T} {{
  %c = stablehlo.dot_general %a, %b, {DOT}
  %d = stablehlo.dot_general %c, %b, {DOT}
  %e = stablehlo.dot_general %d, %b, {DOT}
  return %e : {T}
}}""")
    with module.context:
        (function,) = functions(module)
        block = block_of(function, 0)
        first = block.operations[0].operation.results[0]
        assert temporary_bytes(block) == 2 * SIZE
        assert temporary_bytes(block, lasting=[first]) == 3 * SIZE
