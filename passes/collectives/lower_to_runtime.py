"""pcp-lower-to-runtime: collectives become functions that the runtime provides.

So do calls of functions that the host has (`dialect/host.py`).

Each collective becomes a call of an import of its own, `@pcp_rt.<kind>_<n>_<dtype>_
<elements>`. With IREE's coarse fences the import gets the operands, a fence to wait
for and a fence to signal: it returns at once, bytes move on other threads, and the
program goes on until it needs the result. Only tensors cross: everything static
stands in the module attribute `pcp.collectives`, by import name.

Before:

    %y = "pcp.all_reduce"(%x) {axes = ["workers"], kind = "sum", mesh = @m}
        : (tensor<4xf32>) -> tensor<4xf32>

After:

    module attributes {pcp.collectives = {all_reduce_0_f32_4 = {
        axes = ["workers"], dtype = "f32", kind = "all_reduce", mesh = "m",
        reduction = "sum", shape = [4], wire = "f32"}}} {
      "util.func"() ({}) {function_type = (tensor<4xf32>) -> tensor<4xf32>,
        iree.abi.model = "coarse-fences", nosideeffects,
        sym_name = "pcp_rt.all_reduce_0_f32_4", sym_visibility = "private"}
      ...
      %y = "util.call"(%x) {callee = @pcp_rt.all_reduce_0_f32_4}
"""

from collections.abc import Callable
from dataclasses import dataclass

from pcp.dialect import hlo, host
from pcp.dialect.base import (
    as_integers,
    as_strings,
    integers,
    strings,
    symbol,
    symbols,
    text,
)
from pcp.dialect.bindings import ir
from pcp.dialect.bundles import CAST, pack, unpack
from pcp.passes.collectives.import_order import keep_import_order
from pcp.passes.collectives.imports import Facts, Imports
from pcp.passes.collectives.name_exchanges import PART_OF
from pcp.passes.collectives.synchronize import drop_tuples, synchronize
from pcp.passes.core.base import Pass
from pcp.passes.core.marks import SETTLED
from pcp.passes.core.rewriting import (
    CONTRACTIONS,
    HOLD,
    before,
    defining,
    integer,
    operations,
    refuse,
    replace,
)
from pcp.passes.sharding.late import LATE


@dataclass(frozen=True)
class LowerToRuntime(Pass):
    """Turn collectives into calls of `@pcp_rt.*` imports with fences.

    Assumes static shapes and one program for all members. Leaves no op of pcp that
    communicates; `pcp.mesh` and the like stay, for the manifest. The calls are
    `util.call` in generic form: from here on the module is IREE's to read, and
    MLIR's parser needs --allow-unregistered-dialect.
    What comes behind a `pcp.parity` that traps or repairs uses what that gives. A call
    of a function with `pcp.host` becomes such an import, too.

    Before:

        %y = "pcp.all_reduce"(%x) {axes = ["workers"], kind = "sum", mesh = @m}
            : (tensor<4xf32>) -> tensor<4xf32>

    After:

        %y = "util.call"(%x) {callee = @pcp_rt.all_reduce_0_f32_4}
            : (tensor<4xf32>) -> tensor<4xf32>
    """

    name = "pcp-lower-to-runtime"

    def run(self, module: ir.Module) -> None:
        """Lower every collective, in order."""
        with module.context:
            lower_to_runtime(module)


def lower_to_runtime(module: ir.Module) -> None:
    """See `LowerToRuntime`."""
    synchronize(module, fenced=True)
    imports = Imports(module, hosts=host.host_functions(module))
    for declared in imports.hosts.values():
        if (problem := host.problem(declared)) is not None:
            refuse(declared, problem)
    for op in operations(module):
        if op.name in LOWERINGS:
            LOWERINGS[op.name](op, imports)
    for declared in imports.hosts.values():
        declared.erase()
    drop_tuples(module)
    keep_import_order(module)
    imports.write()


# --- one function a family of ops ---


def _collective(op: ir.Operation, imports: Imports) -> None:
    """One tensor in, one tensor out.

    A gather of a parameter depends on nothing, and IREE would start all of them at
    once, with room for all of their results: one that is late waits for the nearest
    contraction in front of it.
    """
    operand, result = op.operands[0], op.results[0]
    facts = _group(op) | {
        key: read(op, key) for key, read in _STATIC.items() if key in op.attributes
    }
    if "kind" in op.attributes:
        facts["reduction"] = text(op, "kind")
    if result.type != operand.type and result.type.has_static_shape:
        facts["result_shape"] = list(hlo.shape_of(result))
    pure = "ordered" not in op.attributes
    after = imports.computed.get(op.block) if LATE in op.attributes else None
    with before(op):
        made = imports.call(op, operand, result.type, facts, pure=pure, after=after)
        replace(op, [made])


