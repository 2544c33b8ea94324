"""pcp-bucket-collectives: many small reductions travel as few large ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.base import Pass
from pcp.passes.rewriting import attributes, functions

Value = ir.Value

MIB = 1 << 20

#: Members may differ in these: no reduction moves past one, or two would wait.
POINTS = ("pcp.send", "pcp.recv", "pcp.sync", "pcp.start", "pcp.wait", "func.call")


@dataclass(frozen=True)
class BucketCollectives(Pass):
    """Join all_reduces of one kind into buckets of at most `bytes`.

    Assumes what pcp-partition leaves; does the same to every device's program. Into a
    bucket go all_reduces over the same axes, of the same kind, element and wire type,
    in program order (gradients: the order in which they are finished), none of which
    needs another's result. The bucket stands where its last member stood; what reads
    an earlier member moves behind it. Sums are of the same numbers; in a ring of more
    than two their order may depend on where they lie, alike on all members.

    Before:

        %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m}
            : (tensor<4xf32>) -> tensor<4xf32>
        %1 = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m}
            : (tensor<2x3xf32>) -> tensor<2x3xf32>

    After:

        %b1 = stablehlo.reshape %b : (tensor<2x3xf32>) -> tensor<6xf32>
        %c = stablehlo.concatenate %a, %b1, dim = 0
        %r = "pcp.all_reduce"(%c) {axes = ["dp"], kind = "sum", mesh = @m}
            : (tensor<10xf32>) -> tensor<10xf32>
        %0 = stablehlo.slice %r [0:4]
        %s = stablehlo.slice %r [4:10]
        %1 = stablehlo.reshape %s : (tensor<6xf32>) -> tensor<2x3xf32>
    """

    name = "pcp-bucket-collectives"
    bytes: int = 4 * MIB

    def run(self, module: ir.Module) -> None:
        """Bucket the reductions of every function."""
        with module.context:
            for function in _functions(module):
                block = function.regions[0].blocks[0]
                for bucket in list(_buckets(block, self.bytes)):
                    if len(bucket.members) > 1:
                        _join(bucket)


def _functions(module: ir.Module) -> Iterator[ir.Operation]:
    """The functions of a module, or of each device's."""
    yield from functions(module)
    for view in module.body.operations:
        if view.operation.name == "builtin.module":
            for inner in view.operation.regions[0].blocks[0].operations:
                if inner.operation.name == "func.func" and inner.regions[0].blocks:
                    yield inner.operation


@dataclass(eq=False)
class _Bucket:
    """All_reduces that may travel together, and what reads them so far."""

    members: list[ir.Operation] = field(default_factory=list)
    size: int = 0
    readers: list[ir.Operation] = field(default_factory=list)
    results: set[Value] = field(default_factory=set)

    def reads(self, op: ir.Operation) -> bool:
        """Whether the op needs a member's result, directly or not."""
        return any(value in self.results for value in _used(op))


def _buckets(block: ir.Block, limit: int) -> Iterator[_Bucket]:
    """Fill buckets in program order; one is given out once nothing more may go in."""
    open_: dict[tuple, _Bucket] = {}
    for view in block.operations:
        op = view.operation
        if op.name in POINTS:
            yield from open_.values()
            open_.clear()
        key = _key(op)
        bucket = open_.get(key) if key else None
        if key and bucket and (bucket.reads(op) or bucket.size + _bytes(op) > limit):
            yield open_.pop(key)
            bucket = None
        for name, other in list(open_.items()):
            if not other.reads(op):
                continue
            if key:  # a later member of `other` could not stand in front of this one
                yield open_.pop(name)
            else:
                other.readers.append(op)
                other.results.update(op.results)
        if key:
            bucket = open_.setdefault(key, _Bucket())
            bucket.members.append(op)
            bucket.size += _bytes(op)
            bucket.results.update(op.results)
    yield from open_.values()


def _key(op: ir.Operation) -> tuple | None:
    """What all members of a bucket share; None for what goes into none."""
    if op.name != "pcp.all_reduce":
        return None
    own = {name: str(op.attributes[name]) for name in op.attributes}
    own.pop("channel", None)
    return str(hlo.element_type(op.results[0])), *sorted(own.items())


def _bytes(op: ir.Operation) -> int:
    type_ = ir.RankedTensorType(op.results[0].type)
    element = type_.element_type
    width = 64 if isinstance(element, ir.ComplexType) else element.width
    return prod(type_.shape) * max(8, width) // 8


def _used(op: ir.Operation) -> Iterator[Value]:
    """The operands, and what regions use."""
    yield from op.operands
    for region in op.regions:
        for inner in region.blocks:
            for nested in inner.operations:
                yield from _used(nested.operation)


def _join(bucket: _Bucket) -> None:
    """One all_reduce at the last member's place; readers of earlier ones follow."""
    *_, last = bucket.members
    with ir.InsertionPoint(last), last.location:
        flat = [
            hlo.reshape(op.operands[0], [hlo.size(op.results[0])])
            for op in bucket.members
        ]
        joined = hlo.concatenate(flat, 0)
        reduced = ir.Operation.create(
            "pcp.all_reduce",
            operands=[joined],
            results=[joined.type],
            attributes=attributes(last),
        ).results[0]
        parts = _cut(reduced, bucket.members)
    readers = [op for op in bucket.readers if op.is_before_in_block(last)]
    for op, part in zip(bucket.members, parts, strict=True):
        op.results[0].replace_all_uses_with(part)
    anchor = last
    for op in readers:
        op.move_after(anchor)
        anchor = op
    for op in bucket.members:
        op.erase()


def _cut(whole: Value, members: Sequence[ir.Operation]) -> list[Value]:
    """Each member's part of the joined result."""
    parts, start = [], 0
    for op in members:
        shape = hlo.shape_of(op.results[0])
        part = hlo.slice_(whole, [start], [start + prod(shape)])
        parts.append(hlo.reshape(part, shape))
        start += prod(shape)
    return parts
