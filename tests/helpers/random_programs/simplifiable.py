"""Random small StableHLO programs, with what simplification looks for in them."""

from collections.abc import Callable, Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context

ARGUMENTS = ((2, 3), (3, 2), (3,), (), (2, 1, 3))
CONSTANTS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 3.0, float("inf"), -float("inf"))


class RandomProgram:
    """One `@main` of `length` ops over float tensors; `seed` decides all of it."""

    def __init__(self, seed: int, length: int) -> None:
        self.random = np.random.default_rng(seed)
        with make_context(), ir.Location.unknown():
            self.f32 = ir.F32Type.get()
            self.text = self._build(length)

    def arguments(self) -> list[np.ndarray]:
        """Normal numbers, with both zeros, the infinities and NaN among them."""
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], np.float32)
        arrays = []
        for shape in ARGUMENTS:
            x = self.random.normal(size=shape).astype(np.float32)
            odd = self.random.random(shape) < 0.2
            arrays.append(np.where(odd, self.random.choice(special, shape), x))
        return arrays

    def _build(self, length: int) -> str:
        module = ir.Module.create()
        types = [hlo.tensor(shape, self.f32) for shape in ARGUMENTS]
        with ir.InsertionPoint(module.body):
            blank = ir.TypeAttr.get(ir.FunctionType.get(types, []))
            function = hlo.op(
                "func.func",
                [],
                [],
                regions=1,
                sym_name=ir.StringAttr.get("main"),
                function_type=blank,
            )
        unknown = [ir.Location.unknown()] * len(types)
        block = function.regions[0].blocks.append(*types, arg_locs=unknown)
        with ir.InsertionPoint(block):
            values = list(block.arguments)
            for _ in range(length):
                values.append(self._step(values))
            results = values[-3:]
            hlo.op("func.return", results, [])
        whole = ir.FunctionType.get(types, [v.type for v in results])
        function.attributes["function_type"] = ir.TypeAttr.get(whole)
        return str(module)

    def _pick(self, values: Sequence[ir.Value], recent: float = 0.6) -> ir.Value:
        """Often a late one, so that chains grow."""
        if self.random.random() < recent:
            values = values[-4:]
        return values[int(self.random.integers(len(values)))]

    def _step(self, values: Sequence[ir.Value]) -> ir.Value:
        x = self._pick(values)
        step = STEPS[self.random.integers(len(STEPS))]
        return step(self, x, values) or hlo.negate(x)

    def same(self, x: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
        """Another value of x's type, or a constant."""
        alike = [v for v in values if v.type == x.type]
        if self.random.random() < 0.5:
            return hlo.constant_like(x, float(self.random.choice(CONSTANTS)))
        return alike[self.random.integers(len(alike))]


Step = Callable[[RandomProgram, ir.Value, Sequence[ir.Value]], ir.Value | None]


def _binary(build: Callable) -> Step:
    return lambda p, x, values: build(x, p.same(x, values))


def _unary(build: Callable) -> Step:
    return lambda p, x, values: build(x)


def _power(p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    exponent = float(p.random.choice([1.0, 0.5, -0.5]))
    return hlo.power(x, hlo.constant_like(x, exponent))


def _select(p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    test = hlo.compare("GT", p.same(x, values), p.same(x, values))
    if p.random.random() < 0.5:
        test = hlo.not_(test)
    return hlo.select(test, x, p.same(x, values))


def _convert(p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    wide = ir.F64Type.get() if p.random.random() < 0.7 else ir.F16Type.get()
    return hlo.convert(hlo.convert(x, wide), p.f32)


def _transpose(p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    return hlo.transpose(x, p.random.permutation(len(hlo.shape_of(x))).tolist())


def _reshape(p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    shape = [n for n in hlo.shape_of(x) if n != 1]
    shape.insert(p.random.integers(len(shape) + 1), 1)
    return hlo.reshape(x, shape)


def _broadcast(
    p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]
) -> ir.Value | None:
    shape = list(hlo.shape_of(x))
    if hlo.size(x) > 24 or len(shape) > 3:
        return None
    place = int(p.random.integers(len(shape) + 1))
    dims = [d + (d >= place) for d in range(len(shape))]
    grown = [n if n != 1 or p.random.random() < 0.5 else 2 for n in shape]
    grown.insert(place, int(p.random.integers(1, 3)))
    return hlo.broadcast_in_dim(x, grown, dims)


def _slice(p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    start = [int(p.random.integers(n)) for n in hlo.shape_of(x)]
    limit = [
        int(p.random.integers(lo + 1, n + 1))
        for lo, n in zip(start, hlo.shape_of(x), strict=True)
    ]
    steps = [int(p.random.integers(1, 3)) for _ in start]
    return hlo.slice_(x, start, limit, steps)


def _pad(p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]) -> ir.Value | None:
    if hlo.size(x) > 24:
        return None
    low, high = (p.random.integers(0, 2, len(hlo.shape_of(x))).tolist() for _ in "ab")
    return hlo.pad(x, hlo.scalar(0, p.f32), low, high)


def _concatenate(
    p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]
) -> ir.Value | None:
    rank = len(hlo.shape_of(x))
    if not rank or hlo.size(x) > 24:
        return None
    return hlo.concatenate([x, p.same(x, values)], int(p.random.integers(rank)))


def _split(
    p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]
) -> ir.Value | None:
    """Slices that touch, joined again."""
    shape = hlo.shape_of(x)
    wide = [d for d, n in enumerate(shape) if n > 1]
    if not wide:
        return None
    d = wide[0]
    middle = [1 if i == d else n for i, n in enumerate(shape)]
    start = [1 if i == d else 0 for i in range(len(shape))]
    left = hlo.slice_(x, [0] * len(shape), middle)
    return hlo.concatenate([left, hlo.slice_(x, start, list(shape))], d)


def _reduce(combine: Callable, start: float) -> Step:
    def step(
        p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]
    ) -> ir.Value | None:
        rank = len(hlo.shape_of(x))
        dims = [d for d in range(rank) if p.random.random() < 0.5]
        return hlo.reduce(x, hlo.scalar(start, p.f32), dims, combine)

    return step


def _reverse(p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    return hlo.reverse(x, [d for d in range(len(hlo.shape_of(x))) if d % 2 == 0])


def _dot(p: RandomProgram, x: ir.Value, values: Sequence[ir.Value]) -> ir.Value | None:
    """With a value that shares a dim, whatever the order of its dims."""
    for y in (v for v in values if len(hlo.shape_of(v)) in (1, 2)):
        for i, n in enumerate(hlo.shape_of(x)):
            for j, m in enumerate(hlo.shape_of(y)):
                if n == m > 1 and len(hlo.shape_of(x)) < 4:
                    return hlo.dot_general(x, y, contract=([i], [j]))
    return None


STEPS: tuple[Step, ...] = (
    *map(_binary, (hlo.add, hlo.subtract, hlo.multiply, hlo.divide)),
    *map(_binary, (hlo.maximum, hlo.minimum, hlo.add, hlo.multiply)),
    *map(_unary, (hlo.negate, hlo.abs, hlo.sqrt, hlo.floor)),
    _power,
    _select,
    _convert,
    _transpose,
    _transpose,
    _reshape,
    _reshape,
    _broadcast,
    _broadcast,
    _slice,
    _pad,
    _concatenate,
    _split,
    _reverse,
    _reduce(hlo.add, 0.0),
    _reduce(hlo.maximum, -float("inf")),
    _dot,
)