def _contraction(op: ir.Operation, imports: Imports) -> None:
    """It stays; see `_collective`."""
    imports.computed[op.block] = op.results[0]


def _barrier(op: ir.Operation, imports: Imports) -> None:
    """It stays; see `_recv`."""
    if SETTLED in op.attributes:
        del op.attributes[SETTLED]
        imports.settled[op.block] = list(op.results)


def _param_sync(op: ir.Operation, imports: Imports) -> None:
    """A broadcast of each tensor from the source, or from member 0.

    That moves everything. State that lives outside of a program is synced by digest,
    and only where it differs, by `Communicator.param_sync`.
    """
    facts = _group(op) | {
        "kind": "broadcast",
        "root": integer(op, "source") if "source" in op.attributes else 0,
    }
    pure = "ordered" not in op.attributes
    with before(op):
        synced = [
            imports.call(op, x, x.type, dict(facts), pure=pure)
            for x in unpack(list(op.operands))
        ]
        replace(op, pack(synced))


def _send(op: ir.Operation, imports: Imports) -> None:
    """The import gives back what it was given, at once; the next one waits for it.

    IREE orders calls by their operands only. Without this one it may wait for what a
    peer sends before it has called the send that this peer waits for.
    """
    facts = _point(op) | {"target": _rank(op, "to", imports)}
    operand, after = op.operands[0], imports.sent.get(op.block)
    with before(op):
        imports.sent[op.block] = imports.call(
            op, operand, operand.type, facts, pure=False, after=after
        )
    op.erase()


def _recv(op: ir.Operation, imports: Imports) -> None:
    """The import is given any tensor of what is expected: zeros, or behind a send an
    element of what that gave back, so that it is made behind the call.

    Zeros that only wait for the send IREE may make in front of it, and a device that
    runs its queue at once (local-sync) then waits for ever. An element of all that is
    to be done by then goes along: to IREE a barrier of several values is one of each.
    """
    facts = _point(op) | {"source": _rank(op, "source", imports)}
    type_, after = op.results[0].type, imports.sent.get(op.block)
    with before(op):
        more = [_element(v) for v in imports.settled.pop(op.block, [])]
        given = hlo.zeros(type_) if after is None else _filled(type_, after)
        made = imports.call(op, given, type_, facts, pure=False, more=more, after=after)
        replace(op, [made])


def _filled(type_: ir.Type, source: ir.Value) -> ir.Value:
    """A tensor of this type, all of it the first element of another one, if any."""
    first = _element(source)
    if 0 in hlo.shape_of(first):
        return hlo.zeros(type_)
    ranked = hlo.tensor_type(type_)
    whole = hlo.convert(hlo.reshape(first, []), ranked.element_type)
    return hlo.splat(whole, list(ranked.shape))


def _element(value: ir.Value) -> ir.Value:
    """The first element; nothing of what has none."""
    ends = [min(1, n) for n in hlo.shape_of(value)]
    return hlo.slice_(value, [0] * len(ends), ends)


def _sync(op: ir.Operation, imports: Imports) -> None:
    """A scalar goes in and out, since only tensors cross."""
    with before(op):
        token = hlo.scalar(0.0, ir.F32Type.get())
        imports.call(op, token, token.type, _group(op), pure=False)
    op.erase()


def _digest(op: ir.Operation, imports: Imports) -> None:
    """An import that talks to nobody, of all operands."""
    with before(op):
        first, *more = unpack(list(op.operands))
        facts: Facts = {
            "kind": "digest",
            "algo": text(op, "algo"),
            "dtypes": [str(hlo.element_type(v)) for v in (first, *more)],
            "result_dtype": "i64",
            "result_shape": list(hlo.shape_of(op.results[0])),
        }
        result = op.results[0].type
        words = imports.call(op, first, result, facts, pure=True, more=more)
        replace(op, [words])


def _host_call(op: ir.Operation, imports: Imports) -> None:
    """A call of a function that the host binds; any other call stays.

    It waits for what is sent in front of it, as a receive does. One that takes nothing
    is given a number, since an import has an operand.
    """
    if not host.is_host_call(op, imports.hosts):
        return
    given = list(op.operands)
    types = [result.type for result in op.results]
    facts: Facts = {
        "kind": "host",
        "function": host.callee(op),
        "dtypes": [str(hlo.element_type(v)) for v in given],
        "shapes": [list(hlo.shape_of(v)) for v in given],
        "result_dtypes": [str(hlo.element_type(r)) for r in op.results],
        "result_shapes": [list(hlo.shape_of(r)) for r in op.results],
    }
    after = imports.sent.get(op.block)
    with before(op):
        operands = given or [hlo.scalar(0.0, ir.F32Type.get())]
        operands = [*operands, *([] if after is None else [after])]
        replace(op, imports.calls(op, operands, types, facts, pure=False))


