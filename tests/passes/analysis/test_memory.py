"""What is stored and what is held at once: closed forms, and IREE's own allocator."""

import pytest

from pcp.dialect.context import parse
from pcp.passes.analysis.memory import temporary_bytes
from pcp.passes.analysis.packing import aligned
from pcp.passes.core.rewriting import functions
from pcp.passes.core.walk import block_of

T = "tensor<256x256xf32>"
SIZE = 4 * 256 * 256
VECTOR = "tensor<256xf32>"
DOT = f"contracting_dims = [1] x [0] : ({T}, {T}) -> {T}"

CASES = {
    # A map of a product's result is written with the product.
    "map behind a product": (
        f"%c = stablehlo.dot_general %a, %b, {DOT}\n%y = stablehlo.tanh %c : {T}",
        "%y",
        SIZE,
    ),
    # Each product's result dies with the next one; what is returned has its place
    # from the start.
    "chain": (
        f"%c = stablehlo.dot_general %a, %b, {DOT}\n"
        f"%d = stablehlo.dot_general %c, %b, {DOT}\n"
        f"%y = stablehlo.dot_general %d, %b, {DOT}",
        "%y",
        3 * SIZE,
    ),
    # One is kept for later, as a backward pass would.
    "kept for later": (
        f"%c = stablehlo.dot_general %a, %b, {DOT}\n"
        f"%d = stablehlo.dot_general %c, %b, {DOT}\n"
        f"%e = stablehlo.dot_general %d, %b, {DOT}\n"
        f"%y = stablehlo.dot_general %e, %c, {DOT}",
        "%y",
        4 * SIZE,
    ),
    # Only what maps a product's result is written with it: not what reduces the map.
    "reduction of a mapped product": (
        f"%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
        f"%c = stablehlo.dot_general %a, %b, {DOT}\n"
        f"%d = stablehlo.tanh %c : {T}\n"
        f"%r = stablehlo.reduce(%d init: %z) applies stablehlo.add across "
        f"dimensions = [1] : ({T}, tensor<f32>) -> {VECTOR}\n"
        f"%e = stablehlo.negate %r : {VECTOR}\n"
        f"%f = stablehlo.broadcast_in_dim %e, dims = [0] : ({VECTOR}) -> {T}\n"
        f"%y = stablehlo.add %a, %f : {T}",
        "%y",
        2 * SIZE + 4 * 256,
    ),
    # A map is written with one product, and reads the other one.
    "sum of products": (
        f"%c = stablehlo.dot_general %a, %b, {DOT}\n"
        f"%d = stablehlo.dot_general %b, %a, {DOT}\n"
        f"%y = stablehlo.add %c, %d : {T}",
        "%y",
        2 * SIZE,
    ),
    # What stops a derivative is gone when IREE compiles: no submission ends there.
    "stopped derivative": (
        f"%c = stablehlo.dot_general %a, %b, {DOT}\n"
        f'%s = "pcp.stop_gradient"(%c) : ({T}) -> {T}\n'
        f"%d = stablehlo.dot_general %s, %b, {DOT}\n"
        f"%e = stablehlo.dot_general %d, %b, {DOT}\n"
        f"%f = stablehlo.dot_general %e, %b, {DOT}\n"
        f"%y = stablehlo.dot_general %f, %b, {DOT}",
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
  %f = stablehlo.dot_general %e, %b, {DOT}
  return %f : {T}
}}""")
    with module.context:
        (function,) = functions(module)
        block = block_of(function, 0)
        first = block.operations[0].operation.results[0]
        assert temporary_bytes(block) == 3 * SIZE
        assert temporary_bytes(block, lasting=[first]) == 4 * SIZE


MASK = "tensor<256x256xi1>"
STACK, ROW, INDEX = "tensor<4x256x256xf32>", "tensor<1x256x256xf32>", "tensor<i32>"
AT = f"({STACK}, {ROW}, {INDEX}, {INDEX}, {INDEX}) -> {STACK}"
LOOP = f"""
  %zero = stablehlo.constant dense<0> : {INDEX}
  %one = stablehlo.constant dense<1> : {INDEX}
  %end = stablehlo.constant dense<4> : {INDEX}
  %empty = stablehlo.constant dense<0.0> : {STACK}
  %r:4 = stablehlo.while(%i = %zero, %k = %b, %x = %a, %s = %empty)
      : {INDEX}, {T}, {T}, {STACK}
   cond {{
    %go = stablehlo.compare LT, %i, %end : ({INDEX}, {INDEX}) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  }} do {{
    %j = stablehlo.add %i, %one : {INDEX}
    %y = stablehlo.dot_general %x, %k, {DOT}
    %row = stablehlo.reshape %y : ({T}) -> {ROW}
    %t = stablehlo.dynamic_update_slice %s, %row, %i, %zero, %zero : {AT}
    stablehlo.return %j, %k, %y, %t : {INDEX}, {T}, {T}, {STACK}
  }}"""

MORE = {
    # Four rows in their place, and what is made anew, twice; the weight goes through.
    "a loop holds twice what it makes anew": (LOOP, "%r#2", (4 + 1 + 1) * SIZE + 64),
    # Rows of a stack are read where they lie: only the products have memory.
    "rows of a stack": (
        LOOP
        + f"""
  %q = stablehlo.slice %r#3 [2:3, 0:256, 0:256] : ({STACK}) -> {ROW}
  %p = stablehlo.reshape %q : ({ROW}) -> {T}
  %y = stablehlo.dot_general %p, %b, {DOT}""",
        "%y",
        (4 + 1 + 1) * SIZE + 64,
    ),
    # Written into the product's memory, which nothing reads any more.
    "an update in place": (
        f"%c = stablehlo.dot_general %a, %b, {DOT}\n"
        f"%i = stablehlo.constant dense<0> : {INDEX}\n"
        f"%p = stablehlo.slice %a [0:1, 0:256] : ({T}) -> tensor<1x256xf32>\n"
        f"%y = stablehlo.dynamic_update_slice %c, %p, %i, %i "
        f": ({T}, tensor<1x256xf32>, {INDEX}, {INDEX}) -> {T}",
        "%y",
        SIZE,
    ),
    # The map is read through the reshape, by what cannot join it: it is stored once.
    "a map behind a view": (
        f"%c = stablehlo.add %a, %b : {T}\n"
        f"%d = stablehlo.reshape %c : ({T}) -> tensor<65536xf32>\n"
        f"%y = stablehlo.reshape %d : (tensor<65536xf32>) -> {T}",
        "%y",
        SIZE,
    ),
    # One reader, though it reads twice.
    "a square": (
        f"%c = stablehlo.add %a, %b : {T}\n%y = stablehlo.multiply %c, %c : {T}",
        "%y",
        SIZE,
    ),
    # Truth values are made again where they are read, from what they compare.
    "a mask with two readers": (
        f"%c = stablehlo.dot_general %a, %b, {DOT}\n"
        f"%m = stablehlo.compare GT, %c, %a : ({T}, {T}) -> {MASK}\n"
        f"%d = stablehlo.select %m, %a, %b : {MASK}, {T}\n"
        f"%e = stablehlo.dot_general %d, %b, {DOT}\n"
        f"%y = stablehlo.select %m, %e, %b : {MASK}, {T}",
        "%y",
        3 * SIZE,
    ),
    # The padded image is written out for it alone.
    "a padded convolution": (
        f"%x = stablehlo.reshape %a : ({T}) -> tensor<1x256x256x1xf32>\n"
        f"%k = stablehlo.slice %b [0:3, 0:3] : ({T}) -> tensor<3x3xf32>\n"
        "%w = stablehlo.reshape %k : (tensor<3x3xf32>) -> tensor<3x3x1x1xf32>\n"
        "%c = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]"
        "->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : "
        "i64, feature_group_count = 1 : i64} : (tensor<1x256x256x1xf32>, "
        "tensor<3x3x1x1xf32>) -> tensor<1x256x256x1xf32>\n"
        f"%y = stablehlo.reshape %c : (tensor<1x256x256x1xf32>) -> {T}",
        "%y",
        SIZE + aligned(4 * 258 * 258) + aligned(4 * 3 * 3),
    ),
    # `%c` is read behind the loop.
    "a loop behind a product that lasts": (
        f"%c = stablehlo.dot_general %a, %b, {DOT}"
        + LOOP
        + f"\n%y = stablehlo.dot_general %r#2, %c, {DOT}",
        "%y",
        (1 + 4 + 1 + 1) * SIZE + 64,
    ),
    "a constant that is returned": (
        f"%y = stablehlo.constant dense<1.0> : {T}",
        "%y",
        SIZE,
    ),
}


@pytest.mark.parametrize("name", MORE)
def test_views_updates_and_loops(name: str) -> None:
    body, result, expected = MORE[name]
    module = parse(f"""
func.func @f(%a: {T}, %b: {T}) -> {T} {{
{body}
  return {result} : {T}
}}""")
    with module.context:
        (function,) = functions(module)
        assert temporary_bytes(block_of(function, 0)) == expected


def test_a_row_that_is_returned_is_a_copy() -> None:
    row = "tensor<1x256xf32>"
    module = parse(f"""
func.func @f(%a: {T}) -> {row} {{
  %y = stablehlo.slice %a [2:3, 0:256] : ({T}) -> {row}
  return %y : {row}
}}""")
    with module.context:
        (function,) = functions(module)
        assert temporary_bytes(block_of(function, 0)) == 4 * 256


def test_equal_constants_that_are_returned_are_one_buffer() -> None:
    module = parse(f"""
func.func @f() -> ({T}, {T}, {T}) {{
  %x = stablehlo.constant dense<1.0> : {T}
  %y = stablehlo.constant dense<1.0> : {T}
  %z = stablehlo.constant dense<2.0> : {T}
  return %x, %y, %z : {T}, {T}, {T}
}}""")
    with module.context:
        (function,) = functions(module)
        assert temporary_bytes(block_of(function, 0)) == 2 * SIZE
