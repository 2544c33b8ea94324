"""Branches: `case` and `if`, backwards and forwards.

A branch is walked back inside the same branch of the reverse op, on the same
predicate. Its forward values are computed again there, from what it captures, so
nothing is kept. A branch that must not run twice (`rerun.once_only`) keeps what its
reverse needs instead: the forward op returns it, zeros where another was taken.
"""

from collections.abc import Callable, Sequence

from pcp.autodiff.core.activity import Activity, propagate
from pcp.autodiff.core.cotangents import Cotangents, materialize
from pcp.autodiff.core.forward import Tangents, push_forward, tangent_or_zeros
from pcp.autodiff.core.kinds import Site
from pcp.autodiff.core.rerun import once_only, run_again
from pcp.autodiff.core.reverse import pull_back
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import operations
from pcp.passes.core.walk import block_of

Value = ir.Value


def branches(at: Site) -> list[Value | None]:
    """The same op on the same predicate; each branch computes its own VJP.

    All branches return a cotangent of everything that any of them captures: zeros
    where one does not use it.
    """
    wanted = [v for v, want in zip(at.inputs, at.wanted, strict=True) if want]
    keep = any(once_only(region) for region in at.op.regions)
    name = at.op.name.removeprefix("stablehlo.")
    reverse = hlo.op(
        name, [at[0]], [v.type for v in wanted], regions=len(at.op.regions)
    )
    for index in range(len(at.op.regions)):
        block = reverse.regions[index].blocks.append()
        with ir.InsertionPoint(block):
            if keep:
                results, ops = _in_place(block_of(at.op, index))
            else:
                results, ops = run_again(at.op, index, [])
            _return_cotangents(ops, results, at.cotangents, wanted, at.active)
    if keep:
        _keep(at.op, reverse)
    answers = dict(zip(wanted, reverse.results, strict=True))
    return [answers.pop(v, None) for v in at.inputs]


def _in_place(block: ir.Block) -> tuple[list[Value], list[ir.Operation]]:
    """What a branch returns and its ops, where they are."""
    *ops, end = [op.operation for op in block.operations]
    return list(end.operands), ops


def _return_cotangents(
    ops: Sequence[ir.Operation],
    results: Sequence[Value],
    seeds: Sequence[Value | None],
    wanted: Sequence[Value],
    active: Activity,
) -> None:
    """Walk a branch back and end it with the cotangents of `wanted`."""
    inner = propagate(ops, {v: active[v] for v in wanted})
    cotangents = Cotangents()
    for result, seed in zip(results, seeds, strict=True):
        cotangents.add(result, seed)
    pull_back(ops, cotangents, inner)
    hlo.op("return", [materialize(cotangents.take(v), v) for v in wanted], [])


def _keep(op: ir.Operation, reverse: ir.Operation) -> None:
    """Let the forward op return the values of each branch that `reverse` uses."""
    needed = [
        _used_from(block_of(op, index), reverse.regions[index])
        for index in range(len(op.regions))
    ]
    kept = [(index, value) for index, values in enumerate(needed) for value in values]

    def more(index: int) -> list[Value]:
        return [v if i == index else hlo.zeros(v.type) for i, v in kept]

    extra = widened(op, [v.type for _, v in kept], lambda index, *_: more(index))
    for (index, value), result in zip(kept, extra, strict=True):
        for user in operations(reverse.regions[index]):
            user.replace_uses_of_with(value, result)


def _used_from(block: ir.Block, region: ir.Region) -> list[Value]:
    """Values defined directly in `block` that ops anywhere in `region` use."""
    own = {result for op in block.operations for result in op.operation.results}
    users = operations(region)
    return list(dict.fromkeys(v for op in users for v in op.operands if v in own))


def widened(
    op: ir.Operation,
    types: Sequence[ir.Type],
    more: Callable[[int, list[ir.Operation], ir.Operation], list[Value]],
) -> list[Value]:
    """Replace a branching op by one with further results, of `types`.

    `more(index, ops, end)` emits them at the end of branch `index`. Returns the
    further results. The old op is left without branches and without users.
    """
    with ir.InsertionPoint(op), op.location:
        wider = hlo.op(
            op.name,
            list(op.operands),
            [*(r.type for r in op.results), *types],
            regions=len(op.regions),
        )
    for index in range(len(op.regions)):
        op.regions[index].blocks[0].append_to(wider.regions[index])
        *ops, end = [o.operation for o in block_of(wider, index).operations]
        with ir.InsertionPoint(end), op.location:
            values = more(index, ops, end)
            hlo.op("return", [*end.operands, *values], [])
        end.erase()
    for old, new in zip(op.results, wider.results, strict=False):
        old.replace_all_uses_with(new)
    return list(wider.results)[len(op.results) :]


def branches_forward(op: ir.Operation, tangents: Tangents) -> None:
    """Each branch returns the tangents of its floating-point results too."""
    moving = [j for j, r in enumerate(op.results) if hlo.is_differentiable(r)]
    types = [op.results[j].type for j in moving]

    def more(_: int, ops: list[ir.Operation], end: ir.Operation) -> list[Value]:
        inner = dict(tangents)
        push_forward(ops, inner)
        return [tangent_or_zeros(end.operands[j], inner) for j in moving]

    results = len(op.results)
    extra = widened(op, types, more)
    if not extra:
        return
    wider = extra[0].owner
    for j, tangent in zip(moving, list(wider.results)[results:], strict=True):
        tangents[wider.results[j]] = tangent
