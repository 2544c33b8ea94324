"""Halo exchange: intervals, rounds, whole programs, and mutants of them."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from helpers.models import sharded
from helpers.oracles.spmd import PLAN, partitioned, run_joined, whole
from helpers.random_programs import halo as random_halo

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.dialect.hlo_windows import dilated
from pcp.errors import PassError
from pcp.mesh import Mesh
from pcp.passes.sharding import ways
from pcp.passes.sharding.factors import Reach, Rules, expressible, operand_layouts
from pcp.passes.sharding.halo import Exchange, overlap

BATCH = 20


# --- what a part needs, and who sends it ---


def _reach(rng: random.Random) -> tuple[Reach, int]:
    """A window over an operand, and how many windows there are."""
    size, window = rng.randrange(1, 14), rng.randrange(1, 5)
    base, dilation, stride = (rng.choice((1, 1, 2, 3)) for _ in range(3))
    low, high = rng.randrange(-2, 5), rng.randrange(-2, 5)
    extent = dilated(size, base) + low + high
    count = (extent - dilated(window, dilation)) // stride + 1
    reach = Reach(0, 0, 0, size, stride, -low, (window - 1) * dilation, base)
    if rng.random() < 0.3:  # the last window first
        reach = Reach(
            0, 0, 0, size, -stride, stride * (count - 1) - low, reach.extent, base
        )
    return reach, count


def _touched(reach: Reach, part: tuple[int, int]) -> set[int]:
    """By trying every element of the operand at every element of the part."""
    return {
        i
        for i in range(reach.size)
        for j in range(*part)
        if 0 <= reach.base * i - reach.low - reach.step * j <= reach.extent
    }


@pytest.mark.parametrize("seed", range(200))
def test_a_part_needs_what_its_windows_touch(seed: int) -> None:
    rng = random.Random(seed)
    reach, count = _reach(rng)
    if count < 1:
        return
    start = rng.randrange(count)
    part = (start, rng.randrange(start, count) + 1)
    touched, needed = _touched(reach, part), reach.needed(part)
    assert touched <= set(range(*needed))
    first, last = reach.covered(part)
    if needed != (0, 0):
        assert all(first <= reach.base * i <= last for i in range(*needed))
        low, high = reach.margins(part)
        assert min(low, high) >= 0
        filled = low + dilated(needed[1] - needed[0], reach.base) + high
        assert filled == last - first + 1
    else:
        assert not touched


@pytest.mark.parametrize("seed", range(200))
def test_rounds_bring_everyone_what_it_needs(seed: int) -> None:
    rng = random.Random(seed)
    reach, count = _reach(rng)
    axes = rng.choice(({"a": 2}, {"a": 4}, {"a": 3, "b": 2}))
    weights = {"a": tuple(rng.randrange(1, 4) for _ in range(axes["a"]))}
    mesh = Mesh("m", axes, weights=weights if rng.random() < 0.5 else {})
    if count < mesh.size or reach.size < mesh.size:
        return
    exchange = Exchange.of(reach, count, tuple(axes), mesh, tuple(axes))
    has = [set(range(*span)) for span in exchange.held]
    for one in exchange.rounds:
        for end in zip(*one.pairs, strict=True):
            assert len(set(end)) == len(end)
        for source, target in one.pairs:
            span = overlap(exchange.held[source], exchange.needed[target])
            assert 0 < span[1] - span[0] <= one.width
            has[target] |= set(range(*span))
    for own, needed in zip(has, exchange.needed, strict=True):
        assert set(range(*needed)) <= own


def test_an_operand_that_is_whole_needs_no_messages() -> None:
    mesh = Mesh("m", {"a": 4})
    reach = Reach(0, 0, 0, 10, extent=2, low=-1)
    assert Exchange.of(reach, 10, ("a",), mesh, ()).rounds == ()
    cut = Exchange.of(reach, 10, ("a",), mesh, ("a",))
    assert [one.pairs for one in cut.rounds] == [
        ((0, 1), (1, 2), (2, 3)),
        ((1, 0), (2, 1), (3, 2)),
    ]
    assert cut.width == 2
    assert cut.is_narrow


# --- programs ---


def _check_batch(first: int) -> list[str]:
    """Failures among the programs `first` and following."""
    failures = []
    for seed in range(first, first + BATCH):
        try:
            random_halo.check(seed)
        except Exception as error:
            failures.append(f"{seed}: {type(error).__name__}: {error}")
    return failures


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(i, marks=() if i < BATCH else pytest.mark.slow)
        for i in range(0, 1200, BATCH)
    ],
)
def test_random_programs_are_equal(first: int, elsewhere) -> None:
    assert elsewhere.submit(_check_batch, first).result(300) == []


def test_no_part_of_what_a_window_reaches_into_is_empty() -> None:
    """Of shares 3 to 1 an operand of 2 that a larger result reaches into is whole."""
    rules = Rules()
    rows = rules.factor(6)
    rules.reaches.append(Reach(rows, operand=0, dim=0, size=2))
    rule = rules.done([[(rows,)]], [[(rows,)]])
    assert expressible(rule, {rows: ("a",)}, Mesh("m", {"a": 2}))
    uneven = Mesh("m", {"a": 2}, (), {"a": (3, 1)})
    assert uneven.parts(2, ["a"]) == [2, 0]
    assert not expressible(rule, {rows: ("a",)}, uneven)


def _annotated(model: str, plan: str) -> str:
    return sharded.annotate(model, *sharded.SPATIAL[plan])


def _error(model: str, plan: str) -> float:
    arguments = sharded.models()[model].arguments
    expected = whole(sharded.gradient_text(model), arguments)
    found = partitioned(_annotated(model, plan), arguments)
    return max(
        float(np.abs(a - b).max() / (1e-3 + np.abs(b).max()))
        for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("cnn", "rows4"),
        pytest.param("cnn", "rows2-columns2", marks=pytest.mark.slow),
        pytest.param("scene", "rows4", marks=pytest.mark.slow),
        pytest.param("scene", "rows2-columns2", marks=pytest.mark.slow),
    ],
)
def test_gradients_of_images_that_are_cut(model: str, plan: str, elsewhere) -> None:
    assert elsewhere.submit(_error, model, plan).result(300) < 1e-5


def _sent(text: str) -> dict[str, int]:
    """What a member sends, in bytes: a permute's buffer, a gather's other parts."""
    module = parse(text)
    pipeline(PLAN).run(module)
    most: dict[str, int] = {}
    for home in module.body.operations:
        if home.operation.name == "builtin.module":
            own: dict[str, int] = {}
            home.operation.walk(lambda op, own=own: _add(op.operation, own))
            most = max(most, own, key=lambda sent: sum(sent.values()))
    return most


def _add(op: ir.Operation, own: dict[str, int]) -> ir.WalkResult:
    if op.name in ("pcp.permute", "pcp.all_gather"):
        given, result = (
            4 * int(np.prod(ir.RankedTensorType(v.type).shape))
            for v in (op.operands[0], op.results[0])
        )
        moved = given if op.name == "pcp.permute" else result - given
        own[op.name] = own.get(op.name, 0) + moved
    return ir.WalkResult.ADVANCE


@pytest.mark.parametrize(
    ("plan", "halo", "gather"),
    [("rows4", 5408, 64192), ("rows2-columns2", 5712, 62912)],
)
def test_borders_are_less_than_parts(
    plan: str, halo: int, gather: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same program with every window's operand gathered: what it would send."""
    text = _annotated("scene", plan)
    assert _sent(text) == {"pcp.permute": halo}
    monkeypatch.setattr(ways, "operand_layouts", lambda *a: operand_layouts(*a)[-1:])
    assert sum(_sent(text).values()) == gather
    assert 10 * halo < gather


