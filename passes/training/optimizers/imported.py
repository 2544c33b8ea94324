"""An optimizer that was written elsewhere: two functions of all parameters, as text.

    @init(params) -> state          @update(params, grads, state) -> params, state

A frontend traces them for the parameters of a program (`pcp.frontends.optax`), which
are known when a program is expanded, and not before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.passes.core import functions
from pcp.passes.core.functions import Port
from pcp.passes.core.rewriting import defining, operations

INIT, UPDATE = "optimizer.init", "optimizer.update"

#: Ops that leave a splat a splat of the same number.
_SPREAD = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert")


@dataclass(frozen=True)
class Leaf:
    """A tensor of a parameter, or of what an optimizer keeps: dtype by numpy's name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Traced:
    """An optimizer for some parameters: modules with a @main each, as text."""

    init: str
    update: str
    state: Sequence[Leaf]


Trace = Callable[[Sequence[Leaf]], Traced]


@dataclass(frozen=True)
class ImportedRule:
    """What is registered for it, in the place of an `OptimizerRule`."""

    trace: Trace

    def functions(self, params: Sequence[Port]) -> "Functions":
        """What it is for these parameters; `PassError` where the two do not agree."""
        leaves = [
            Leaf(p.name, hlo.shape_of(p.type), _dtype(hlo.element_type(p.type)))
            for p in params
        ]
        traced, context = self.trace(leaves), params[0].type.context
        init = ir.Module.parse(traced.init, context)
        update = ir.Module.parse(traced.update, context)
        types = [p.type for p in params]
        kept = functions.function_type(_main(init)).results
        wanted = ir.FunctionType.get([*types, *types, *kept], [*types, *kept], context)
        if functions.function_type(_main(update)) != wanted:
            raise PassError(
                f"the optimizer's update is {functions.function_type(_main(update))}; "
                f"for these parameters it is to be {wanted}: does it change a type or "
                "a shape?"
            )
        ports = [
            Port(leaf.name, "state", type_)
            for leaf, type_ in zip(traced.state, kept, strict=True)
        ]
        return Functions(init, update, ports)


@dataclass(frozen=True)
class Functions:
    """The two functions, each in a module of its own, and what they keep."""

    init: ir.Module
    update: ir.Module
    ports: Sequence[Port]

    @property
    def constants(self) -> list[float | None]:
        """The number that each tensor of the first state has everywhere, if one."""
        *_, end = functions.entry(_main(self.init)).operations
        return [_splat(x) for x in end.operands]

    def add_to(self, module: ir.Module) -> tuple[str, str]:
        """Move both into a program, as private functions; their names there."""
        for source, name in ((self.init, INIT), (self.update, UPDATE)):
            if functions.find(module, name) is not None:
                raise PassError(f"the module has a function @{name}; rename it")
            moved = _main(source).clone(ip=ir.InsertionPoint(module.body))
            moved.attributes["sym_name"] = ir.StringAttr.get(name)
            moved.attributes["sym_visibility"] = ir.StringAttr.get("private")
        return INIT, UPDATE


def _main(module: ir.Module) -> ir.Operation:
    found = functions.find(module, "main")
    assert found is not None
    for op in operations(found):
        if op.name == "func.call":
            raise PassError("an imported optimizer is one function, without calls")
    return found


def _splat(x: ir.Value) -> float | None:
    while (op := defining(x)) is not None and op.name in _SPREAD:
        x = op.operands[0]
    if op is None or op.name != "stablehlo.constant":
        return None
    value = op.attributes["value"]
    if not isinstance(value, ir.DenseElementsAttr) or not value.is_splat:
        return None
    number = value.get_splat_value()
    known = isinstance(number, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr)
    return float(number.value) if known else None


def _dtype(element: ir.Type) -> str:
    """As numpy names it; what is trained is f32 or f64."""
    return "float64" if isinstance(element, ir.F64Type) else "float32"
