"""Random programs that write into tensors: slices, scatters, aliases and forks.

Values are small integers, so that each result has one right value, to the bit.
"""

import random
import re
from collections.abc import Callable, Sequence

import numpy as np
from helpers.random_programs import ops
from helpers.random_programs.ops import Program, Value

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.dialect.hlo_indexing import Windows, scatter

CACHE, ROWS = (6, 4), (2, 4)
SHAPES = (CACHE, CACHE, ROWS, (4,))
"""Of the floating arguments; the last argument is a position, an i32 scalar."""


class Updates(Program):
    """A program under construction; `position` is its integer argument."""

    def __init__(self, rng: random.Random, values: Sequence[Value], at: Value) -> None:
        super().__init__(rng)
        self.values, self.position = list(values), at

    def shaped(self, shape: tuple[int, ...]) -> Value:
        """A value of this shape; there is an argument of it at least."""
        return self.rng.choice([v for v in self.values if hlo.shape_of(v) == shape])

    def start(self) -> Value:
        """Where to write: a constant, or what only the caller knows."""
        return self.indices(()) if self.rng.random() < 0.5 else self.position


def written(p: Updates) -> Value:
    """Rows of a cache, at a position that may be out of range."""
    zero = hlo.zeros(p.position.type)
    starts = [p.start(), zero]
    return hlo.dynamic_update_slice(p.shaped(CACHE), p.shaped(ROWS), starts)


def scattered(p: Updates) -> Value:
    """Rows set or added at two indices, equal ones among them."""
    windows = Windows((1,), (0,), (), (), (0,), 1)
    combine = hlo.add if p.rng.random() < 0.5 else (lambda old, new: new)
    indices = p.indices((2,)) if combine is hlo.add else _distinct(p)
    return scatter(p.shaped(CACHE), indices, p.shaped(ROWS), windows, combine)


def _distinct(p: Updates) -> Value:
    numbers = np.array(p.rng.sample(range(CACHE[0]), ROWS[0]), np.int32)
    i32 = ir.IntegerType.get_signless(32)
    dense = ir.DenseElementsAttr.get(numbers, type=i32, shape=[ROWS[0]])
    return hlo.op("constant", [], [hlo.tensor((ROWS[0],), i32)], value=dense).result


def looped(p: Updates) -> Value:
    """Rounds that each write a slice of what the round before left: three, or
    as many as the caller says, which may be none."""
    cache, rows = p.shaped(CACHE), p.shaped(ROWS)
    i32 = p.position.type
    types = [i32, cache.type]
    rounds = p.position if p.rng.random() < 0.5 else hlo.constant(3, i32)
    made = hlo.op("while", [hlo.zeros(i32), cache], types, regions=2)
    hlo.body(made, types, lambda k, _: hlo.compare("LT", k, rounds))

    def body(k: Value, x: Value) -> list[Value]:
        new = hlo.dynamic_update_slice(x, rows, [k, hlo.zeros(i32)])
        return [hlo.add(k, hlo.constant(1, i32)), new]

    hlo.body(made, types, body, region=1)
    return made.results[1]


def filled(p: Updates, row_of_another: bool = False) -> Value:
    """One to three stacks that a loop fills, each round a row: of what it carries,
    or with the old row to that, too. They may begin with one tensor.

    With `row_of_another` some only nearly so: see the words below.
    """
    rng, i32 = p.rng, p.position.type
    type_ = hlo.tensor(CACHE, ir.F32Type.get())
    first = rng.choice((p.shaped(CACHE), hlo.zeros(type_), hlo.constant(2, type_)))
    starts = [first, *(rng.choice((first, p.shaped(CACHE))) for _ in range(2))]
    starts = starts[: rng.randrange(1, 4)]
    near = ("nothing", "its row", *(["another"] if row_of_another else []))
    reads = [rng.choice(near) for _ in starts]
    row = hlo.reshape(p.shaped((4,)), (1, 4))
    last, shift = CACHE[0] - 1, rng.choice((0, 2))
    rounds = rng.choice((last, last + 1)) if row_of_another else last + 1
    bound = hlo.constant(rounds, i32)
    types = [i32, row.type, *(x.type for x in starts)]
    made = hlo.op("while", [hlo.zeros(i32), row, *starts], types, regions=2)
    hlo.body(made, types, lambda k, *_: hlo.compare("LT", k, bound))

    def body(k: Value, x: Value, *stacks: Value) -> list[Value]:
        zero, more = hlo.zeros(i32), hlo.add(k, hlo.constant(shift, i32))
        down = hlo.subtract(hlo.constant(last, i32), k)
        at = [down, zero]
        if shift:
            over = hlo.compare("GT", more, hlo.constant(last, i32), "SIGNED")
            less = hlo.subtract(more, hlo.constant(last + 1, i32))
            at = [hlo.select(over, less, more), zero]
        new = []
        for stack, read in zip(stacks, reads, strict=True):
            own = {"its row": at, "another": [zero, zero]}.get(read)
            old = hlo.dynamic_slice(stack, own, (1, 4)) if own else row
            new.append(hlo.dynamic_update_slice(stack, hlo.add(x, old), at))
        return [hlo.add(k, hlo.constant(1, i32)), hlo.add(x, row), *new]

    hlo.body(made, types, body, region=1)
    p.values += list(made.results)[3:]
    return made.results[2]


def nearly_filled(p: Updates) -> Value:
    """Stacks of which a row stays as it was, or a round reads another row, or not."""
    return filled(p, row_of_another=True)


