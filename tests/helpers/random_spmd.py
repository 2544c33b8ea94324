"""Random programs over random meshes and layouts, against the whole program.

Data are small integers in float32, and every op keeps them so: sums are exact in any
order, and partitioned and whole results must be equal bit for bit.
"""

import random
from collections.abc import Callable, Sequence

import numpy as np

from pcp.compiler import lockstep
from pcp.compiler.catalog import pipeline
from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.context import make_context, parse
from pcp.dialect.hlo_indexing import Windows, gather, scatter
from pcp.layout import Layout, join, shard
from pcp.mesh import Mesh
from pcp.passes.rewriting import sweep
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.ports import port_shardings

MESHES: tuple[dict[str, int], ...] = (
    {"a": 2},
    {"a": 3},
    {"a": 4},
    {"a": 2, "b": 2},
    {"a": 2, "b": 3},
    {"a": 2, "b": 2, "c": 2},
)
SIZES = (1, 2, 3, 4, 5, 6, 8, 12)
MODULUS = 5.0

Value = ir.Value


class Program:
    """Grows a function op by op at the insertion point."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values: list[Value] = []

    def pick(self, rank: Callable[[int], bool] = lambda r: True) -> Value | None:
        """A value of a suitable rank, later ones more often."""
        fit = [v for v in self.values if rank(len(hlo.shape_of(v)))]
        return self.rng.choice(fit[-4:]) if fit else None

    def any(self) -> Value:
        """Any value, later ones more often."""
        return self.rng.choice(self.values[-4:])

    def small(self, x: Value) -> Value:
        """Bounded integers again."""
        return hlo.remainder(x, hlo.constant_like(x, MODULUS))

    def indices(self, shape: Sequence[int]) -> Value:
        """Some integers, partly out of range."""
        count = int(np.prod(shape)) if shape else 1
        numbers = np.array([self.rng.randrange(-2, 9) for _ in range(count)], np.int32)
        i32 = ir.IntegerType.get_signless(32)
        dense = ir.DenseElementsAttr.get(
            numbers.reshape(shape), type=i32, shape=list(shape)
        )
        return hlo.op("constant", [], [hlo.tensor(shape, i32)], value=dense).result


# --- one function an op: the new value, or None where nothing fits ---


def unary(p: Program) -> Value | None:
    x = p.any()
    return p.rng.choice((hlo.negate, hlo.abs, hlo.sign))(x)


def binary(p: Program) -> Value | None:
    x = p.any()
    same = [v for v in p.values if v.type == x.type]
    build = p.rng.choice((hlo.add, hlo.multiply, hlo.maximum, hlo.subtract))
    return p.small(build(x, p.rng.choice(same)))


def scaled(p: Program) -> Value | None:
    x = p.any()
    return p.small(hlo.multiply(x, hlo.constant_like(x, 2.0)))


def masked(p: Program) -> Value | None:
    x = p.any()
    return hlo.select(hlo.compare("GT", x, hlo.zeros(x.type)), x, hlo.negate(x))


def transpose(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 2)) is None:
        return None
    order = list(range(len(hlo.shape_of(x))))
    p.rng.shuffle(order)
    return hlo.transpose(x, order)


def reshape(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    shape = list(hlo.shape_of(x))
    d = p.rng.randrange(len(shape))
    if len(shape) > 1 and p.rng.random() < 0.5:
        d = min(d, len(shape) - 2)
        shape[d : d + 2] = [shape[d] * shape[d + 1]]
    else:
        divisors = [n for n in range(1, shape[d] + 1) if shape[d] % n == 0]
        n = p.rng.choice(divisors)
        shape[d : d + 1] = [n, shape[d] // n]
    return hlo.reshape(x, shape)


def broadcast(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r <= 2)) is None:
        return None
    shape = list(hlo.shape_of(x))
    at = p.rng.randrange(len(shape) + 1)
    dims = [d if d < at else d + 1 for d in range(len(shape))]
    shape.insert(at, p.rng.choice(SIZES[1:5]))
    for d in dims:
        if shape[d] == 1 and p.rng.random() < 0.7:
            shape[d] = p.rng.choice((2, 4))
    return hlo.broadcast_in_dim(x, shape, dims)


def reduce(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    rank = len(hlo.shape_of(x))
    dims = p.rng.sample(range(rank), p.rng.randrange(1, rank + 1))
    element = hlo.element_type(x)
    if p.rng.random() < 0.3:
        low = hlo.scalar(float("-inf"), element)
        return hlo.reduce(x, low, dims, hlo.maximum)
    start = hlo.scalar(0.0 if p.rng.random() < 0.8 else 1.0, element)
    return p.small(hlo.reduce(x, start, dims, hlo.add))


def dot(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    shape = hlo.shape_of(x)
    d = p.rng.randrange(len(shape))
    others = [
        (v, e)
        for v in p.values
        for e, n in enumerate(hlo.shape_of(v))
        if n == shape[d] and len(hlo.shape_of(v)) + len(shape) <= 6
    ]
    if not others:
        return None
    y, e = p.rng.choice(others)
    batch = ([], [])
    pairs = [
        (i, j)
        for i, n in enumerate(shape)
        for j, m in enumerate(hlo.shape_of(y))
        if n == m and i != d and j != e
    ]
    if pairs and p.rng.random() < 0.5:
        i, j = p.rng.choice(pairs)
        batch = ([i], [j])
    return p.small(hlo.dot_general(x, y, batch=batch, contract=([d], [e])))


def concatenate(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    same = [v for v in p.values if v.type == x.type]
    return hlo.concatenate(
        [x, p.rng.choice(same)], p.rng.randrange(len(hlo.shape_of(x)))
    )


def slice_(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    shape = hlo.shape_of(x)
    d = p.rng.randrange(len(shape))
    start, limit, strides = [0] * len(shape), list(shape), [1] * len(shape)
    start[d] = p.rng.randrange(shape[d])
    limit[d] = p.rng.randrange(start[d] + 1, shape[d] + 1)
    strides[d] = p.rng.choice((1, 1, 2))
    return hlo.slice_(x, start, limit, strides)


def pad(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    rank = len(hlo.shape_of(x))
    low, high, interior = [0] * rank, [0] * rank, [0] * rank
    d = p.rng.randrange(rank)
    low[d], high[d] = p.rng.choice((0, 1, 2)), p.rng.choice((-0, 1))
    interior[d] = p.rng.choice((0, 0, 1))
    return hlo.pad(x, hlo.scalar(3.0, hlo.element_type(x)), low, high, interior)


def reverse(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    return hlo.reverse(x, [p.rng.randrange(len(hlo.shape_of(x)))])


def dynamic_slice(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    shape = hlo.shape_of(x)
    starts = [p.indices(()) for _ in shape]
    sizes = list(shape)
    d = p.rng.randrange(len(shape))
    sizes[d] = p.rng.randrange(1, shape[d] + 1)
    part = hlo.dynamic_slice(x, starts, sizes)
    if p.rng.random() < 0.5:
        return part
    return hlo.dynamic_update_slice(x, hlo.negate(part), [p.indices(()) for _ in shape])


def lookup(p: Program) -> Value | None:
    """Rows of a matrix, and the sum of updates to rows: an embedding and its VJP."""
    if (x := p.pick(lambda r: r == 2)) is None:
        return None
    shape = hlo.shape_of(x)
    batch = p.rng.choice(([4], [2, 3], [5]))
    windows = Windows((len(batch),), (0,), (), (), (0,), len(batch))
    indices = p.indices(batch)
    rows = gather(x, indices, windows, [1, shape[1]])
    if p.rng.random() < 0.4:
        return rows
    zeros = hlo.zeros(x.type) if p.rng.random() < 0.5 else x
    return p.small(scatter(zeros, indices, rows, windows, hlo.add))


def iota(p: Program) -> Value | None:
    x = p.pick(lambda r: r >= 1)
    if x is None:
        return None
    counted = hlo.iota(x.type, p.rng.randrange(len(hlo.shape_of(x))))
    return p.small(hlo.add(x, counted))


def window(p: Program) -> Value | None:
    """A moving sum along one dimension."""
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    shape = hlo.shape_of(x)
    d = p.rng.randrange(len(shape))
    from pcp.dialect.hlo_windows import Window, reduce_window

    ones = [1] * len(shape)
    sizes, strides = list(ones), list(ones)
    sizes[d] = min(shape[d], p.rng.choice((2, 3)))
    strides[d] = p.rng.choice((1, 2))
    padding = [(0, 0)] * len(shape)
    padding[d] = (p.rng.choice((0, 1)), p.rng.choice((0, 1)))
    how = Window(tuple(sizes), tuple(strides), tuple(ones), tuple(ones), tuple(padding))
    zero = hlo.scalar(0.0, hlo.element_type(x))
    return p.small(reduce_window([x], [zero], how, hlo.add)[0])


def loop(p: Program) -> Value | None:
    """Three rounds of x ← small(x + c) with a captured c."""
    x = p.any()
    same = [v for v in p.values if v.type == x.type]
    captured = p.rng.choice(same)
    i32 = hlo.tensor((), ir.IntegerType.get_signless(32))
    types = [i32, x.type]
    made = hlo.op("while", [hlo.zeros(i32), x], types, regions=2)
    hlo.body(made, types, lambda k, _: hlo.compare("LT", k, hlo.constant(3, i32)))
    hlo.body(
        made,
        types,
        lambda k, v: [hlo.add(k, hlo.constant(1, i32)), p.small(hlo.add(v, captured))],
        region=1,
    )
    return made.results[1]


def branches(p: Program) -> Value | None:
    """One of two ways, by a number that all members know."""
    x = p.any()
    same = [v for v in p.values if v.type == x.type]
    other = p.rng.choice(same)
    index = hlo.constant(
        p.rng.randrange(3), hlo.tensor((), ir.IntegerType.get_signless(32))
    )
    made = hlo.op("case", [index], [x.type], regions=2)
    hlo.body(made, [], lambda: hlo.negate(other))
    hlo.body(made, [], lambda: p.small(hlo.add(x, other)), region=1)
    return made.results[0]


OPS: tuple[Callable[[Program], Value | None], ...] = (
    *(unary, binary, scaled, masked, transpose, reshape, broadcast, reduce),
    *(dot, dot, dot, concatenate, slice_, pad, reverse, dynamic_slice, lookup),
    *(iota, window, loop, branches, binary, reduce, reshape),
)


# --- a whole case ---


def random_layout(
    rng: random.Random, shape: Sequence[int], mesh: Mesh, some: float, even: bool
) -> Layout:
    """Axes on random dimensions that have room for them, or that they divide."""
    axes = list(mesh.axes)
    rng.shuffle(axes)
    dims: list[tuple[str, ...]] = [()] * len(shape)
    for axis in axes:
        if shape and rng.random() < some:
            d = rng.randrange(len(shape))
            parts = mesh.count((*dims[d], axis))
            if shape[d] % parts == 0 if even else parts <= shape[d]:
                dims[d] += (axis,)
    return Layout(tuple(dims))


def _sharding(layout: Layout) -> str:
    dims = ", ".join("[" + ", ".join(f'"{a}"' for a in d) + "]" for d in layout.dims)
    return f"{{pcp.sharding = #pcp.sharding<@m, [{dims}], [], []>}}"


def _shape(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 2, 2, 2, 3))))


def random_program(
    seed: int,
    length: int = 8,
    *,
    even: bool = False,
    ops: Sequence[Callable[[Program], Value | None]] = OPS,
    shape: Callable[[random.Random], tuple[int, ...]] = _shape,
    cut: float = 0.6,
) -> tuple[str, list[np.ndarray]]:
    """A module with a mesh, some annotations, and inputs for `@main`.

    With `even` every annotated dimension is divided by the axes that cut it. An axis
    cuts an argument with probability `cut`.
    """
    rng = random.Random(seed)
    axes = rng.choice(MESHES)
    mesh = Mesh("m", axes)
    data = np.random.default_rng(seed)
    context = make_context()
    with context, ir.Location.unknown():
        f32 = ir.F32Type.get()
        shapes = [shape(rng) for _ in range(3)]
        module = ir.Module.create()
        block = ir.Block.create_at_start
        with ir.InsertionPoint(module.body):
            main = ir.Operation.create("func.func", regions=1)
        types = [hlo.tensor(s, f32) for s in shapes]
        block = main.regions[0].blocks.append(
            *types, arg_locs=[ir.Location.unknown()] * 3
        )
        program = Program(rng)
        program.values = list(block.arguments)
        with ir.InsertionPoint(block):
            while len(program.values) < 3 + length:
                value = rng.choice(ops)(program)
                if value is not None and hlo.size(value) <= 512:
                    program.values.append(value)
            results = [program.values[-1], rng.choice(program.values[3:])]
            ir.Operation.create("func.return", operands=results)
        sweep(main)  # what nobody reads is not what is tested
        main.attributes["sym_name"] = ir.StringAttr.get("main")
        main.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(types, [r.type for r in results])
        )
        text = str(module)
        layouts = [random_layout(rng, s, mesh, cut, even) for s in shapes]
        ends = [
            random_layout(rng, hlo.shape_of(r), mesh, 0.5, even)
            if rng.random() < 0.5
            else None
            for r in results
        ]
    inputs = [data.integers(-2, 3, s).astype(np.float32) for s in shapes]
    return _annotated(text, axes, layouts, ends), inputs


def _annotated(
    text: str,
    axes: dict[str, int],
    layouts: Sequence[Layout],
    ends: Sequence[Layout | None],
) -> str:
    """Put shardings on the function's border, and the mesh in front."""
    context = make_context()
    module = parse(text, context)
    with context:
        main = module.body.operations[0].operation

        def entries(given: Sequence[Layout | None]) -> ir.Attribute:
            return ir.ArrayAttr.get(
                [ir.Attribute.parse("{}" if g is None else _sharding(g)) for g in given]
            )

        main.attributes["arg_attrs"] = entries(layouts)
        main.attributes["res_attrs"] = entries(ends)
        add_mesh(module, axes)
    return str(module)


