"""pcp-propagate-sharding, pcp-insert-reshards and pcp-partition against the whole."""

from collections.abc import Callable

import numpy as np
import pytest
from helpers.models import sharded
from helpers.oracles.spmd import PLAN, partitioned, run_joined, whole
from helpers.random_programs import spmd

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import PassError

BATCH = 25


def _check_batch(first: int, parts: bool = False) -> list[str]:
    """Failures among the programs `first` and following."""
    failures = []
    for seed in range(first, first + BATCH):
        try:
            spmd.check(seed, parts=parts)
        except Exception as error:
            failures.append(f"{seed}: {type(error).__name__}: {error}")
    return failures


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(i, marks=() if i < BATCH else pytest.mark.slow)
        for i in range(0, 3000, BATCH)
    ],
)
def test_random_programs_are_equal(first: int, elsewhere) -> None:
    assert elsewhere.submit(_check_batch, first).result(300) == []


@pytest.mark.slow  # random ones are, above
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(i, marks=() if i < BATCH else pytest.mark.slow)
        for i in range(0, 3000, BATCH)
    ],
)
def test_random_programs_over_parts_of_axes_are_equal(first: int, elsewhere) -> None:
    assert elsewhere.submit(_check_batch, first, True).result(300) == []


def _model_error(name: str, plan: str) -> float:
    axes, cut = (sharded.PLANS | sharded.SEQUENCES)[plan]
    arguments = sharded.models()[name].arguments
    expected = whole(sharded.gradient_text(name), arguments)
    found = partitioned(sharded.annotate(name, axes, cut), arguments)
    return max(
        float(np.abs(a - b).max() / (1e-3 + np.abs(b).max()))
        for a, b in zip(found, expected, strict=True)
    )


FAST = {("mlp", "dp3"), ("gpt", "dp2-tp2"), ("cnn", "zero3-tp2")}
EVERY = [
    (model, plan)
    for model in ("mlp", "block", "cnn", "gpt", "llama")
    for plan, (axes, cut) in sharded.PLANS.items()
    if sharded.fits(model, axes, cut)
]
EVERY += [(m, p) for m in ("block", "gpt", "llama") for p in sharded.SEQUENCES]


@pytest.mark.parametrize(
    ("model", "plan"),
    [pytest.param(*c, marks=() if c in FAST else pytest.mark.slow) for c in EVERY],
)
def test_gradient_programs_are_equal(model: str, plan: str, elsewhere) -> None:
    assert elsewhere.submit(_model_error, model, plan).result(300) < 1e-5


def test_a_replicated_plan_changes_nothing() -> None:
    text = sharded.annotate("mlp", {"dp": 2}, lambda name, shape: {})
    module = parse(text)
    pipeline(PLAN).run(module)
    assert "pcp.all" not in str(module)
    before = parse(sharded.gradient_text("mlp"))
    count = str(before).count("stablehlo.")
    homes = str(module).split("module @m_")[1:]
    assert [home.count("stablehlo.") for home in homes] == [count, count]


def test_propagation_is_idempotent() -> None:
    axes, plan = sharded.PLANS["zero3-tp2"]
    module = parse(sharded.annotate("gpt", axes, plan))
    propagate = pipeline("builtin.module(pcp-propagate-sharding)")
    once = str(propagate.run(module))
    assert str(propagate.run(module)) == once


SORTED = """
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<4x6xf32> {pcp.sharding =
    #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<4x6xf32> {
  %bound = BOUND
  %y = "stablehlo.sort"(%x) <{dimension = 1 : i64}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.minimum %a, %bound : tensor<f32>
    %d = stablehlo.minimum %b, %bound : tensor<f32>
    %less = stablehlo.compare LT, %c, %d : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}
"""


def test_a_comparator_may_use_constants_from_outside() -> None:
    """As MLIR's canonicalization leaves the one that JAX writes."""
    text = SORTED.replace("BOUND", "stablehlo.constant dense<9.0> : tensor<f32>")
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    (found,) = partitioned(text, [x])
    np.testing.assert_array_equal(found, np.sort(x, axis=1))
    first = "stablehlo.slice %x [0:1, 0:1] : (tensor<4x6xf32>) -> tensor<1x1xf32>"
    reshape = "stablehlo.reshape %s : (tensor<1x1xf32>) -> tensor<f32>"
    other = SORTED.replace("%bound = BOUND", f"%s = {first}\n  %bound = {reshape}")
    with pytest.raises(PassError, match="its body uses a value from outside"):
        partitioned(other, [x])


# --- the suite would notice: mutations of what partition makes ---


def _communicates(op: ir.Operation) -> bool:
    return op.name.startswith("pcp.") and "axes" in op.attributes


def _slices(op: ir.Operation) -> bool:
    return op.name == "stablehlo.slice"


