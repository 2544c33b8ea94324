"""pcp-bucket-collectives: many small collectives travel as few large ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from pcp.dialect import hlo
from pcp.dialect.base import integer, integers
from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import all_functions, attributes
from pcp.passes.core.walk import used

Value = ir.Value

MIB = 1 << 20

#: Members may differ in these: no reduction moves past one, or two would wait.
POINTS = ("pcp.send", "pcp.recv", "pcp.sync", "pcp.start", "pcp.wait", "func.call")


@dataclass(frozen=True)
class BucketCollectives(Pass):
    """Join collectives of one kind into buckets of at most `bytes`.

    Assumes what pcp-partition leaves; does the same to every device's program. Into a
    bucket go all_reduces over the same axes, of the same kind, element and wire type,
    in program order (gradients: the order in which they are finished), none of which
    needs another's result. The bucket stands where its last member stood; what reads
    an earlier member moves behind it. Sums are of the same numbers; in a ring of more
    than two their order may depend on where they lie, alike on all members.

    So go reduce_scatters and all_gathers of equal shares that are only returned (the
    gradients and the new parameters of ZeRO), of at most `bytes` / 64 together: what
    waits in them is held as a whole meanwhile, which ZeRO is to spare. What is
    computed with stays where it is, so that no parameter is gathered before its turn.

    Before:

        %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m}
            : (tensor<4xf32>) -> tensor<4xf32>
        %1 = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m}
            : (tensor<2x3xf32>) -> tensor<2x3xf32>

    After:

        %b1 = stablehlo.reshape %b : (tensor<2x3xf32>) -> tensor<6xf32>
        %c = stablehlo.concatenate %a, %b1, dim = 0
            : (tensor<4xf32>, tensor<6xf32>) -> tensor<10xf32>
        %r = "pcp.all_reduce"(%c) {axes = ["dp"], kind = "sum", mesh = @m}
            : (tensor<10xf32>) -> tensor<10xf32>
        %0 = stablehlo.slice %r [0:4] : (tensor<10xf32>) -> tensor<4xf32>
        %s = stablehlo.slice %r [4:10] : (tensor<10xf32>) -> tensor<6xf32>
        %1 = stablehlo.reshape %s : (tensor<6xf32>) -> tensor<2x3xf32>
    """

    name = "pcp-bucket-collectives"
    bytes: int = 4 * MIB

    def run(self, module: ir.Module) -> None:
        """Bucket the collectives of every function."""
        with module.context:
            for function in all_functions(module):
                block = function.regions[0].blocks[0]
                for bucket in list(_buckets(block, self.bytes)):
                    if len(bucket.members) > 1:
                        _join(bucket)


@dataclass(eq=False)
class _Bucket:
    """Collectives that may travel together, and what reads them so far."""

    members: list[ir.Operation] = field(default_factory=list)
    size: int = 0
    readers: list[ir.Operation] = field(default_factory=list)
    results: set[Value] = field(default_factory=set)

    def reads(self, op: ir.Operation) -> bool:
        """Whether the op needs a member's result, directly or not."""
        return any(value in self.results for value in used(op))


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
        most = limit // FORMS[op.name].share if key else 0
        if key and bucket and (bucket.reads(op) or bucket.size + _bytes(op) > most):
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
    if op.name not in FORMS:
        return None
    own = {name: str(op.attributes[name]) for name in op.attributes}
    if op.name != "pcp.all_reduce":
        if integers(op, "sizes") or not _is_returned(op):
            return None
        own = {n: said for n, said in own.items() if n not in ("dim", "sizes")}
        own["members"] = str(_members(op))
    own.pop("channel", None)
    return op.name, str(hlo.element_type(op.results[0])), *sorted(own.items())


def _is_returned(op: ir.Operation) -> bool:
    """Whether nothing is computed with the result in the function."""
    users = [use.owner.operation.name for use in op.results[0].uses]
    return bool(users) and set(users) == {"func.return"}


def _bytes(op: ir.Operation) -> int:
    """Bytes of the whole, which is alike on all members."""
    whole = max((op.operands[0], op.results[0]), key=hlo.size)
    type_ = ir.RankedTensorType(whole.type)
    element = type_.element_type
    width = 64 if isinstance(element, ir.ComplexType) else element.width
    return prod(type_.shape) * max(8, width) // 8


