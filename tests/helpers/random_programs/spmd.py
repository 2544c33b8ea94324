"""Random programs over random meshes and layouts, against the whole program.

Data are small integers in float32, and every op keeps them so: sums are exact in any
order, and partitioned and whole results must be equal bit for bit.
"""

import random
from collections.abc import Callable, Sequence

import numpy as np
from helpers.oracles.spmd import add_mesh, partitioned, whole
from helpers.random_programs.ops import OPS, SIZES, Program, Value

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context, parse
from pcp.layout import Layout
from pcp.mesh import Mesh
from pcp.passes.core.rewriting import sweep

MESHES: tuple[dict[str, int], ...] = (
    {"a": 2},
    {"a": 3},
    {"a": 4},
    {"a": 2, "b": 2},
    {"a": 2, "b": 3},
    {"a": 2, "b": 2, "c": 2},
)

#: Meshes whose axes are also named in parts.
PARTED: tuple[dict[str, int], ...] = (
    {"a:(1)2": 2, "a:(2)2": 2},
    {"a:(1)2": 2, "a:(2)3": 3},
    {"a:(1)2": 2, "a:(2)2": 2, "b": 2},
)


def _wholes(axes: dict[str, int]) -> dict[str, int]:
    """The axes with their parts put together."""
    found: dict[str, int] = {}
    for name, size in axes.items():
        axis = name.partition(":")[0]
        found[axis] = found.get(axis, 1) * size
    return found


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
    parts: bool = False,
) -> tuple[str, list[np.ndarray]]:
    """A module with a mesh, some annotations, and inputs for `@main`.

    With `even` every annotated dimension is divided by the axes that cut it. An axis
    cuts an argument with probability `cut`. With `parts` layouts name parts of axes,
    and some values are in a sharding group.
    """
    rng = random.Random(seed)
    axes = rng.choice(PARTED if parts else MESHES)
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
            if parts:
                _group(rng, program.values)
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
    return _annotated(text, _wholes(axes), layouts, ends), inputs


def _group(rng: random.Random, values: Sequence[Value]) -> None:
    """Put values of one shape into a group."""
    first = rng.choice(values)
    alike = [v for v in values if hlo.shape_of(v) == hlo.shape_of(first)]
    group = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)
    for value in alike:
        ir.Operation.create("pcp.sharding_group", [], [value], {"group": group})


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


def check(seed: int, length: int = 8, *, parts: bool = False) -> None:
    """The partitioned program gives what the whole one gives, bit for bit."""
    text, inputs = random_program(seed, length, parts=parts)
    expected = whole(text, inputs)
    found = partitioned(text, inputs)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, result {i}")