def add_mesh(module: ir.Module, axes: dict[str, int]) -> None:
    """A mesh `@m` of unnamed devices in front of everything."""
    named = ", ".join(f'#pcp.axis<"{a}", {n}>' for a, n in axes.items())
    text = f'"pcp.mesh"() {{axes = [{named}], devices = [], sym_name = "m"}} : () -> ()'
    ir.InsertionPoint.at_block_begin(module.body).insert(ir.Operation.parse(text))


def whole(text: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The program's results without any mesh."""
    module = parse(text)
    with module.context:
        for op in list(module.body.operations):
            if op.operation.name != "func.func":
                op.operation.erase()
        chlo = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
        pipeline(chlo).run(module)
        types = ir.FunctionType(_main_type(module)).inputs
        given = [lockstep.dense(x, t) for x, t in zip(inputs, types, strict=True)]
        results = stablehlo.eval_module(module, given)
        return [np.array(r).reshape(ir.ShapedType(r.type).shape) for r in results]


def _main_type(module: ir.Module) -> ir.Type:
    main = module.body.operations[0].operation
    return ir.TypeAttr(main.attributes["function_type"]).value


PLAN = (
    "builtin.module(pcp-propagate-sharding,pcp-insert-reshards,pcp-partition,"
    "pcp-verify-plan)"
)


def partitioned(
    text: str, inputs: Sequence[np.ndarray], passes: str = PLAN
) -> list[np.ndarray]:
    """The program's results on its mesh, joined."""
    module = parse(text)
    pipeline(passes).run(module)
    return run_joined(module, inputs)


def run_joined(module: ir.Module, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Cut the inputs, run all members in lockstep, join the results."""
    with module.context:
        (mesh,) = read_meshes(module).values()
        home = next(
            op.operation
            for op in module.body.operations
            if op.operation.name == "builtin.module"
        )
        main = home.regions[0].blocks[0].operations[0].operation
        count = len(
            ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
        )
        ins = port_shardings(main, "arg_attrs", len(inputs))
        outs = port_shardings(main, "res_attrs", count)
        parts = [
            shard(x, from_attribute(s), mesh) for x, s in zip(inputs, ins, strict=True)
        ]
        results = lockstep.run(module, "main", list(zip(*parts, strict=True)))
        joined = []
        for i, sharding in enumerate(outs):
            layout = from_attribute(sharding)
            pieces = [r[i] for r in results]
            shape = global_shape(pieces, layout, mesh)
            joined.append(join(pieces, shape, layout, mesh))
        return joined


def global_shape(
    pieces: Sequence[np.ndarray], layout: Layout, mesh: Mesh
) -> tuple[int, ...]:
    """The whole tensor's shape, from the parts of the members along each dimension."""
    shape = []
    for d, axes in enumerate(layout.dims):
        seen = {
            tuple(place[a] for a in axes): piece.shape[d]
            for place, piece in zip(mesh.members, pieces, strict=True)
        }
        shape.append(sum(seen.values()))
    return tuple(shape)


def check(seed: int, length: int = 8) -> None:
    """The partitioned program gives what the whole one gives, bit for bit."""
    text, inputs = random_program(seed, length)
    expected = whole(text, inputs)
    found = partitioned(text, inputs)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, result {i}")
