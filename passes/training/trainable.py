"""What a model says about its training: checked, and described.

`read` looks at @main and @grad, and gives @grad the names and roles of @main's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import ConfigError, PassError
from pcp.passes.core import functions
from pcp.passes.core.functions import Port
from pcp.passes.core.narrow_floats import is_narrow
from pcp.passes.training import initialize, master_weights
from pcp.passes.training.optimizers import numbers


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
        where = location_string(functions.entry(main).arguments[i].location)
        if port.role not in ("param", "data"):
            raise PassError(
                f"{where}: argument {port.name!r} has the role {port.role!r}; a model "
                'to train takes "param" and "data" only; what no gradient reaches is '
                "a constant if it is frozen before the export (requires_grad_(False))"
            )
        if port.role == "param" and is_narrow(hlo.element_type(port.type)):
            raise PassError(
                f"{where}: parameter {port.name!r} is {hlo.element_type(port.type)}, "
                "which loses updates smaller than its last place; run "
                "pcp-master-weights in front of the derivative"
            )
    loss = _loss(main, func)
    training = Trainable(params, _inits(main), inputs, loss)
    functions.set_result_attributes(main, [_attributes(Port("loss", "loss", loss))])
    if grad is not None:
        _annotate_grad(module, main, training, grad)
    return training


def refuse_differences(module: ir.Module, func: str, algorithm: str) -> None:
    """`PassError` where the loss of a model is too coarse to take differences of."""
    main = functions.find(module, func)
    assert main is not None
    names = [*functions.argument_attributes(main), *functions.result_attributes(main)]
    for said in names:
        if (narrow := said.get(functions.COMPUTE)) is not None:
            name = functions.string(said, functions.NAME)
            what = f"parameter {name!r}" if name else "the loss"
            raise PassError(
                f"{location_string(main.location)}: {algorithm} takes the difference "
                f"of two losses near each other, and {what} is rounded to {narrow}, "
                "which swallows it; export the model in f32, or take forward_gradient"
            )


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


def _annotate_grad(
    module: ir.Module, main: ir.Operation, training: Trainable, name: str
) -> None:
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
    masters = [
        functions.COMPUTE in said
        for said in functions.argument_attributes(main)
        if functions.string(said, functions.ROLE) == "param"
    ]
    master_weights.unrounded_gradients(function, masters)
    outputs = [Port("loss", "loss", training.loss), *training.grads]
    functions.set_argument_attributes(function, [*map(_attributes, training.inputs)])
    functions.set_result_attributes(function, [*map(_attributes, outputs)])
