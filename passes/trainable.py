"""What a model says about its training: checked, and described.

`read` looks at @main and @grad, and gives @grad the names and roles of @main's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import location_string
from pcp.errors import ConfigError, PassError
from pcp.passes import functions, initialize
from pcp.passes.functions import Port
from pcp.passes.optimizers import numbers


@dataclass(frozen=True)
class Trainable:
    """What a model says about its training: parameters, data, first values."""

    params: list[Port]
    inits: list[initialize.Init]
    inputs: list[Port]
    loss: ir.Type

    @property
    def grads(self) -> list[Port]:
        """One gradient a parameter, of its name and type."""
        return [Port(p.name, "grad", p.type) for p in self.params]

    def state(self, names: Sequence[str], role: str = "state") -> list[Port]:
        """Tensors of state, of the parameters' shapes: all of one name together."""
        return [
            Port(f"{name}.{p.name}", role, _math(p.type))
            for name in names
            for p in self.params
        ]


def _math(type_: ir.Type) -> ir.Type:
    return hlo.like(type_, element=numbers.math_type(hlo.element_type(type_)))


def read(module: ir.Module, func: str, grad: str | None) -> Trainable:
    """Check @main and @grad, give @grad its names and roles, and describe them.

    Without `grad`, there is none yet.
    """
    main = functions.find(module, func)
    if main is None:
        raise PassError(f"the module has no function @{func} to train")
    inputs = functions.argument_ports(main)
    params = [port for port in inputs if port.role == "param"]
    if not params:
        raise PassError(
            f"{location_string(main.location)}: @{func} has no parameters; mark them "
            'with {pcp.role = "param"}'
        )
    for i, port in enumerate(inputs):
        if port.role not in ("param", "data"):
            where = location_string(functions.entry(main).arguments[i].location)
            raise PassError(
                f"{where}: argument {port.name!r} has the role {port.role!r}; a model "
                'to train takes "param" and "data" only; what no gradient reaches is '
                "a constant if it is frozen before the export (requires_grad_(False))"
            )
    loss = _loss(main, func)
    training = Trainable(params, _inits(main), inputs, loss)
    functions.set_result_attributes(main, [_attributes(Port("loss", "loss", loss))])
    if grad is not None:
        _annotate_grad(module, training, grad)
    return training


def _attributes(port: Port) -> dict[str, ir.Attribute]:
    return {entry.name: entry.attr for entry in port.attributes()}


def _loss(main: ir.Operation, func: str) -> ir.Type:
    results = functions.function_type(main).results
    if len(results) != 1 or not is_scalar_float(results[0]):
        found = ", ".join(map(str, results)) or "nothing"
        raise PassError(
            f"{location_string(main.location)}: @{func} returns {found}; training "
            "needs one floating-point scalar, the loss"
        )
    return results[0]


def is_scalar_float(type_: ir.Type) -> bool:
    """Whether it is a rank-0 tensor of a float."""
    return (
        isinstance(type_, ir.RankedTensorType)
        and type_.rank == 0
        and hlo.is_float(type_.element_type)
    )


def _inits(main: ir.Operation) -> list[initialize.Init]:
    found = []
    for i, attributes in enumerate(functions.argument_attributes(main)):
        if functions.string(attributes, functions.ROLE) != "param":
            continue
        argument = functions.entry(main).arguments[i]
        text = functions.string(attributes, functions.INIT)
        if text is None:
            where = location_string(argument.location)
            raise PassError(
                f"{where}: parameter {i} has no pcp.init; run pcp-infer-roles first"
            )
        try:
            found.append(initialize.parse(text))
        except ConfigError as error:
            where = location_string(argument.location)
            raise PassError(f"{where}: argument {i}: {error}") from error
    return found


def _annotate_grad(module: ir.Module, training: Trainable, name: str) -> None:
    function = functions.find(module, name)
    if function is None:
        raise PassError(
            f"the module has no function @{name}; run pcp-grad{{name={name}}} first"
        )
    wanted = ir.FunctionType.get(
        [port.type for port in training.inputs],
        [training.loss, *(port.type for port in training.grads)],
    )
    if functions.function_type(function) != wanted:
        raise PassError(
            f"{location_string(function.location)}: @{name} is "
            f"{functions.function_type(function)}; training needs {wanted}: the loss, "
            "and one gradient a parameter"
        )
    outputs = [Port("loss", "loss", training.loss), *training.grads]
    functions.set_argument_attributes(function, [*map(_attributes, training.inputs)])
    functions.set_result_attributes(function, [*map(_attributes, outputs)])
