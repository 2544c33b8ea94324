"""Random programs of ops that look over the border of a part, along cut dimensions.

Sizes that the mesh does not divide, strides, dilations of window and operand, padding
that is asymmetric, negative or between elements, windows wider than a part. Data stay
small integers: partitioned and whole results must be equal bit for bit. In every
second program all that can be cut is cut, however dear its halo.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import numpy as np
from helpers.oracles.spmd import partitioned, whole
from helpers.random_programs import ops as random_ops
from helpers.random_programs.ops import Program, Value
from helpers.random_programs.spmd import random_program

from pcp.compiler.catalog import pipeline
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.dialect.hlo_windows import (
    Convolution,
    Dims,
    Window,
    convolution,
    dilated,
    reduce_window,
)
from pcp.errors import PassError
from pcp.passes.sharding import factors, ways
from pcp.passes.sharding.propagation import Propagation

SIZES = (3, 4, 5, 6, 7, 9, 10, 13)


def _moved(p: Program, x: Value) -> list[int]:
    """One or two dimensions."""
    rank = len(hlo.shape_of(x))
    return p.rng.sample(range(rank), min(rank, p.rng.choice((1, 1, 2))))


def slice_(p: Program) -> Value | None:
    x = p.any()
    shape = hlo.shape_of(x)
    start, limit, strides = [0] * len(shape), list(shape), [1] * len(shape)
    for d in _moved(p, x):
        start[d] = p.rng.randrange(shape[d])
        limit[d] = p.rng.randrange(start[d] + 1, shape[d] + 1)
        strides[d] = p.rng.choice((1, 1, 2, 3))
    return hlo.slice_(x, start, limit, strides)


def pad(p: Program) -> Value | None:
    x = p.any()
    shape = hlo.shape_of(x)
    low, high, interior = ([0] * len(shape) for _ in range(3))
    for d in _moved(p, x):
        low[d], high[d] = (p.rng.randrange(-2, 5) for _ in range(2))
        interior[d] = p.rng.choice((0, 0, 1, 2))
        if dilated(shape[d], interior[d] + 1) + low[d] + high[d] < 1:
            return None
    return hlo.pad(x, hlo.scalar(3.0, hlo.element_type(x)), low, high, interior)


def concatenate(p: Program) -> Value | None:
    x = p.any()
    shape = hlo.shape_of(x)
    d = p.rng.randrange(len(shape))
    fit = [
        v
        for v in p.values
        if len(hlo.shape_of(v)) == len(shape)
        and all(
            m == n or e == d
            for e, (m, n) in enumerate(zip(hlo.shape_of(v), shape, strict=True))
        )
    ]
    parts = [p.rng.choice(fit) for _ in range(p.rng.choice((1, 1, 2)))]
    return hlo.concatenate([x, *parts], d)


def reverse(p: Program) -> Value | None:
    x = p.any()
    return hlo.reverse(x, _moved(p, x))


def _window(p: Program, x: Value, dilates: bool) -> Window | None:
    shape = hlo.shape_of(x)
    sizes, strides, base, dilations = ([1] * len(shape) for _ in range(4))
    padding = [(0, 0)] * len(shape)
    for d in _moved(p, x):
        sizes[d] = p.rng.choice((1, 2, 3, shape[d]))
        strides[d] = p.rng.choice((1, 1, 2, 3))
        if dilates:
            base[d], dilations[d] = p.rng.choice((1, 1, 2)), p.rng.choice((1, 1, 2))
            padding[d] = (p.rng.randrange(-1, 4), p.rng.randrange(-1, 4))
    window = Window(
        tuple(sizes), tuple(strides), tuple(base), tuple(dilations), tuple(padding)
    )
    return window if min(window.result_shape(shape)) > 0 else None


def pool(p: Program) -> Value | None:
    """Sums and maxima; the padding counts, as the initial value."""
    x = p.any()
    if (window := _window(p, x, dilates=True)) is None:
        return None
    init = hlo.scalar(p.rng.choice((0.0, 1.0)), hlo.element_type(x))
    combine = p.rng.choice((hlo.add, hlo.maximum))
    return p.small(reduce_window([x], [init], window, combine)[0])


def two_pools(p: Program) -> Value | None:
    """Two operands in one window op."""
    x = p.any()
    if (window := _window(p, x, dilates=True)) is None:
        return None
    init = hlo.scalar(1.0, hlo.element_type(x))
    both = reduce_window(
        [x, hlo.negate(x)],
        [init, init],
        window,
        lambda a, b, c, d: [hlo.add(a, c), hlo.maximum(b, d)],
    )
    return p.small(hlo.add(*both))


def unpool(p: Program) -> Value | None:
    """select_and_scatter, as max pooling's gradient; ties go to the first."""
    x = p.any()
    if (window := _window(p, x, dilates=False)) is None:
        return None
    shape = hlo.shape_of(x)
    padding = [
        (p.rng.randrange(n), p.rng.randrange(n)) if n > 1 else (0, 0)
        for n in window.sizes
    ]
    window = window.with_(padding=tuple(padding))
    first = [0] * len(shape)
    counts = window.result_shape(shape)
    if any(c > n for c, n in zip(counts, shape, strict=True)):
        return None
    source = hlo.slice_(hlo.negate(x), first, counts)
    init = hlo.scalar(p.rng.choice((0.0, 1.0)), hlo.element_type(x))
    made = hlo.op(
        "select_and_scatter",
        [x, source, init],
        [x.type],
        regions=2,
        window_dimensions=hlo.i64s(window.sizes),
        window_strides=hlo.i64s(window.strides),
        padding=hlo.i64_matrix(window.padding),
    )
    hlo.body(made, [init.type] * 2, lambda a, b: hlo.compare("GE", a, b))
    hlo.body(made, [init.type] * 2, hlo.add, region=1)
    return p.small(made.results[0])