# --- the suite would notice ---


def _reversed(op: ir.Operation) -> bool:
    """Messages go the other way."""
    pairs = [list(pair) for pair in ir.ArrayAttr(op.attributes["pairs"])]
    op.attributes["pairs"] = ir.ArrayAttr.get(
        [ir.ArrayAttr.get(pair[::-1]) for pair in pairs]
    )
    return True


def _dropped(op: ir.Operation) -> bool:
    """Everyone takes its own message for its neighbour's."""
    op.results[0].replace_all_uses_with(op.operands[0])
    op.erase()
    return True


def _shifted(op: ir.Operation) -> bool:
    """The message is what lies one element beside what is needed."""
    source = op.operands[0].owner
    if source.name != "stablehlo.slice":
        return False
    (start, limit) = (
        list(ir.DenseI64ArrayAttr(source.attributes[f"{n}_indices"]))
        for n in ("start", "limit")
    )
    shape = ir.RankedTensorType(source.operands[0].type).shape
    for d, n in enumerate(shape):
        if (start[d], limit[d]) != (0, n):
            by = 1 if start[d] == 0 else -1
            for name, old in (("start", start), ("limit", limit)):
                moved = [x + by * (e == d) for e, x in enumerate(old)]
                source.attributes[f"{name}_indices"] = ir.DenseI64ArrayAttr.get(moved)
            return True
    return False