def branched(p: Updates) -> Value:
    """A cache as it was, or with rows written, as the caller says."""
    cache, rows, i32 = p.shaped(CACHE), p.shaped(ROWS), p.position.type
    at = [hlo.constant(1, i32), hlo.zeros(i32)]
    made = hlo.op("case", [p.position], [cache.type], regions=2)
    hlo.body(made, [], lambda: cache)
    hlo.body(made, [], lambda: hlo.dynamic_update_slice(cache, rows, at), region=1)
    return made.results[0]


def alias(p: Updates) -> Value:
    """The same numbers, which IREE finds out or knows."""
    x = p.any()
    return p.rng.choice(
        (
            lambda: hlo.reshape(x, [1, *hlo.shape_of(x)]),
            lambda: hlo.add(x, hlo.zeros(x.type)),
            lambda: hlo.transpose(hlo.transpose(x, _turned(x)), _turned(x)),
        )
    )()


def _turned(x: Value) -> list[int]:
    return [*reversed(range(len(hlo.shape_of(x))))]


OPS = (
    *(written, written, written, scattered, scattered, looped, branched),
    *(alias, alias, ops.dot, nearly_filled),
    *(ops.unary, ops.binary, ops.scaled, ops.slice_),
    *(ops.reduce, ops.masked),
)


FILLING = (
    *(filled, filled, filled, alias, alias, ops.dot, ops.unary),
    *(ops.binary, ops.binary, ops.scaled, ops.slice_, ops.reduce, ops.masked),
)
"""Ops of programs that write into nothing but stacks that loops fill."""


Kinds = Sequence[Callable[[Updates], Value | None]]
Results = Sequence[Value]
Finish = Callable[[Results], Results]


def program(
    seed: int,
    name: str = "main",
    *,
    named: bool = False,
    finish: Finish = lambda results: results,
    kinds: Kinds = OPS,
) -> str:
    """A function's text; `named` makes its first argument and a result one tensor.

    `kinds` are the ops to draw from; the first of them makes the first result.
    """
    rng = random.Random(seed)
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)
        types = [*(hlo.tensor(s, f32) for s in SHAPES), hlo.tensor((), i32)]
        with ir.InsertionPoint(module.body):
            blank = ir.TypeAttr.get(ir.FunctionType.get(types, []))
            function = hlo.op(
                "func.func",
                [],
                [],
                regions=1,
                sym_name=ir.StringAttr.get(name),
                function_type=blank,
            )
        places = [ir.Location.unknown()] * len(types)
        block = function.regions[0].blocks.append(*types, arg_locs=places)
        with ir.InsertionPoint(block):
            grown = _grown(
                Updates(rng, block.arguments[:-1], block.arguments[-1]), kinds
            )
            results = finish(grown)
            hlo.op("func.return", results, [])
        whole = ir.FunctionType.get(types, [v.type for v in results])
        function.attributes["function_type"] = ir.TypeAttr.get(whole)
        if named:
            _name(function, [r.type for r in results])
        return str(function)


def loss(seed: int) -> str:
    """`@main`, the sum of such a program's results; the arguments are `a0`, `a1`, ...

    The first two are parameters, the others data.
    """

    def summed(results: Results) -> Results:
        total, *more = (hlo.sum_all(x) for x in results)
        for x in more:
            total = hlo.add(total, x)
        return [total]

    text = program(seed, finish=summed)
    for i in range(len(SHAPES) + 1):
        role = "param" if i < 2 else "data"
        said = f'{{pcp.name = "a{i}", pcp.role = "{role}"}}'
        text = re.sub(rf"(%arg{i}: tensor<[^>]*>)", rf"\1 {said}", text, count=1)
    return text


def spread(seed: int, name: str = "main") -> str:
    """A program whose tensors are cut along the axis `a` of a mesh `@m`, or not."""
    rng, text = random.Random(f"spread {seed}"), program(seed, name)
    for i, shape in enumerate(SHAPES):
        dims = ["[]"] * len(shape)
        if (d := rng.randrange(-1, len(shape))) >= 0:
            dims[d] = '["a"]'
        said = f"{{pcp.sharding = #pcp.sharding<@m, [{', '.join(dims)}], [], []>}}"
        text = re.sub(rf"(%arg{i}: tensor<[^>]*>)", rf"\1 {said}", text, count=1)
    return text


def _grown(p: Updates, kinds: Kinds) -> list[Value]:
    """Three to eight ops; results may be arguments, and one value several times."""
    for _ in range(p.rng.randrange(3, 9)):
        made = p.rng.choice(kinds)(p)
        if made is not None:
            p.values.append(made)
    results = [kinds[0](p)]
    results += [p.rng.choice(p.values) for _ in range(p.rng.randrange(1, 5))]
    results += [p.rng.choice(results)] if p.rng.random() < 0.3 else []
    return results


def _name(function: ir.Operation, results: Sequence[ir.Type]) -> None:
    """One name and role for the first argument and the first result."""
    said = ir.DictAttr.get(
        {"pcp.name": ir.StringAttr.get("cache"), "pcp.role": ir.StringAttr.get("state")}
    )
    none = ir.DictAttr.get({})
    rest = [none] * len(SHAPES)
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([said, *rest])
    function.attributes["res_attrs"] = ir.ArrayAttr.get(
        [said, *[none] * (len(results) - 1)]
    )


def arguments(seed: int) -> list[np.ndarray]:
    """Small integers, and a position."""
    rng = np.random.default_rng(seed)
    drawn = [rng.integers(-4, 5, shape).astype(np.float32) for shape in SHAPES]
    return [*drawn, np.array(rng.integers(-2, 7), np.int32)]