def _found(module: ir.Module) -> list[list[ir.Operation]]:
    """Each collective and slice of the plan as it stands on all members."""
    every: list[list[ir.Operation]] = []
    for home in module.body.operations:
        if home.operation.name == "builtin.module":
            every.append([])
            home.operation.walk(lambda op, own=every[-1]: _note(op.operation, own))
    return [list(ops) for ops in zip(*every, strict=True)]


def _note(op: ir.Operation, own: list[ir.Operation]) -> ir.WalkResult:
    if _communicates(op) or _slices(op):
        own.append(op)
    return ir.WalkResult.ADVANCE


def _drop(ops: list[ir.Operation]) -> bool:
    """Hand the operand on, where the types allow it."""
    if not _communicates(ops[0]) or any(
        op.operands[0].type != op.results[0].type for op in ops
    ):
        return False
    for op in ops:
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()
    return True


def _swap_kind(ops: list[ir.Operation]) -> bool:
    """A sum becomes a maximum, and the other way round."""
    if "kind" not in ops[0].attributes:
        return False
    for op in ops:
        kind = ir.StringAttr(op.attributes["kind"]).value
        with op.context:
            op.attributes["kind"] = ir.StringAttr.get({"sum": "max"}.get(kind, "sum"))
    return True


def _shift(ops: list[ir.Operation]) -> bool:
    """Every member takes the slice of the next one, where they differ."""
    keys = ("start_indices", "limit_indices")
    if not _slices(ops[0]) or len({str(op.attributes[keys[0]]) for op in ops}) == 1:
        return False
    if len({str(op.results[0].type) for op in ops}) > 1:
        return False
    taken = [[op.attributes[key] for key in keys] for op in ops]
    for op, attributes in zip(ops, taken[1:] + taken[:1], strict=True):
        for key, attribute in zip(keys, attributes, strict=True):
            op.attributes[key] = attribute
    return True


MUTATIONS: tuple[Callable[[list[ir.Operation]], bool], ...] = (
    _drop,
    _swap_kind,
    _shift,
)


def _caught(model: str, plan: str) -> tuple[int, int]:
    """(caught, all) over the collectives and slices, each mutation in turn."""
    axes, cut = sharded.PLANS[plan]
    arguments = sharded.models()[model].arguments
    module = parse(sharded.annotate(model, axes, cut))
    pipeline(PLAN).run(module)
    expected = run_joined(module, arguments)
    caught = total = 0
    for which in range(len(_found(module))):
        for mutate in MUTATIONS:
            mutant = parse(str(module))
            if not mutate(_found(mutant)[which]):
                continue
            total += 1
            caught += not _same(mutant, arguments, expected)
    return caught, total


def _same(module: ir.Module, inputs, expected) -> bool:
    try:
        found = run_joined(module, inputs)
    except (PassError, ValueError):
        return False
    return all(
        np.abs(a - b).max(initial=0) <= 1e-5 * (1e-3 + np.abs(b).max(initial=0))
        for a, b in zip(found, expected, strict=True)
    )


#: A softmax is the same for any number that it takes off, and its gradient's count of
#: greatest elements is one: there a sum for a maximum changes nothing.
MUTATED = {
    "fast": [("mlp", "dp2-tp2")],
    "all": [
        ("mlp", "dp2-tp2"),
        ("block", "zero3-tp2"),
        ("cnn", "zero3-tp2"),
        ("gpt", "dp2-tp2"),
        ("llama", "zero3"),
    ],
}


@pytest.mark.parametrize(
    "which",
    ["fast", pytest.param("all", marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_mutants_are_caught(which: str, elsewhere) -> None:
    counts = [
        elsewhere.submit(_caught, *program).result(900) for program in MUTATED[which]
    ]
    caught, total = map(sum, zip(*counts, strict=True))
    assert total >= 10
    assert caught / total >= 0.95


UNREDUCED = """"pcp.mesh"() {axes = [#pcp.axis<"a", 2>, #pcp.axis<"b", 2>],
    devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<4x6xf32> {pcp.sharding = #pcp.sharding<@m, [["a"], []], [],
    []>}) -> tensor<4x6xf32> {
  %0 = "pcp.constraint"(%x) {sharding = #pcp.sharding<@m, [SAID], [], ["b"]>}
      : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %1 = stablehlo.tanh %0 : tensor<4x6xf32>
  %2 = stablehlo.add %1, %0 : tensor<4x6xf32>
  return %2 : tensor<4x6xf32>
}"""


@pytest.mark.parametrize("dims", ['["a"], []', "[], []", '[], ["a"]'])
def test_a_value_is_made_partial_sums(dims: str) -> None:
    """What is no sum yet is kept by one member of each group."""
    text = UNREDUCED.replace("SAID", dims)
    data = [np.arange(24, dtype=np.float32).reshape(4, 6) / 8]
    (found,), (expected,) = partitioned(text, data), whole(_plain(text), data)
    np.testing.assert_array_equal(found, expected)


def _plain(text: str) -> str:
    """The program without its constraint."""
    start, end = text.index('%0 = "pcp.constraint"'), text.index("%1 =")
    return (text[:start] + text[end:]).replace("%0", "%x")
