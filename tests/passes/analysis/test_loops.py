"""How often a loop runs, told alike by all that ask: cost, planner, stages, groups."""

from collections.abc import Callable

import pytest
from helpers.models.clusters import FAST, devices

from pcp.compiler.catalog import pipeline
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.passes.analysis import cost, loops
from pcp.passes.analysis.cluster import Device
from pcp.passes.core.functions import find
from pcp.passes.core.walk import block_of, walk
from pcp.passes.planning import tensor_groups
from pcp.passes.planning.candidates import ModelSize
from pcp.passes.planning.cost import PlannedMember, block_cost
from pcp.passes.planning.plan import Plan

N = 64
X, H = f"tensor<{N}x{N}xf32>", f"tensor<{N}x{2 * N}xf32>"
W, V = H, f"tensor<{2 * N}x{N}xf32>"
DEVICE = Device("a", target="cpu", throughput={"f32": 1e10}, membw=1e10, overhead=1e-5)

#: (start, step, direction, bound) -> rounds
LOOPS = {
    (0, 1, "LT", 100): 100,
    (0, 10, "LT", 100): 10,
    (90, 1, "LT", 100): 10,
    (99, -1, "GE", 0): 100,
    (5, 1, "LT", 5): 0,
    (0, 3, "LE", 9): 4,
    (8, -2, "GT", 0): 4,
    (0, 2, "NE", 6): 3,
}


def program(start: int, step: int, direction: str, bound: int) -> ir.Module:
    """`x = tanh(x w) v` in each round."""
    return parse(f"""
func.func @main(%w: {W} {{pcp.role = "param", pcp.name = "w"}},
                %v: {V} {{pcp.role = "param", pcp.name = "v"}},
                %x: {X} {{pcp.role = "data", pcp.name = "x"}}) -> {X} {{
  %s = stablehlo.constant dense<{start}> : tensor<i32>
  %r:2 = stablehlo.while(%i = %s, %y = %x) : tensor<i32>, {X}
   cond {{
    %n = stablehlo.constant dense<{bound}> : tensor<i32>
    %go = stablehlo.compare {direction}, %i, %n
        : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  }} do {{
    %d = stablehlo.constant dense<{step}> : tensor<i32>
    %j = stablehlo.add %i, %d : tensor<i32>
    %h = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0]
        : ({X}, {W}) -> {H}
    %t = stablehlo.tanh %h : {H}
    %z = stablehlo.dot_general %t, %v, contracting_dims = [1] x [0]
        : ({H}, {V}) -> {X}
    stablehlo.return %j, %z : tensor<i32>, {X}
  }}
  return %r#1 : {X}
}}""")


def model(main: ir.Operation) -> ModelSize:
    """What the planner's first guess reads."""
    return ModelSize(main, "forward", N, 0)


#: What each caller says of a function, as a number that grows with the rounds alone.
CALLERS: dict[str, Callable[[ir.Operation], float]] = {
    "operations": lambda f: cost.total(block_of(f, 0).operations).flops,
    "bytes": lambda f: cost.total(block_of(f, 0).operations).bytes,
    "stage cutter": lambda f: sum(
        cost.work(view.operation) for view in block_of(f, 0).operations
    ),
    "judge": lambda f: block_cost(block_of(f, 0), PlannedMember.alone(DEVICE)).compute,
    "guess of time": lambda f: model(f).seconds(DEVICE),
    "guess of work": lambda f: model(f).work,
    "guess of dispatches": lambda f: model(f).dispatches,
    "guess of activations": lambda f: model(f).activations,
}


@pytest.mark.parametrize("spelling", LOOPS)
def test_rounds(spelling: tuple) -> None:
    module = program(*spelling)
    with module.context:
        main = find(module, "main")
        assert main is not None
        (loop,) = (op for op in walk(block_of(main, 0)) if op.name == "stablehlo.while")
        assert loops.trips(loop) == LOOPS[spelling]
        inside = block_of(loop, 1).operations[0].operation
        assert loops.repeats(inside) == LOOPS[spelling]
        assert loops.repeats(loop) == 1


@pytest.mark.parametrize("caller", CALLERS)
def test_all_callers_count_the_same_rounds(caller: str) -> None:
    """A loop is as dear as its rounds are many, however it is spelt."""

    def says(*spelling) -> float:
        module = program(*spelling)
        with module.context:
            main = find(module, "main")
            assert main is not None
            return CALLERS[caller](main)

    none, once = says(5, 1, "LT", 5), says(0, 1, "LT", 1)
    each = once - none
    assert each > 0
    for spelling, rounds in LOOPS.items():
        assert says(*spelling) == pytest.approx(none + rounds * each), spelling


def test_a_group_counts_every_round() -> None:
    """One that is cut inside of a loop saves there, and leaves a sum, each time."""
    found = {}
    for spelling in ((0, 1, "LT", 1), (99, -1, "GE", 0)):
        module = program(*spelling)
        with module.context:
            main = find(module, "main")
            assert main is not None
            (found[spelling],) = tensor_groups.find(main, 2)
    once, often = found.values()
    assert once.work > 0
    assert often.work == 100 * once.work
    assert often.reduced_bytes == 100 * once.reduced_bytes > 0
    assert sum(often.reduced.values()) == 100


@pytest.mark.parametrize(
    ("passes", "rounds"),
    [
        ("pcp-vjp", {"stablehlo.tanh": 8, "stablehlo.subtract": 8}),
        # "They run each segment once more."
        ("pcp-checkpoint-loops{every=4},pcp-vjp", {"stablehlo.tanh": 16}),
    ],
)
def test_reverse_loops_count_down_as_often(passes: str, rounds: dict) -> None:
    module = program(0, 1, "LT", 8)
    pipeline(f"builtin.module({passes},pcp-simplify)").run(module)
    with module.context:
        main = find(module, "main_vjp")
        assert main is not None
        ops = list(walk(block_of(main, 0)))
        for name, count in rounds.items():
            shaped = (op for op in ops if op.name == name and hlo.shape_of(op.result))
            assert sum(map(loops.repeats, shaped)) == count


def test_a_plan_judges_one_loop_spelt_three_ways_alike() -> None:
    tables = []
    for spelling in ((0, 1, "LT", 10), (90, 1, "LT", 100), (9, -1, "GE", 0)):
        module = program(*spelling)
        described = parse(devices(FAST, FAST), module.context)
        with ir.InsertionPoint.at_block_begin(module.body):
            for view in described.body.operations:
                view.operation.clone()
        Plan(explain=True).run(module)
        tables.append(str(module.operation.attributes["pcp.alternatives"]))
    assert tables[0] == tables[1] == tables[2]
