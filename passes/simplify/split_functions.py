"""pcp-split-functions: an update of very many tensors becomes several functions.

What IREE's scheduling of one function takes grows much faster than what the function
computes side by side (`benchmarks/gpt2.py --depths 4 48` has the compile of many
parameters). But of the updates each is alone. What they share are scalars (the step, a
norm, a factor), and what is cheaply made of scalars.

    results ─► components: what is computed together, scalars of several set apart
    those scalars, and all that they are made of ─► the first part
    equal components, so many at a time ─► a part each
    equal parts ─► one function, called for each
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.passes.core import functions, rewriting
from pcp.passes.core.base import Pass
from pcp.passes.core.donation import CONSUME, OUTPUT
from pcp.passes.core.functions import PART, PARTS
from pcp.passes.simplify.components import Body, Values


@dataclass(frozen=True)
class SplitFunctions(Pass):
    """Cut @func, if it has more than `results` results, into parts of `part`.

    Assumes `pcp-verify-inplace`'s marks. A function that does more than compute, as one
    with collectives, stays whole, and so does one whose results hang together. Leaves
    in its place a function that only calls its parts, marked `pcp.parts`; IREE gets the
    parts alone, marked `pcp.part`, and the runtime calls them as the manifest says.

    Before, with results=1 part=1:

        func.func @apply(%a: tensor<4xf32>, %b: tensor<4xf32>)
            -> (tensor<4xf32>, tensor<4xf32>) {
          %0 = stablehlo.negate %a : tensor<4xf32>
          %1 = stablehlo.negate %b : tensor<4xf32>
          return %0, %1 : tensor<4xf32>, tensor<4xf32>
        }

    After:

        func.func @apply_part0(%a: tensor<4xf32>) -> tensor<4xf32> attributes {pcp.part}
        func.func @apply(%a: tensor<4xf32>, %b: tensor<4xf32>)
            -> (tensor<4xf32>, tensor<4xf32>) attributes {pcp.parts} {
          %0 = call @apply_part0(%a) : (tensor<4xf32>) -> tensor<4xf32>
          %1 = call @apply_part0(%b) : (tensor<4xf32>) -> tensor<4xf32>
          return %0, %1 : tensor<4xf32>, tensor<4xf32>
        }
    """

    name = "pcp-split-functions"
    func: str = "apply"
    results: int = 192
    part: int = 48

    def run(self, module: ir.Module) -> None:
        """Split the function, if it is there and large."""
        with module.context:
            function = functions.find(module, self.func)
            if function is None:
                return
            if len(functions.function_type(function).results) > self.results:
                split(module, function, self.part)


def split(module: ir.Module, function: ir.Operation, most: int) -> None:
    """Cut a function into parts of at most `most` results, if it has several."""
    body = Body(function)
    outlined = _Outlined(module, body, functions.symbol_name(function))
    packed = outlined.packed(body.components(), most)
    if len(packed) < 2:
        return
    values: dict[ir.Value, ir.Value] = {}
    for roots in [[*body.shared], *packed] if body.shared else packed:
        callee, given = outlined.function(roots)
        with rewriting.before(body.end):
            operands = [values.get(value, value) for value in given]
            made = functions.call(callee, operands, [value.type for value in roots])
        values.update(zip(roots, made, strict=True))
    for number, root in enumerate(body.roots):
        body.end.operands[number] = values.get(root, root)
    rewriting.sweep(function)
    function.attributes[PARTS] = ir.UnitAttr.get()


class _Outlined:
    """Functions of a function's parts; equal ones once."""

    def __init__(self, module: ir.Module, body: Body, name: str) -> None:
        self.module = module
        self.body = body
        self.name = name
        self._made: dict[str, str] = {}

    def packed(self, components: Iterable[Values], most: int) -> list[Values]:
        """Equal components side by side, as many as fit; the rest of them together."""
        kinds: dict[str, list[Values]] = {}
        for component in components:
            function, _ = self._outline(component, "pcp_component")
            kinds.setdefault(_unnamed(function), []).append(component)
            function.erase()
        full: list[Values] = []
        left: list[Values] = [[]]
        for kind in kinds.values():
            many = max(1, most // len(kind[0]))
            over = len(kind) - len(kind) % many
            for start in range(0, over, many):
                full.append([v for each in kind[start : start + many] for v in each])
            for component in kind[over:]:
                if len(left[-1]) + len(component) > most:
                    left.append([])
                left[-1] = left[-1] + component
        return [*full, *filter(None, left)]

    def function(self, roots: Values) -> tuple[str, Values]:
        """The name of the function that makes these values, and what it takes."""
        name = f"{self.name}_part{len(self._made)}"
        function, given = self._outline(roots, name)
        text = _unnamed(function)
        if text in self._made:
            function.erase()
        return self._made.setdefault(text, name), given

    def _outline(self, roots: Values, name: str) -> tuple[ir.Operation, Values]:
        order, given = self.body.closure(roots)
        ports = [functions.Port("", "", value.type) for value in given]

        def build(*arguments: ir.Value) -> list[tuple[functions.Port, ir.Value]]:
            values = dict(zip(given, arguments, strict=True))
            for number in order:
                _clone(self.body.ops[number], values)
            return [(functions.Port("", "", v.type), values[v]) for v in roots]

        function = functions.define(self.module, name, ports, build)
        del function.attributes["res_attrs"]
        marks = [self._marks(value, roots) for value in given]
        functions.set_argument_attributes(function, marks)
        function.attributes[PART] = ir.UnitAttr.get()
        return function, given

    def _marks(self, value: ir.Value, roots: Values) -> dict[str, ir.Attribute]:
        """What an argument gives its storage for, if that is of this part alone."""
        said = self.body.attributes.get(value, {})
        if CONSUME in said and self.body.readers[value] == 1:
            return {CONSUME: said[CONSUME]}
        if OUTPUT not in said:
            return {}
        result = self.body.roots[ir.IntegerAttr(said[OUTPUT]).value]
        if result not in roots:
            return {}
        return {OUTPUT: ir.IntegerAttr.get(ir.IndexType.get(), roots.index(result))}


def _clone(op: ir.Operation, values: dict[ir.Value, ir.Value]) -> None:
    """A copy of the op that reads, in its regions too, what stands for its operands."""
    new = op.clone()
    for copied in (new, *rewriting.operations(new)):
        for number, operand in enumerate(list(copied.operands)):
            if operand in values:
                copied.operands[number] = values[operand]
    values |= dict(zip(op.results, new.results, strict=True))


_NAME = re.compile(r"@[\w$.-]+")


def _unnamed(function: ir.Operation) -> str:
    return _NAME.sub("@", function.get_asm(use_local_scope=True), count=1)