def _convolution(p: Program, x: Value, kernel: Value, dims: Dims):
    """`x * kernel` with random strides, dilations and padding."""
    spatial = range(len(dims.input[2]))

    def some(*options: int) -> tuple[int, ...]:
        return tuple(p.rng.choice(options) for _ in spatial)

    how = Convolution(
        dims,
        some(1, 1, 2, 3),
        tuple((p.rng.randrange(-1, 4), p.rng.randrange(-1, 4)) for _ in spatial),
        some(1, 1, 2),
        some(1, 1, 2),
        tuple(p.rng.random() < 0.3 for _ in spatial),
    )
    if min(how.result_shape(hlo.shape_of(x), hlo.shape_of(kernel))) < 1:
        return None
    return p.small(convolution(x, kernel, how))


def _kernel(p: Program, shape: Sequence[int], x: Value) -> Value:
    """Small integers."""
    numbers = [p.rng.randrange(-2, 3) for _ in range(int(np.prod(shape)))]
    dense = ir.DenseElementsAttr.get(
        np.array(numbers, np.float32).reshape(shape),
        type=hlo.element_type(x),
        shape=list(shape),
    )
    type_ = hlo.tensor(shape, hlo.element_type(x))
    return hlo.op("constant", [], [type_], value=dense).result


def convolve(p: Program) -> Value | None:
    """A small kernel over one or two spatial dimensions."""
    if (x := p.pick(lambda r: r in (3, 4))) is None:
        return None
    shape = hlo.shape_of(x)
    b, *spatial, f = range(len(shape))
    count = len(spatial)
    sizes = [p.rng.choice((1, 2, 3)) for _ in spatial]
    kernel = _kernel(p, [*sizes, shape[f], p.rng.choice((1, 2))], x)
    own = tuple(range(count))
    dims = Dims((b, f, tuple(spatial)), (count, count + 1, own), (b, f, tuple(spatial)))
    return _convolution(p, x, kernel, dims)


def kernel_gradient(p: Program) -> Value | None:
    """A kernel about as large as the input: parts of it leave partial sums."""
    if (x := p.pick(lambda r: r == 3)) is None:
        return None
    b, s, f = hlo.shape_of(x)
    low, high = p.rng.choice((0, 1)), s - p.rng.choice((0, 1))
    if high - low < 2:
        return None
    kernel = hlo.slice_(hlo.negate(x), (0, low, 0), (b, high, f))
    # What the interpreter evaluates in any shape: features last, summed over.
    kernel = hlo.transpose(kernel, (1, 2, 0))
    return _convolution(p, x, kernel, Dims((0, 2, (1,)), (1, 2, (0,)), (0, 2, (1,))))


OPS: tuple[Callable[[Program], Value | None], ...] = (
    *(slice_, pad, concatenate, reverse, pool, two_pools, unpool),
    *(convolve, convolve, kernel_gradient, random_ops.binary),
)

#: Members that share unequally, for some of the programs.
WEIGHTS = {2: "[3, 1]", 3: "[1, 3, 2]", 4: "[2, 1, 1, 3]"}


def _shape(rng: random.Random) -> tuple[int, ...]:
    """One small enough for a second of its size."""
    while True:
        shape = tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 2, 3, 3, 4))))
        if np.prod(shape) <= 256:
            return shape


def program(seed: int, length: int = 5, ops=OPS) -> tuple[str, list[np.ndarray]]:
    """A module with a mesh, annotations on its border, and inputs for `@main`."""
    text, inputs = random_program(seed, length, ops=ops, shape=_shape, cut=0.9)
    rng = random.Random(seed)
    if rng.random() < 0.2:
        weighted = _weighted(text)
        text = weighted if _everyone_has_some(weighted) else text
    return text, inputs


def _weighted(text: str) -> str:
    """The first axis shares in unequal parts."""
    size = int(text.partition('#pcp.axis<"a", ')[2][0])
    split = f'split = #pcp.split<"a", {WEIGHTS[size]}>, sym_name = "m"'
    return text.replace('sym_name = "m"', split, 1)


def _everyone_has_some(text: str) -> bool:
    """Whether no annotation leaves a member nothing (annotations.py refuses that)."""
    try:
        pipeline("builtin.module(pcp-propagate-sharding)").run(parse(text))
    except PassError as error:
        if "leaves part" not in str(error):
            raise
        return False
    return True


@contextmanager
def eager() -> Iterator[None]:
    """Whatever can be cut is, at any price: exchanges that cost would avoid."""
    own = factors.operand_layouts
    with (
        patch.object(ways, "operand_layouts", lambda *a: own(*a)[:1]),
        patch.object(ways, "FLOPS_PER_BYTE", 1e-3),
        patch.object(Propagation, "_carries", lambda *a: True),
    ):
        yield


def check(seed: int) -> None:
    """The partitioned program gives what the whole one gives, bit for bit."""
    text, inputs = program(seed)
    expected = whole(text, inputs)
    with eager() if seed % 2 else nullcontext():
        found = partitioned(text, inputs)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, result {i}")
