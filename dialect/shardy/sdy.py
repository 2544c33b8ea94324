"""Shardings that JAX writes (Shardy's `sdy` dialect), read as pcp's own.

    #sdy.sharding<@mesh, [{"dp"}, {"tp", ?}p1], replicated={"x"}, unreduced={"y"}>

becomes

    #pcp.sharding<@mesh, [["dp"], #pcp.dim<["tp"], 0, 1>], ["x"], ["y"]>

The wheel has no `sdy` dialect: the text is parsed in generic form with unregistered
dialects allowed, where attributes arrive as opaque text. What pcp has no word for
is an `IRError` at its place, which says what to write instead. The order in which
JAX numbers its devices is dropped: which device is which member is pcp's to say.
"""

from collections.abc import Iterator, Sequence

from pcp.dialect.attributes import SHARDING as OURS
from pcp.dialect.bindings import ir
from pcp.dialect.inlining import inline_annotated
from pcp.dialect.shardy import manual
from pcp.dialect.shardy.ops import RULES
from pcp.dialect.shardy.reader import HOLDERS, NAMED, SHARDING, Reader
from pcp.dialect.shardy.text import Parsed, read_shardings, rule_text

RULE, OUR_RULE = "sdy.sharding_rule", "pcp.sharding_rule"
GENERIC = (
    "print the module in generic form: "
    "lowered.compiler_ir('stablehlo').operation.get_asm(print_generic_op_form=True)"
)


def is_in(text: str) -> bool:
    """Whether MLIR text may hold something of Shardy's."""
    return "sdy." in text


def convert(module: ir.Module, source: str = "-") -> None:
    """Rewrite all of Shardy's in `module` as pcp's, in place.

    On the entry's arguments and results shardings become `pcp.sharding`; on other
    functions, which are inlined, and on ops they become `pcp.constraint`.
    Raises `IRError` at what pcp cannot say.
    """
    with module.context:
        manual.restore_calls(module)
        _Conversion(module, source).run()
        inline_annotated(module)


class _Conversion:
    def __init__(self, module: ir.Module, source: str) -> None:
        self.module, self.reader = module, Reader(source)

    def run(self) -> None:
        named = self._named()
        for op in list(self._operations()):
            if op.name == "sdy.mesh":
                self.reader.mesh(op, named)
        # Bodies are inlined from the inside out.
        for op in reversed(list(self._operations())):
            self._attribute(op)
            if op.name.startswith("sdy."):
                rule = RULES.get(op.name)
                if rule is None:
                    if op.name == "sdy.return":
                        continue  # goes with the op around it
                    self.reader.refuse(op, "pcp has no such op; leave it out")
                rule(self.reader, op)
        for op in self._operations():
            if op.name == "func.func":
                self._function(op)

    def _operations(self) -> Iterator[ir.Operation]:
        found: list[ir.Operation] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            found.append(op.operation)
            return ir.WalkResult.ADVANCE

        self.module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
        yield from found[1:]

    def _named(self) -> set[str]:
        """The meshes that a sharding names; the others say nothing of the program."""
        return {
            name
            for op in self._operations()
            for holder in HOLDERS
            if holder in op.attributes
            for name in NAMED.findall(str(op.attributes[holder]))
        }

    def _function(self, op: ir.Operation) -> None:
        """Shardings of arguments and results."""
        name = ir.StringAttr(op.attributes["sym_name"]).value
        is_private = "sym_visibility" in op.attributes and (
            ir.StringAttr(op.attributes["sym_visibility"]).value == "private"
        )
        blocks = op.regions[0].blocks
        for which in ("arg_attrs", "res_attrs"):
            if which not in op.attributes:
                continue
            entries, found = [], []
            for entry in map(ir.DictAttr, ir.ArrayAttr(op.attributes[which])):
                kept = {n.name: n.attr for n in entry if n.name != SHARDING}
                parsed = (
                    self.reader.read(op, entry[SHARDING]) if SHARDING in entry else None
                )
                parsed = parsed if parsed and self.reader.matters(parsed) else None
                if parsed is not None and not is_private:
                    kept[OURS] = ir.Attribute.parse(str(parsed))
                entries.append(ir.DictAttr.get(kept))
                found.append(parsed)
            op.attributes[which] = ir.ArrayAttr.get(entries)
            if is_private and blocks:
                self._constrain_ports(blocks[0], which, found)
            elif is_private and any(found):
                self.reader.refuse(op, f"@{name} has shardings and no body")

    def _constrain_ports(
        self, block: ir.Block, which: str, found: Sequence[Parsed | None]
    ) -> None:
        """What a function that is inlined said of its arguments or results."""
        *_, end = block.operations
        for i, parsed in enumerate(found):
            if parsed is None:
                continue
            if which == "arg_attrs":
                start = ir.InsertionPoint.at_block_begin(block)
                self.reader.constrain(block.arguments[i], parsed, start)
            else:
                with ir.InsertionPoint(end), end.operands[i].location:
                    made = self.reader.constrained(end.operands[i], parsed)
                end.operation.operands[i] = made

    def _attribute(self, op: ir.Operation) -> None:
        """`sdy.sharding` on an op: a constraint for each of its results."""
        if RULE in op.attributes:
            text = rule_text(str(op.attributes[RULE]))
            del op.attributes[RULE]
            op.attributes[OUR_RULE] = ir.StringAttr.get(text)
        if SHARDING not in op.attributes or op.name == "func.func":
            return
        found = self.reader.read_all(op, op.attributes[SHARDING], read_shardings)
        del op.attributes[SHARDING]
        if not len(op.results):  # an op with effects alone: there is nothing to lie
            return
        for result, parsed in zip(op.results, found, strict=True):
            self.reader.constrain(result, parsed, ir.InsertionPoint.after(op))
