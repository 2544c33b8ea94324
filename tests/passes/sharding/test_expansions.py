"""Constants that two tensors share carry no layout from one to the other."""

from pcp.dialect.context import parse
from pcp.passes.core.rewriting import functions
from pcp.passes.core.walk import block_of
from pcp.passes.sharding.insert_reshards import InsertReshards
from pcp.passes.sharding.propagate_sharding import PropagateSharding

T = "tensor<8x8xf32>"
PROGRAM = f"""
"pcp.mesh"() {{axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"}} : () -> ()
func.func @f(
    %a: {T} {{pcp.sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}},
    %b: {T} {{pcp.sharding = #pcp.sharding<@m, [["tp"], []], [], []>}},
    %s: tensor<f32>) -> ({T} {{pcp.sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}},
    {T} {{pcp.sharding = #pcp.sharding<@m, [["tp"], []], [], []>}}) {{
  %c = stablehlo.constant dense<0.9> : {T}
  %d = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> {T}
  %0 = stablehlo.multiply %a, %c : {T}
  %1 = stablehlo.multiply %b, %c : {T}
  %2 = stablehlo.divide %0, %d : {T}
  %3 = stablehlo.divide %1, %d : {T}
  return %2, %3 : {T}, {T}
}}"""


def test_each_reader_has_its_own() -> None:
    module = parse(PROGRAM)
    PropagateSharding().run(module)
    once = str(module)
    InsertReshards().run(module)
    with module.context:
        (function,) = functions(module)
        names = [view.operation.name for view in block_of(function, 0).operations]
    assert names.count("stablehlo.constant") == 2
    assert names.count("stablehlo.broadcast_in_dim") == 2
    assert "pcp.reshard" not in names
    again = parse(once)
    PropagateSharding().run(again)
    assert str(again) == once


def test_what_is_said_of_one_is_said_of_each() -> None:
    said = '{sharding = #pcp.sharding<@m, [["tp"], []], [], []>}'
    hint = f'  %c = "pcp.constraint"(%e) {said} : ({T}) -> {T}'
    text = PROGRAM.replace("%c = stablehlo", "%e = stablehlo")
    text = text.replace("  %d =", f"{hint}\n  %d =")
    module = parse(text)
    PropagateSharding().run(module)
    with module.context:
        (function,) = functions(module)
        names = [view.operation.name for view in block_of(function, 0).operations]
    assert names.count("stablehlo.constant") == names.count("pcp.constraint") == 2


DRAWN = f"""
"pcp.mesh"() {{axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"}} : () -> ()
func.func @init(%s: tensor<f32>) -> (
    {T} {{pcp.sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}},
    {T} {{pcp.sharding = #pcp.sharding<@m, [["tp"], []], [], []>}},
    {T} {{pcp.sharding = #pcp.sharding<@m, [["tp"], []], [], []>}},
    tensor<f32>) {{
  %i = stablehlo.iota dim = 0 : {T}
  %j = stablehlo.iota dim = 1 : {T}
  %k = stablehlo.add %i, %j : {T}
  %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> {T}
  %x = stablehlo.multiply %k, %b : {T}
  %y = stablehlo.tanh %x : {T}
  %z = stablehlo.cosine %x : {T}
  return %y, %z, %x, %s : {T}, {T}, {T}, tensor<f32>
}}"""


def test_first_values_that_lie_unalike_are_drawn_apart() -> None:
    """What two parameters of one shape are drawn from is each member's own."""
    module = parse(DRAWN)
    PropagateSharding().run(module)
    once = str(module)
    InsertReshards().run(module)
    with module.context:
        (function,) = functions(module)
        names = [view.operation.name for view in block_of(function, 0).operations]
    assert "pcp.reshard" not in names
    assert names.count("stablehlo.iota") == 4
    assert names.count("stablehlo.tanh") == names.count("stablehlo.cosine") == 1
    again = parse(once)
    PropagateSharding().run(again)
    assert str(again) == once
