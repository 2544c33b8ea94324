"""pcp-lower-to-runtime: collectives become functions that the runtime provides.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from pcp.dialect import hlo
from pcp.dialect.base import integers, strings, symbol, symbols, text
from pcp.dialect.bindings import ir
from pcp.dialect.bundles import CAST, pack, unpack
from pcp.passes.collectives.import_order import keep_import_order
from pcp.passes.collectives.synchronize import drop_tuples, synchronize
from pcp.passes.core.base import Pass
from pcp.passes.core.marks import SETTLED
from pcp.passes.core.rewriting import (
    HOLD,
    before,
    defining,
    integer,
    operations,
    refuse,
    replace,
)
from pcp.passes.sharding.late import LATE

PREFIX = "pcp_rt."
CONTRACTIONS = ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution")


@dataclass(frozen=True)
class LowerToRuntime(Pass):
    """Turn collectives into calls of `@pcp_rt.*` imports with fences.

    Assumes static shapes and one program for all members. Leaves no op of pcp that
    communicates; `pcp.mesh` and the like stay, for the manifest. The calls are
    `util.call` in generic form: from here on the module is IREE's to read, and
    MLIR's parser needs --allow-unregistered-dialect.
    What comes behind a `pcp.parity` that traps or repairs uses what that gives.

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
    imports = Imports(module, {})
    for op in operations(module):
        if op.name in LOWERINGS:
            LOWERINGS[op.name](op, imports)
    drop_tuples(module)
    keep_import_order(module)
    if imports.table:
        table = {name: _attribute(facts) for name, facts in imports.table.items()}
        module.operation.attributes["pcp.collectives"] = ir.DictAttr.get(table)


Facts = dict[str, object]


@dataclass
class Imports:
    """The imports made so far, by name without the prefix."""

    module: ir.Module
    table: dict[str, Facts]
    #: What the last send in each block gave back.
    sent: dict[ir.Block, ir.Value] = field(default_factory=dict)
    #: What the last contraction in each block computes.
    computed: dict[ir.Block, ir.Value] = field(default_factory=dict)
    #: What is to be done before the next receive in each block.
    settled: dict[ir.Block, list[ir.Value]] = field(default_factory=dict)

    def call(
        self,
        op: ir.Operation,
        operand: ir.Value,
        result: ir.Type,
        facts: Facts,
        *,
        pure: bool,
        more: Sequence[ir.Value] = (),
        after: ir.Value | None = None,
    ) -> ir.Value:
        """Declare an import for `op` and call it at the insertion point.

        `more` are further operands, `after` is one that it does not read, only waits
        for.
        """
        operands = [operand, *more, *([] if after is None else [after])]
        if len(operands) > 1:
            facts = facts | {"operands": len(operands)}
        self.module.context.allow_unregistered_dialects = True
        type_ = hlo.tensor_type(operand)
        dtype, shape = str(type_.element_type), list(type_.shape)
        name = f"{facts['kind']}_{len(self.table)}_{dtype}_{prod(shape)}"
        self.table[name] = {"dtype": dtype, "shape": shape, "wire": dtype} | facts
        takes = [v.type for v in operands]
        self._declare(op, name, ir.FunctionType.get(takes, [result]), pure)
        made = ir.Operation.create(
            "util.call",
            operands=operands,
            results=[result],
            attributes={"callee": ir.FlatSymbolRefAttr.get(PREFIX + name)},
        )
        return made.result

    def _declare(
        self, op: ir.Operation, name: str, signature: ir.FunctionType, pure: bool
    ) -> None:
        attributes = {
            "sym_name": ir.StringAttr.get(PREFIX + name),
            "sym_visibility": ir.StringAttr.get("private"),
            "function_type": ir.TypeAttr.get(signature),
            "iree.abi.model": ir.StringAttr.get("coarse-fences"),
        }
        if pure:
            attributes["nosideeffects"] = ir.UnitAttr.get()
        with ir.InsertionPoint.at_block_begin(self.module.body), op.location:
            ir.Operation.create("util.func", regions=1, attributes=attributes)


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
    """The import is given zeros, to have a tensor that says what is expected.

    An element of all that is to be done by then goes along: to IREE a barrier of
    several values is one of each.
    """
    facts = _point(op) | {"source": _rank(op, "source", imports)}
    type_, after = op.results[0].type, imports.sent.get(op.block)
    with before(op):
        more = [_element(v) for v in imports.settled.pop(op.block, [])]
        zeros = hlo.zeros(type_)
        made = imports.call(op, zeros, type_, facts, pure=False, more=more, after=after)
        replace(op, [made])


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
    """The peer's rank: as it stands, or the device's place in the only mesh."""
    if isinstance(op.attributes[key], ir.IntegerAttr):
        return integer(op, key)
    device = symbol(op, key)
    meshes = [m for m in imports.module.body if m.operation.name == "pcp.mesh"]
    places = [symbols(mesh, "devices") for mesh in meshes]
    if len(places) != 1 or device not in places[0]:
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


_STATIC: dict[str, Callable[[ir.Operation, str], object]] = {
    "dim": integer,
    "root": integer,
    "split": integer,
    "concat": integer,
    "sizes": integers,
    "pairs": _pairs,
    "codec": text,
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
    "pcp.param_sync": _param_sync,
    "pcp.send": _send,
    "pcp.recv": _recv,
    "pcp.sync": _sync,
    "pcp.digest": _digest,
    "pcp.parity": _parity,
}


def _attribute(value: object) -> ir.Attribute:
    """Facts as an attribute: strings, integers, lists and dictionaries."""
    if isinstance(value, dict):
        return ir.DictAttr.get({key: _attribute(item) for key, item in value.items()})
    if isinstance(value, list):
        return ir.ArrayAttr.get([_attribute(item) for item in value])
    return hlo.i64(value) if isinstance(value, int) else ir.StringAttr.get(str(value))
