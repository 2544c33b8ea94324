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
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.base import integers, strings, symbol, text
from pcp.dialect.bindings import ir
from pcp.passes.base import Pass
from pcp.passes.rewriting import before, integer, operations, refuse
from pcp.passes.synchronize import synchronize

PREFIX = "pcp_rt."


@dataclass(frozen=True)
class LowerToRuntime(Pass):
    """Turn collectives into calls of `@pcp_rt.*` imports with fences.

    Assumes static shapes and one program for all members. Leaves no op of pcp that
    communicates; `pcp.mesh` and the like stay, for the manifest. The calls are
    `util.call` in generic form: from here on the module is IREE's to read, and
    MLIR's parser needs --allow-unregistered-dialect.
    `pcp.digest` and `pcp.parity` are refused.

    Before:

        %y = "pcp.all_reduce"(%x) {axes = ["workers"], kind = "sum", mesh = @m}

    After:

        %y = "util.call"(%x) {callee = @pcp_rt.all_reduce_0_f32_4}
    """

    name = "pcp-lower-to-runtime"

    def run(self, module: ir.Module) -> None:
        """Lower every collective, in order."""
        with module.context:
            lower_to_runtime(module)


def lower_to_runtime(module: ir.Module) -> None:
    """See `LowerToRuntime`."""
    synchronize(module)
    imports = Imports(module, {})
    for op in operations(module):
        if op.name in LOWERINGS:
            LOWERINGS[op.name](op, imports)
        elif op.name in REFUSED:
            refuse(op, REFUSED[op.name])
    if imports.table:
        table = {name: _attribute(facts) for name, facts in imports.table.items()}
        module.operation.attributes["pcp.collectives"] = ir.DictAttr.get(table)


REFUSED = {
    "pcp.digest": "hashing has no import in the runtime; compare hashes on the host",
    "pcp.parity": "comparing has no import in the runtime; use pcp.param_sync, which "
    "repairs what differs",
}

Facts = dict[str, object]


@dataclass
class Imports:
    """The imports made so far, by name without the prefix."""

    module: ir.Module
    table: dict[str, Facts]

    def call(
        self,
        op: ir.Operation,
        operands: Sequence[ir.Value],
        results: Sequence[ir.Type],
        facts: Facts,
        *,
        pure: bool,
    ) -> Sequence[ir.Value]:
        """Declare an import for `op` and call it in front of it."""
        self.module.context.allow_unregistered_dialects = True
        dtype, shape = _traffic(operands, results)
        whole: Facts = {"dtype": dtype, "shape": shape, "wire": dtype} | facts
        name = f"{facts['kind']}_{len(self.table)}_{dtype}_{prod(shape)}"
        self.table[name] = whole
        self._declare(op, name, operands, results, pure)
        with before(op):
            made = ir.Operation.create(
                "util.call",
                operands=list(operands),
                results=list(results),
                attributes={"callee": ir.FlatSymbolRefAttr.get(PREFIX + name)},
            )
        return list(made.results)

    def _declare(
        self,
        op: ir.Operation,
        name: str,
        operands: Sequence[ir.Value],
        results: Sequence[ir.Type],
        pure: bool,
    ) -> None:
        signature = ir.FunctionType.get([o.type for o in operands], list(results))
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


def _traffic(
    operands: Sequence[ir.Value], results: Sequence[ir.Type]
) -> tuple[str, list[int]]:
    """Element type and shape of what moves; zero bytes for a bare `pcp.sync`."""
    for crossing in (*operands, *results):
        type_ = hlo.tensor_type(crossing)
        return str(type_.element_type), list(type_.shape)
    return "i8", [0]


# --- one function a family of ops ---


def _collective(op: ir.Operation, imports: Imports) -> None:
    """One tensor in, one tensor out."""
    result = hlo.tensor_type(op.results[0])
    facts = _group(op) | {
        key: read(op, key) for key, read in _STATIC.items() if key in op.attributes
    }
    if "kind" in op.attributes:
        facts["reduction"] = text(op, "kind")
    if result != op.operands[0].type:
        facts["result_shape"] = list(result.shape)
    pure = "ordered" not in op.attributes
    made = imports.call(op, list(op.operands), [result], facts, pure=pure)
    op.results[0].replace_all_uses_with(made[0])
    op.erase()


def _param_sync(op: ir.Operation, imports: Imports) -> None:
    """An import for each tensor: they are repaired one by one."""
    facts = _group(op)
    if "source" in op.attributes:
        facts["source"] = integer(op, "source")
    pure = "ordered" not in op.attributes
    for operand, result in zip(op.operands, op.results, strict=True):
        made = imports.call(op, [operand], [result.type], dict(facts), pure=pure)
        result.replace_all_uses_with(made[0])
    op.erase()


def _send(op: ir.Operation, imports: Imports) -> None:
    facts = _point(op, "to")
    imports.call(op, list(op.operands), [], facts, pure=False)
    op.erase()


def _recv(op: ir.Operation, imports: Imports) -> None:
    facts = _point(op, "source")
    made = imports.call(op, [], [op.results[0].type], facts, pure=False)
    op.results[0].replace_all_uses_with(made[0])
    op.erase()


def _sync(op: ir.Operation, imports: Imports) -> None:
    imports.call(op, [], [], _group(op), pure=False)
    op.erase()


def _group(op: ir.Operation) -> Facts:
    facts: Facts = {
        "kind": op.name.removeprefix("pcp."),
        "mesh": symbol(op, "mesh"),
        "axes": strings(op, "axes"),
    }
    return facts | _wire(op)


def _point(op: ir.Operation, peer: str) -> Facts:
    facts: Facts = {
        "kind": op.name.removeprefix("pcp."),
        "channel": integer(op, "channel"),
    }
    if isinstance(op.attributes[peer], ir.IntegerAttr):
        facts["peer"] = integer(op, peer)
    else:
        facts["device"] = symbol(op, peer)
    return facts | _wire(op)


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
    "pcp.param_sync": _param_sync,
    "pcp.send": _send,
    "pcp.recv": _recv,
    "pcp.sync": _sync,
}


def _attribute(value: object) -> ir.Attribute:
    """Facts as an attribute: strings, integers, lists and dictionaries."""
    if isinstance(value, dict):
        return ir.DictAttr.get({key: _attribute(item) for key, item in value.items()})
    if isinstance(value, list):
        return ir.ArrayAttr.get([_attribute(item) for item in value])
    return hlo.i64(value) if isinstance(value, int) else ir.StringAttr.get(str(value))
