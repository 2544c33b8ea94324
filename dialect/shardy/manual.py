"""The body of `jax.shard_map`: one member's program, with collectives of its own.

    sdy.manual_computation(x) { ^bb(p: part of x): y = all_reduce(p) ... return y }

becomes the body in place, between `pcp.to_part` and `pcp.from_part`, and StableHLO's
collectives become pcp's. StableHLO names a group by its members' numbers, row by row
over the mesh; pcp by the axes along which they differ. Members that differ along axes
which the body leaves to the compiler alone compute the same.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np

from pcp.dialect import collectives, hlo
from pcp.dialect.bindings import ir
from pcp.dialect.inlining import CALL, erase_uncalled, inline_inside, inside

#: The member's own number, row by row over the mesh.
PLACE = "stablehlo.partition_id"

MANUAL = "sdy.manual_computation"

Groups = list[list[int]]

#: What a reduction's body does, by its only op.
_KINDS = {
    "stablehlo.add": "sum",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.multiply": "prod",
}


@dataclass(frozen=True)
class Axes:
    """A mesh's name and its axes' sizes, major first."""

    mesh: str
    sizes: dict[str, int]

    def of(self, groups: Groups) -> tuple[str, ...]:
        """The axes along which each group's members differ, in the group's order.

        `ValueError` where no axes of the mesh make these groups.
        """
        for count in range(1, len(self.sizes) + 1):
            for axes in permutations(self.sizes, count):
                if sorted(self.groups(axes)) == sorted(groups):
                    return axes
        raise ValueError(
            f"no axes of @{self.mesh} ({', '.join(self.sizes)}) make the groups "
            f"{groups}; communicate along whole axes"
        )

    def groups(self, axes: Sequence[str]) -> Groups:
        """The members that differ only along `axes`, numbered row by row."""
        names = list(self.sizes)
        numbers = np.arange(int(np.prod([*self.sizes.values()])))
        grid = numbers.reshape([*self.sizes.values()])
        rest = [names.index(a) for a in names if a not in axes]
        order = [*rest, *(names.index(a) for a in axes)]
        size = int(np.prod([self.sizes[a] for a in axes]))
        return grid.transpose(order).reshape(-1, size).tolist()


# --- calls ---

_CALL, _HIDDEN = '"func.call"(', '"sdy.call"('


def hide_calls(text: str) -> str:
    """Text whose calls are of Shardy's, if some may stand in a body of members.

    A call in an op that the context does not know finds no function, and the parser
    refuses it. Not for text without such an op.
    """
    return text.replace(_CALL, _HIDDEN) if "sdy.manual_computation" in text else text


def restore_calls(module: ir.Module) -> None:
    """Inline the calls in bodies of members; the others are calls again."""
    bodies = [op for op in inside(module.operation) if op.name == MANUAL]
    inlined = {name for op in bodies for name in inline_inside(op, module, "sdy.call")}
    for op in inside(module.operation):
        if op.name == "sdy.call":
            types = [result.type for result in op.results]
            callee = {"callee": op.attributes["callee"]}
            with ir.InsertionPoint(op), op.location:
                call = ir.Operation.create(CALL, types, list(op.operands), callee)
            for old, new in zip(op.results, call.results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()
    erase_uncalled(module, inlined)


# --- collectives ---


def collectives_in(op: ir.Operation) -> list[ir.Operation]:
    """StableHLO's collectives in `op`'s regions, at any depth."""
    return [inner for inner in inside(op) if inner.name in CONVERSIONS]


def knows_members(op: ir.Operation) -> bool:
    """Whether something in `op` knows of other members, or which one it is on."""
    known = {*CONVERSIONS, *CONVERTED, PLACE}
    return any(inner.name in known for inner in inside(op))


def names(text: str) -> set[str]:
    """The axes that `#sdy<manual_axes{"x", "y"}>` names."""
    return set(re.findall(r'"([^"]*)"', text))


def is_nested(op: ir.Operation) -> bool:
    """Whether the op stands in the body of another shard_map."""
    around = op.parent
    while around is not None and around.name != MANUAL:
        around = around.operation.parent
    return around is not None


# --- a shard_map in another, whose axes values of the outer one are alike along ---


def own_part(value: ir.Value, dims: Sequence[Sequence[str]], axes: Axes) -> ir.Value:
    """What this member has of a value, by the axes that cut each dimension."""
    counts = [prod(axes.sizes[a] for a in along) for along in dims]
    sizes = [n // c for n, c in zip(hlo.shape_of(value), counts, strict=True)]
    i32 = hlo.tensor((), ir.IntegerType.get_signless(32))
    starts = [
        hlo.multiply(_place_along(along, axes), hlo.constant(size, i32))
        for along, size in zip(dims, sizes, strict=True)
    ]
    return hlo.dynamic_slice(value, starts, sizes)


def _place_along(along: Sequence[str], axes: Axes) -> ir.Value:
    """This member's number among those that differ along the axes, major first."""
    i32 = ir.IntegerType.get_signless(32)
    place = hlo.constant(0, hlo.tensor((), i32))
    if not along:
        return place
    unsigned = hlo.tensor((), ir.IntegerType.get_unsigned(32))
    member = hlo.convert(hlo.op("partition_id", [], [unsigned]).result, i32)
    names = list(axes.sizes)
    for axis in along:
        size = hlo.constant_like(place, axes.sizes[axis])
        minor = prod(axes.sizes[n] for n in names[names.index(axis) + 1 :])
        own = hlo.divide(member, hlo.constant_like(place, minor))
        place = hlo.add(hlo.multiply(place, size), hlo.remainder(own, size))
    return place