def _parity(op: ir.Operation, imports: Imports) -> None:
    """An import for each tensor; unless it only reports, later uses take its result."""
    facts = _group(op) | {"action": text(op, "action")}
    given, values = list(op.operands), _members_of(op)
    with before(op):
        checked = [
            imports.call(op, value, value.type, dict(facts), pure=False)
            for value in values
        ]
        whole = pack(checked)
    if facts["action"] != "report":
        for old, new in zip([*values, *given], [*checked, *whole], strict=True):
            _use_behind(op, old, new)
    op.erase()


def _members_of(op: ir.Operation) -> list[ir.Value]:
    """The tensors an op takes, those in front of their tuple if there is one."""
    values = list(op.operands)
    source = defining(values[0])
    if source is not None and source.name == CAST and len(source.results) == 1:
        return list(source.operands)
    return unpack(values)


def _use_behind(op: ir.Operation, value: ir.Value, new: ir.Value) -> None:
    """Let what comes behind `op` in its block use `new` in place of `value`."""
    for use in list(value.uses):
        user = use.owner.operation
        place = user
        while place is not None and place.block != op.block:
            place = place.parent and place.parent.operation
        if place is not None and op.is_before_in_block(place):
            user.operands[use.operand_number] = new


def _group(op: ir.Operation) -> Facts:
    facts: Facts = {
        "kind": op.name.removeprefix("pcp."),
        "mesh": symbol(op, "mesh"),
        "axes": strings(op, "axes"),
    }
    return facts | _wire(op)


def _point(op: ir.Operation) -> Facts:
    kind, channel = op.name.removeprefix("pcp."), integer(op, "channel")
    return {"kind": kind, "tag": channel} | _wire(op)


def _rank(op: ir.Operation, key: str, imports: Imports) -> int:
    """The peer's rank: as it stands, or the place of the device in its mesh."""
    if isinstance(op.attributes[key], ir.IntegerAttr):
        return integer(op, key)
    device = symbol(op, key)
    meshes = [m for m in imports.module.body if m.operation.name == "pcp.mesh"]
    places = [symbols(mesh, "devices") for mesh in meshes]
    places = [listed for listed in places if device in listed]
    if len(places) != 1:
        refuse(
            op,
            f"the rank of @{device} is not known: no single mesh lists it; "
            f"write {key} as a rank",
        )
    return places[0].index(device)


def _wire(op: ir.Operation) -> Facts:
    """The element type that travels, where it is not the tensor's."""
    if "wire" not in op.attributes:
        return {}
    return {"wire": str(ir.TypeAttr(op.attributes["wire"]).value)}


def _pairs(op: ir.Operation, name: str) -> list[list[int]]:
    return [
        [ir.IntegerAttr(i).value for i in ir.ArrayAttr(pair)]
        for pair in ir.ArrayAttr(op.attributes[name])
    ]


def _part_of(op: ir.Operation, name: str) -> dict[str, object]:
    """See `pcp.passes.collectives.name_exchanges`."""
    given = {n.name: n.attr for n in ir.DictAttr(op.attributes[name])}
    layout = [as_strings(axes, "layout") for axes in ir.ArrayAttr(given["layout"])]
    return {
        "name": ir.StringAttr(given["name"]).value,
        "shape": as_integers(given["shape"], "shape"),
        "layout": layout,
    }


_STATIC: dict[str, Callable[[ir.Operation, str], object]] = {
    "dim": integer,
    "root": integer,
    "split": integer,
    "concat": integer,
    "sizes": integers,
    "pairs": _pairs,
    "codec": text,
    PART_OF: _part_of,
}

LOWERINGS: dict[str, Callable[[ir.Operation, Imports], None]] = {
    **{
        f"pcp.{kind}": _collective
        for kind in (
            "all_reduce",
            "reduce_scatter",
            "all_gather",
            "all_to_all",
            "broadcast",
            "permute",
        )
    },
    **dict.fromkeys(CONTRACTIONS, _contraction),
    HOLD: _barrier,
    "func.call": _host_call,
    "pcp.param_sync": _param_sync,
    "pcp.send": _send,
    "pcp.recv": _recv,
    "pcp.sync": _sync,
    "pcp.digest": _digest,
    "pcp.parity": _parity,
}