def _members(op: ir.Operation) -> int:
    """How many equal shares a scatter makes, or a gather joins."""
    dim = integer(op, "dim")
    sizes = hlo.shape_of(op.operands[0])[dim], hlo.shape_of(op.results[0])[dim]
    return max(sizes) // min(sizes) if min(sizes) else 1


def _join(bucket: _Bucket) -> None:
    """One collective at the last member's place; readers of earlier ones follow."""
    *_, last = bucket.members
    form = FORMS[last.name]
    with ir.InsertionPoint(last), last.location:
        rows = [form.pack(op) for op in bucket.members]
        whole = hlo.concatenate(rows, form.dim)
        joined = ir.Operation.create(
            last.name,
            operands=[whole],
            results=[hlo.tensor(form.shape(last, whole), hlo.element_type(whole))],
            attributes=attributes(last) | form.attributes(),
        ).results[0]
        parts = _cut(form, joined, bucket.members, rows)
    readers = [op for op in bucket.readers if op.is_before_in_block(last)]
    for op, part in zip(bucket.members, parts, strict=True):
        op.results[0].replace_all_uses_with(part)
    anchor = last
    for op in readers:
        op.move_after(anchor)
        anchor = op
    for op in bucket.members:
        op.erase()


def _cut(
    form: "BucketForm",
    whole: Value,
    members: Sequence[ir.Operation],
    rows: Sequence[Value],
) -> list[Value]:
    """Each member's part of the joined result."""
    parts, start = [], 0
    for op, row in zip(members, rows, strict=True):
        end = start + hlo.shape_of(row)[form.dim]
        first, limit = [0] * (form.dim + 1), list(hlo.shape_of(whole))
        first[form.dim], limit[form.dim] = start, end
        parts.append(form.unpack(op, hlo.slice_(whole, first, limit)))
        start = end
    return parts


# --- how a collective's tensors are laid side by side ---


@dataclass(frozen=True)
class BucketForm:
    """`pack` gives what is joined along `dim`, `unpack` a result of its part.

    `shape` is that of the joined collective's result. Buckets are of at most the
    pass's bytes by `share`.
    """

    pack: Callable[[ir.Operation], Value]
    shape: Callable[[ir.Operation, Value], Sequence[int]]
    unpack: Callable[[ir.Operation, Value], Value]
    dim: int = 1
    share: int = 64

    def attributes(self) -> dict[str, ir.Attribute]:
        """Those that differ from a member's."""
        if not self.dim:
            return {}
        return {"dim": hlo.i64(0), "sizes": ir.ArrayAttr.get([])}


def _flat(op: ir.Operation) -> Value:
    return hlo.reshape(op.operands[0], [hlo.size(op.operands[0])])


def _own_shape(op: ir.Operation, part: Value) -> Value:
    return hlo.reshape(part, hlo.shape_of(op.results[0]))


def _row(op: ir.Operation) -> Value:
    """`[1, elements]`: a member's share."""
    return hlo.reshape(op.operands[0], [1, hlo.size(op.operands[0])])


def _row_each(op: ir.Operation) -> Value:
    """`[members, elements]`: a row for each member's share."""
    n, d = _members(op), integer(op, "dim")
    shape = list(hlo.shape_of(op.operands[0]))
    apart = hlo.reshape(op.operands[0], [*shape[:d], n, shape[d] // n, *shape[d + 1 :]])
    order = [d, *(i for i in range(len(shape) + 1) if i != d)]
    return hlo.reshape(hlo.transpose(apart, order), [n, hlo.size(apart) // n])


def _from_rows(op: ir.Operation, rows: Value) -> Value:
    """A gathered tensor, of a row for each member's share."""
    n, d = _members(op), integer(op, "dim")
    share = list(hlo.shape_of(op.operands[0]))
    apart = hlo.reshape(rows, [n, *share])
    order = [*range(1, d + 1), 0, *range(d + 1, len(share) + 1)]
    return hlo.reshape(hlo.transpose(apart, order), hlo.shape_of(op.results[0]))


FORMS: dict[str, BucketForm] = {
    "pcp.all_reduce": BucketForm(
        _flat, lambda op, whole: hlo.shape_of(whole), _own_shape, dim=0, share=1
    ),
    "pcp.reduce_scatter": BucketForm(
        _row_each, lambda op, whole: (1, hlo.shape_of(whole)[1]), _own_shape
    ),
    "pcp.all_gather": BucketForm(
        _row, lambda op, whole: (_members(op), hlo.shape_of(whole)[1]), _from_rows
    ),
}