MUTATIONS: tuple[Callable[[ir.Operation], bool], ...] = (_reversed, _dropped, _shifted)

BORDERS = """
"pcp.mesh"() {axes = [#pcp.axis<"a", 3>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<2x11x2xf32> {pcp.sharding =
    #pcp.sharding<@m, [[], ["a"], []], [], []>}, %k: tensor<3x2x2xf32>) ->
    (tensor<2x6x2xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["a"], []], [], []>}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.convolution(%x, %k)
      dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {pad = [[1, 1]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<2x11x2xf32>, tensor<3x2x2xf32>) -> tensor<2x11x2xf32>
  %1 = stablehlo.pad %0, %zero, low = [0, 2, 0], high = [0, 0, 0],
      interior = [0, 0, 0]
      : (tensor<2x11x2xf32>, tensor<f32>) -> tensor<2x13x2xf32>
  %2 = "stablehlo.reduce_window"(%1, %zero) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
  }) {window_dimensions = array<i64: 1, 3, 1>, window_strides = array<i64: 1, 2, 1>}
      : (tensor<2x13x2xf32>, tensor<f32>) -> tensor<2x6x2xf32>
  return %2 : tensor<2x6x2xf32>
}
"""


def _permutes(home: ir.Operation) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "pcp.permute":
            found.append(op.operation)
        return ir.WalkResult.ADVANCE

    home.walk(lambda op: visit(op.operation))
    return found


def _homes(module: ir.Module) -> list[ir.Operation]:
    every = [view.operation for view in module.body.operations]
    return [op for op in every if op.name == "builtin.module"]


def _caught() -> tuple[int, int]:
    """(caught, all): each mutation of each exchange, on all members at once."""
    numbers = np.random.default_rng(0)
    inputs = [
        numbers.integers(-4, 5, shape).astype(np.float32)
        for shape in ((2, 11, 2), (3, 2, 2))
    ]
    module = parse(BORDERS)
    pipeline(PLAN).run(module)
    (expected,) = whole(BORDERS, inputs)
    np.testing.assert_array_equal(run_joined(module, inputs)[0], expected)
    caught = total = 0
    for which in range(len(_permutes(_homes(module)[0]))):
        for mutate in MUTATIONS:
            mutant = parse(str(module))
            with mutant.context:
                found = [_permutes(home)[which] for home in _homes(mutant)]
                if not any([mutate(op) for op in found]):
                    continue
            total += 1
            try:
                caught += not np.array_equal(run_joined(mutant, inputs)[0], expected)
            except (PassError, ValueError):
                caught += 1
    return caught, total


def test_mutants_are_caught(elsewhere) -> None:
    caught, total = elsewhere.submit(_caught).result(200)
    assert total >= 10
    assert caught == total
