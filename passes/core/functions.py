"""Whole functions: what crosses their border, and building new ones.

A `Port` is one argument or result with its name and role, which stand in the IR as
`pcp.name` and `pcp.role`; the manifest of a bundle is read from them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pcp.dialect import function_body
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.dialect.roles import EVALUATION, INIT, MODEL_STATE, NAME, ROLE
from pcp.errors import PassError

__all__ = ["INIT", "NAME", "ROLE"]

#: The roles of what a training step keeps for the next one.
KEPT = ("param", "state", MODEL_STATE)

PARTS = "pcp.parts"
"""On a function that only calls its parts, see `pcp-split-functions`."""
PART = "pcp.part"
"""On a function that is one."""

COMPUTE = "pcp.compute"
"""On a parameter or loss: the type the model has it in, where that is narrower."""


@dataclass(frozen=True)
class Port:
    """One tensor that crosses a function's border."""

    name: str
    role: str
    type: ir.Type

    def attributes(self) -> ir.DictAttr:
        """Its attributes on an argument or result."""
        return ir.DictAttr.get(
            {
                NAME: ir.StringAttr.get(self.name),
                ROLE: ir.StringAttr.get(self.role),
            }
        )


Build = Callable[..., Sequence[tuple[Port, ir.Value]]]


def find(module: ir.Module, name: str) -> ir.Operation | None:
    """The function of that name with a body, or None."""
    for op in module.body.operations:
        if op.operation.name == "func.func" and symbol_name(op) == name:
            return op.operation if op.regions[0].blocks else None
    return None


def callees(op: ir.Operation) -> Iterator[str]:
    """The functions that an op calls, or stands for."""
    for key in ("callee", "decomposition"):
        if key in op.attributes:
            yield ir.FlatSymbolRefAttr(op.attributes[key]).value


def symbol_name(op: ir.Operation | ir.OpView) -> str:
    """The name of a symbol."""
    return ir.StringAttr(op.attributes["sym_name"]).value


def evaluation_of(module: ir.Module, func: str) -> ir.Operation | None:
    """The function that a model is evaluated by, where it is another one than @func.

    `PassError` where there is none of the name that @func says.
    """
    main = find(module, func)
    if main is None or EVALUATION not in main.attributes:
        return None
    name = ir.FlatSymbolRefAttr(main.attributes[EVALUATION]).value
    if (found := find(module, name)) is None:
        raise PassError(
            f"{location_string(main.location)}: {EVALUATION} of @{func} names @{name}, "
            "and the module has no such function"
        )
    return found


def is_public(op: ir.Operation) -> bool:
    """Whether a symbol may be used from outside of its module."""
    visibility = op.attributes.get("sym_visibility")
    return visibility is None or ir.StringAttr(visibility).value == "public"


def entry(function: ir.Operation) -> ir.Block:
    """A function's first block; its arguments are the function's."""
    return function.regions[0].blocks[0]


def define(
    module: ir.Module,
    name: str,
    inputs: Sequence[Port],
    build: Build,
    *,
    private: bool = False,
) -> ir.Operation:
    """Append `func.func @name`; `build(*arguments)` gives its results as ports."""
    if name in {symbol_name(op) for op in module.body if "sym_name" in op.attributes}:
        raise PassError(
            f"the module has a symbol @{name} already, which this pass makes; rename it"
        )
    location = ir.Location.name(name, context=module.context)
    with ir.InsertionPoint(module.body), location:
        attributes: dict[str, ir.Attribute] = function_body.named(name)
        if private:
            attributes["sym_visibility"] = ir.StringAttr.get("private")
        function, block = function_body.begin(attributes, [p.type for p in inputs])
        with ir.InsertionPoint(block):
            results = list(build(*block.arguments))
        function_body.finish(function, [value for _, value in results])
        function.attributes["arg_attrs"] = _attributes(inputs)
        function.attributes["res_attrs"] = _attributes([port for port, _ in results])
    return function


def call(callee: str, arguments: Sequence[ir.Value], results: Sequence[ir.Type]):
    """`func.call @callee(...)`; its results."""
    return ir.Operation.create(
        "func.call",
        operands=list(arguments),
        results=list(results),
        attributes={"callee": ir.FlatSymbolRefAttr.get(callee)},
    ).results


def _attributes(ports: Sequence[Port]) -> ir.ArrayAttr:
    return ir.ArrayAttr.get([port.attributes() for port in ports])


# --- attributes of arguments and results ---


def function_type(function: ir.Operation) -> ir.FunctionType:
    """Its inputs and results."""
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def argument_attributes(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """The attributes of each argument."""
    return _read(function, "arg_attrs", len(function_type(function).inputs))


def result_attributes(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """The attributes of each result."""
    return _read(function, "res_attrs", len(function_type(function).results))


def set_argument_attributes(
    function: ir.Operation, attributes: Sequence[dict[str, ir.Attribute]]
) -> None:
    """Replace the attributes of all arguments."""
    _write(function, "arg_attrs", attributes)


def set_result_attributes(
    function: ir.Operation, attributes: Sequence[dict[str, ir.Attribute]]
) -> None:
    """Replace the attributes of all results."""
    _write(function, "res_attrs", attributes)


def _read(
    function: ir.Operation, key: str, count: int
) -> list[dict[str, ir.Attribute]]:
    if key not in function.attributes:
        return [{} for _ in range(count)]
    return [
        {entry.name: entry.attr for entry in ir.DictAttr(item)}
        for item in ir.ArrayAttr(function.attributes[key])
    ]


def _write(
    function: ir.Operation, key: str, attributes: Sequence[dict[str, ir.Attribute]]
) -> None:
    context = function.context
    dictionaries = [ir.DictAttr.get(item, context=context) for item in attributes]
    function.attributes[key] = ir.ArrayAttr.get(dictionaries, context=context)


def string(attributes: dict[str, ir.Attribute], key: str) -> str | None:
    """A string attribute of an argument or result, or None."""
    return ir.StringAttr(attributes[key]).value if key in attributes else None


def argument_ports(function: ir.Operation) -> list[Port]:
    """The arguments; `PassError` where a name or role is missing."""
    ports = []
    types = function_type(function).inputs
    for i, found in enumerate(argument_attributes(function)):
        name, role = string(found, NAME), string(found, ROLE)
        if name is None or role is None:
            where = location_string(entry(function).arguments[i].location)
            raise PassError(
                f"{where}: argument {i} of @{symbol_name(function)} has no "
                "pcp.name and pcp.role; run pcp-infer-roles first"
            )
        ports.append(Port(name, role, types[i]))
    return ports
