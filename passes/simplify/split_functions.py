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
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import functions, rewriting
from pcp.passes.core.base import Pass
from pcp.passes.core.donation import CONSUME, OUTPUT
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.functions import PART, PARTS

#: Made again in each part that reads it.
_SPREAD = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "convert")
)
_FILLED = frozenset(("stablehlo.constant", "stablehlo.iota"))


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


Values = list[ir.Value]


def split(module: ir.Module, function: ir.Operation, most: int) -> None:
    """Cut a function into parts of at most `most` results, if it has several."""
    body = _Body(function)
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


class _Body:
    """A function's ops by number, and which of its values are made together.

    `components` fills in what they share: `shared` scalars, in order.
    """

    def __init__(self, function: ir.Operation) -> None:
        block = functions.entry(function)
        *self.ops, self.end = [view.operation for view in block.operations]
        self.roots = list(self.end.operands)
        self.makers = {v: i for i, op in enumerate(self.ops) for v in op.results}
        self.reads = [[*op.operands, *rewriting.captures(op)] for op in self.ops]
        self.attributes = dict(
            zip(block.arguments, functions.argument_attributes(function), strict=True)
        )
        self.shared: dict[ir.Value, None] = {}
        self.readers: Counter[ir.Value] = Counter()
        """How many components read a value."""

    def components(self) -> list[Values]:
        """The returned values that are made together, each once.

        None of them where the function is not to be split: it does more than compute,
        or what is neither cheap nor elementwise would be computed twice.
        """
        if not all(map(rewriting.is_pure, self.ops)):
            return []
        readers: list[list[int]] = [[] for _ in self.ops]
        for number, read in enumerate(self.reads):
            for value in read:
                if value in self.makers:
                    readers[self.makers[value]].append(number)
        returned = set(self.roots)
        groups = _Groups(len(self.ops))
        needed: list[set[int]] = [set() for _ in self.ops]  # by which groups
        early = [False] * len(self.ops)  # whether a shared scalar is made of it
        for number in reversed(range(len(self.ops))):
            op = self.ops[number]
            scalar = all(map(_is_scalar, op.results))
            root = any(value in returned for value in op.results)
            for reader in readers[number]:
                early[number] |= early[reader]
                needed[number] |= needed[reader]
            found = {groups.of(group) for group in needed[number]}
            if not root and self._is_cheap(number):
                continue
            if scalar and (root or len(found) > 1 or (found and early[number])):
                early[number], needed[number] = True, set()
                self.shared |= dict.fromkeys(op.results)
            elif root or found:
                if early[number] and op.name not in ELEMENTWISE:
                    return []
                groups.join(number, found)
                needed[number] = {number}
        self.shared = dict.fromkeys(reversed(self.shared))
        by_group: dict[int, Values] = {}
        for root in dict.fromkeys(self.roots):
            if root in self.makers and root not in self.shared:
                group = groups.of(self.makers[root])
                by_group.setdefault(group, []).append(root)
        for component in by_group.values():
            self.readers.update(self.closure(component)[1])
        return list(by_group.values())

    def _is_cheap(self, number: int) -> bool:
        """Whether each reader makes it for itself: it fills, or spreads a scalar."""
        op = self.ops[number]
        if op.name in _FILLED:
            return True
        return op.name in _SPREAD and all(
            _is_scalar(v) or (v in self.makers and self._is_cheap(self.makers[v]))
            for v in op.operands
        )

    def closure(self, roots: Values) -> tuple[list[int], Values]:
        """The ops that make these, in order, and what they read of others.

        That is arguments, and of components what is shared.
        """
        outer = {} if roots[0] in self.shared else self.shared
        wanted, seen, ops = [*roots], set(roots), set[int]()
        while wanted:
            value = wanted.pop()
            number = self.makers.get(value)
            if number is None or number in ops or value in outer:
                continue
            ops.add(number)
            fresh = [operand for operand in self.reads[number] if operand not in seen]
            seen.update(fresh)
            wanted += fresh
        order = sorted(ops)
        inside = {value for number in order for value in self.ops[number].results}
        read = [value for number in order for value in self.reads[number]]
        return order, list(dict.fromkeys(v for v in read if v not in inside))


def _is_scalar(value: ir.Value) -> bool:
    return hlo.shape_of(value) == ()


class _Groups:
    """Numbers, each in one group; a group is known by one of its numbers."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def of(self, number: int) -> int:
        """The group's number."""
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def join(self, number: int, others: Iterable[int]) -> None:
        """Make one group of the number's and the others'."""
        for other in others:
            self._parent[self.of(other)] = self.of(number)


class _Outlined:
    """Functions of a function's parts; equal ones once."""

    def __init__(self, module: ir.Module, body: _Body, name: str) -> None:
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