def whole(part: ir.Value, dims: Sequence[Sequence[str]], axes: Axes) -> ir.Value:
    """The parts of the members along the axes, joined."""
    for dim, along in enumerate(dims):
        if along:
            shape = list(hlo.shape_of(part))
            shape[dim] *= prod(axes.sizes[a] for a in along)
            type_ = hlo.tensor(shape, hlo.element_type(part))
            how: dict[str, Any] = {"mesh": axes.mesh, "axes": tuple(along)}
            part = collectives.all_gather(part, type_, dim=dim, **how)
    return part


#: What says how tensors lie along axes that a body leaves to the compiler.
_HINTS = ("pcp.constraint", "pcp.reshard", "pcp.barrier_prop")


def drop_hints(op: ir.Operation) -> None:
    """Erase what lays tensors out in a body: each member computes them whole."""
    for inner in list(inside(op)):
        if inner.name in _HINTS:
            inner.results[0].replace_all_uses_with(inner.operands[0])
            inner.erase()
        elif inner.name == "pcp.sharding_group":
            inner.erase()


def convert(op: ir.Operation, axes: Axes) -> None:
    """One of StableHLO's collectives as pcp's; `ValueError` where pcp has none."""
    with ir.InsertionPoint(op), op.location:
        results = CONVERSIONS[op.name](op, axes)
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _numbers(op: ir.Operation, name: str) -> Groups:
    return np.array(ir.DenseIntElementsAttr(op.attributes[name])).tolist()


def _group(op: ir.Operation, axes: Axes) -> dict[str, Any]:
    return {"mesh": axes.mesh, "axes": axes.of(_numbers(op, "replica_groups"))}


def _integer(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


def _kind(op: ir.Operation) -> str:
    """The reduction that the op's body is."""
    names = [view.operation.name for view in op.regions[0].blocks[0].operations]
    kind = _KINDS.get(names[0]) if len(names) == 2 else None
    if kind is None:
        raise ValueError("members can only add, multiply, or take the larger or less")
    return kind


def _all_reduce(op: ir.Operation, axes: Axes) -> list[ir.Value]:
    group, kind = _group(op, axes), _kind(op)
    return [collectives.all_reduce(x, kind=kind, **group) for x in op.operands]


def _reduce_scatter(op: ir.Operation, axes: Axes) -> list[ir.Value]:
    dim = _integer(op, "scatter_dimension")
    given, type_ = op.operands[0], op.results[0].type
    group, kind = _group(op, axes), _kind(op)
    return [collectives.reduce_scatter(given, type_, dim=dim, kind=kind, **group)]


def _all_gather(op: ir.Operation, axes: Axes) -> list[ir.Value]:
    group, dim = _group(op, axes), _integer(op, "all_gather_dim")
    return [
        collectives.all_gather(x, r.type, dim=dim, **group)
        for x, r in zip(op.operands, op.results, strict=True)
    ]


def _all_to_all(op: ir.Operation, axes: Axes) -> list[ir.Value]:
    split, concat = (_integer(op, f"{n}_dimension") for n in ("split", "concat"))
    group = _group(op, axes)
    return [
        collectives.all_to_all(x, r.type, split=split, concat=concat, **group)
        for x, r in zip(op.operands, op.results, strict=True)
    ]


def _permute(op: ir.Operation, axes: Axes) -> list[ir.Value]:
    """Along as few axes as hold all pairs, so that groups stay small."""
    pairs = {(a, b) for a, b in _numbers(op, "source_target_pairs")}
    along, inner = _within(pairs, axes)
    (given,) = op.operands
    return [collectives.permute(given, mesh=axes.mesh, axes=along, pairs=inner)]


def _within(
    pairs: set[tuple[int, int]], axes: Axes
) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """The axes, and the pairs by place in a group, alike in each of them."""
    for count in range(1, len(axes.sizes) + 1):
        for along in permutations(axes.sizes, count):
            groups = axes.groups(along)
            first = list(enumerate(groups[0]))
            inner = [
                (i, j) for (i, a), (j, b) in product(first, first) if (a, b) in pairs
            ]
            if {(g[i], g[j]) for g in groups for i, j in inner} == pairs:
                return along, inner
    raise AssertionError("all axes together make one group of all members")


CONVERSIONS: dict[str, Callable[[ir.Operation, Axes], list[ir.Value]]] = {
    "stablehlo.all_gather": _all_gather,
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.collective_permute": _permute,
    "stablehlo.reduce_scatter": _reduce_scatter,
}

#: What they become.
CONVERTED = frozenset(
    f"pcp.{name}"
    for name in ("all_gather", "all_reduce", "all_to_all", "permute", "reduce_scatter")
)
