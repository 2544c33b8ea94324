"""pcp-verify-inplace: which arguments a function may write its results over.

An argument `a` and the result `r` that has its name, role and type may share a
buffer if every read of `a` happens at the index that is written, before it is
written. That is proved when

* `r` is computed from `a`, each result stands for one argument, and the function
  returns `a` itself nowhere;
* following the uses of `a` forward, up to `r`: each op is elementwise and of `a`'s
  shape, and each value on the way leads to `r` and to nothing else. A value on the
  way may itself be a result, since `r` needs it first.

IREE does not check: it was measured that without this proof the updated values are
silently wrong.

Where `r` is `a` with slices updated or values scattered into it, IREE proves more by
itself and copies where something reads `a` later. Then `a` is consumed: its buffer may
become that of `r`, as a cache of keys and values wants it. All other arguments stay as
they are (see `pcp-protect-arguments`).
"""

from collections import Counter
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.passes.core import functions, rewriting
from pcp.passes.core.base import Pass
from pcp.passes.core.donation import CONSUME, OUTPUT
from pcp.passes.core.elementwise import ELEMENTWISE

COPIED = "pcp.copied"


@dataclass(frozen=True)
class VerifyInplace(Pass):
    """Let a function update in place the arguments for which that is proved safe.

    Assumes `pcp.name` and `pcp.role` on arguments and results: those that agree in
    both are one tensor before and after. Leaves `iree.abi.output = <result>` on each
    argument for which the proof succeeds, `iree.abi.consume` on those of which slices
    are updated, and `pcp.copied = "<why>"` on those that
    have a result and for which it does not; those get a fresh buffer. Scalars are
    left alone, since all kernels of a step read them.

    Before:

        func.func @apply(%w: tensor<4xf32> {pcp.name = "w", pcp.role = "param"},
                         %g: tensor<4xf32> {pcp.name = "w", pcp.role = "grad"})
            -> (tensor<4xf32> {pcp.name = "w", pcp.role = "param"}) {
          %0 = stablehlo.subtract %w, %g : tensor<4xf32>
          return %0 : tensor<4xf32>
        }

    After:

        func.func @apply(%w: tensor<4xf32> {iree.abi.output = 0 : index, ...}, ...)
    """

    name = "pcp-verify-inplace"
    func: str = "apply"
    """The function; `*` for every public one."""

    def run(self, module: ir.Module) -> None:
        """Mark the arguments of the function."""
        with module.context:
            for function in self._wanted(module):
                verify_inplace(function)

    def _wanted(self, module: ir.Module) -> list[ir.Operation]:
        if self.func == "*":
            found = rewriting.functions(module)
            return [f for f in found if functions.is_public(f)]
        if (function := functions.find(module, self.func)) is None:
            raise PassError(f"{self.name}: the module has no function @{self.func}")
        return [function]


def verify_inplace(function: ir.Operation) -> None:
    """See `VerifyInplace`."""
    found = functions.argument_attributes(function)
    body = _Body(function)
    for i, result in updates(function).items():
        for mark in (OUTPUT, CONSUME, COPIED):
            found[i].pop(mark, None)
        argument = functions.entry(function).arguments[i]
        if not hlo.shape_of(argument):
            continue
        problem = body.obstacle(argument, result)
        if problem is None:
            index = ir.IntegerAttr.get(ir.IndexType.get(), result)
            found[i][OUTPUT] = index
        elif body.updates_slices(argument, result):
            found[i][CONSUME] = ir.UnitAttr.get()
        else:
            found[i][COPIED] = ir.StringAttr.get(problem)
    functions.set_argument_attributes(function, found)


def updates(function: ir.Operation) -> dict[int, int]:
    """Each argument with its result: same name, role and type, both once."""
    keys = [_key(attributes) for attributes in functions.argument_attributes(function)]
    results = [_key(a) for a in functions.result_attributes(function)]
    types = functions.function_type(function)
    given, made = list(types.inputs), list(types.results)
    inputs, outputs = Counter(keys), Counter(results)
    number = {key: i for i, key in enumerate(results)}
    return {
        i: number[key]
        for i, key in enumerate(keys)
        if None not in key
        and inputs[key] == outputs[key] == 1
        and given[i] == made[number[key]]
    }


def _key(attributes: dict[str, ir.Attribute]) -> tuple[str | None, str | None]:
    return (
        functions.string(attributes, functions.ROLE),
        functions.string(attributes, functions.NAME),
    )


# --- the proof ---


class _Body:
    """A function's values: what it returns, and where each is made."""

    def __init__(self, function: ir.Operation) -> None:
        block = functions.entry(function)
        *ops, end = [view.operation for view in block.operations]
        self.returned = list(end.operands)
        self._times = Counter(self.returned)
        self._position = {v: i for i, op in enumerate(ops) for v in op.results}
        self._readers = {
            v: i for i, op in reversed([*enumerate(ops)]) for v in _read(op)
        }

    def obstacle(self, argument: ir.Value, result: int) -> str | None:
        """Why `argument` and result number `result` may not share a buffer, or None."""
        written = self.returned[result]
        if written == argument:
            return "it is returned as it came"
        if self._times[written] > 1:
            return "its new value is returned twice"
        before = self._needed_for(written, self._readers.get(argument, 0))
        if argument not in before:
            return "its new value does not depend on it"
        shape = hlo.shape_of(argument)
        seen: set[ir.Value] = set()
        pending = [argument]
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            for use in value.uses:
                problem = _check_use(use, value, argument, shape, before)
                if problem is not None:
                    return problem
                pending += [r for r in use.owner.results if r != written]
        return None

    def updates_slices(self, argument: ir.Value, result: int) -> bool:
        """Whether that result alone is `argument` with slices written anew."""
        value = written = self.returned[result]
        while not isinstance(value.owner, ir.Block) and value.owner.name in SLICED:
            number = ir.OpResult(value).result_number
            value = value.owner.operation.operands[number]
        return (
            value == argument != written
            and not self._times[argument]
            and self._times[written] == 1
        )

    def _needed_for(self, value: ir.Value, since: int) -> set[ir.Value]:
        """`value` and what it is computed from, by op number `since` and later ones."""
        seen: set[ir.Value] = set()
        pending = [value]
        while pending:
            current = pending.pop()
            if current in seen or self._position.get(current, since) < since:
                continue
            seen.add(current)
            if not isinstance(current.owner, ir.Block):
                pending += list(current.owner.operation.operands)
        return seen


def _read(op: ir.Operation) -> list[ir.Value]:
    """What an op reads, in its regions too."""
    return [*op.operands, *rewriting.captures(op)]


def _check_use(
    use: ir.OpOperand,
    value: ir.Value,
    argument: ir.Value,
    shape: tuple[int, ...],
    before: set[ir.Value],
) -> str | None:
    """What is wrong with one use of `argument`, or of a value made from it."""
    op = use.owner.operation
    if op.name == "func.return":
        return "it is returned as it came" if value == argument else None
    if op.name not in ELEMENTWISE:
        return f"it is read by {op.name}, which is not elementwise"
    if any(hlo.shape_of(r) != shape for r in op.results):
        return f"it is read by {op.name} at another shape"
    if not all(r in before for r in op.results):
        return f"it is read by {op.name}, whose result is not part of its new value"
    return None


# Each result is the operand of its number with parts of it replaced.
SLICED = ("stablehlo.dynamic_update_slice", "stablehlo.scatter")
