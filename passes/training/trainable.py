"""What a model says about its training: checked, and described.

`read` looks at @main and @grad, and gives @grad the names and roles of @main's. From
here on the state of the program has the role `model_state` (`pcp.dialect.roles`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcp.dialect import function_body, hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.dialect.roles import AVERAGE, GIVEN, MODEL_STATE, ROLE, ROLES
from pcp.errors import ConfigError, PassError
from pcp.initializer import Init, parse
from pcp.passes.core import functions
from pcp.passes.core.functions import Port
from pcp.passes.core.narrow_floats import is_narrow
from pcp.passes.core.rewriting import before
from pcp.passes.training import loss_scale, master_weights, precision
from pcp.passes.training.loss_scale import LossScale
from pcp.passes.training.optimizers import numbers
from pcp.passes.training.policy import DEFAULT, Policy


@dataclass(frozen=True)
class ModelState:
    """A tensor of the program's state.

    init: its first value; None where it comes with weights. average: what becomes of it
    when workers meet.
    """

    port: Port
    init: Init | None
    average: str


@dataclass(frozen=True)
class Trainable:
    """What a model says about its training: parameters, data, state, first values.

    `inputs` and `results` are @main's, in its order.
    """

    params: list[Port]
    inits: list[Init]
    inputs: list[Port]
    results: list[Port]
    state: list[ModelState] = field(default_factory=list)
    policy: Policy = DEFAULT

    @property
    def loss(self) -> ir.Type:
        """The type of the loss."""
        return self.results[0].type

    @property
    def grads(self) -> list[Port]:
        """One gradient a parameter, of its name, in the type that updates it."""
        return [Port(p.name, "grad", _math(p.type)) for p in self.params]

    @property
    def loss_scale(self) -> LossScale | None:
        """What @grad multiplies the loss by, if it does."""
        return LossScale.of(self.policy)

    def takes(self, role: str) -> list[Port]:
        """The arguments of a role."""
        return [port for port in self.inputs if port.role == role]


def _math(type_: ir.Type) -> ir.Type:
    return hlo.like(type_, element=numbers.math_type(hlo.element_type(type_)))


def read(module: ir.Module, func: str, grad: str | None) -> Trainable:
    """Check @main and @grad, give @grad its names and roles, and describe them.

    Without `grad`, there is none yet.
    """
    main = functions.find(module, func)
    if main is None:
        raise PassError(f"the module has no function @{func} to train")
    inputs = [_in_training(port) for port in functions.argument_ports(main)]
    params = [port for port in inputs if port.role == "param"]
    policy = precision.noted(module)
    if not params:
        raise PassError(
            f"{location_string(main.location)}: @{func} has no parameters; mark them "
            'with {pcp.role = "param"}'
        )
    for i, port in enumerate(inputs):
        _check_role(main, i, port, policy)
    results, state = _results(main), _state(main)
    training = Trainable(params, _inits(main), inputs, results, state, policy)
    for state in training.state:
        if state.port not in training.results:
            raise PassError(
                f"{location_string(main.location)}: state {state.port.name!r} of "
                f"@{func} has no result of its name and type; run pcp-infer-roles first"
            )
    _annotate_main(main, training)
    if grad is not None:
        _annotate_grad(module, main, training, grad)
    return training


def _check_role(main: ir.Operation, i: int, port: Port, policy: Policy) -> None:
    where = location_string(functions.entry(main).arguments[i].location)
    if port.role not in (*ROLES, MODEL_STATE):
        raise PassError(
            f"{where}: argument {port.name!r} has the role {port.role!r}; a model "
            f"to train takes {', '.join(ROLES)}"
        )
    if port.role == "param":
        _check_element(port, policy, where)


def _check_element(port: Port, policy: Policy, where: str) -> None:
    """`PassError` for a parameter whose updates would be lost."""
    element = hlo.element_type(port.type)
    at_random = policy.rounding == "stochastic" and isinstance(element, ir.BF16Type)
    if is_narrow(element) and not at_random:
        raise PassError(
            f"{where}: parameter {port.name!r} is {element}, which loses updates "
            "smaller than its last place; run pcp-master-weights in front of the "
            "derivative, or for bf16 pcp-precision{params=bf16 rounding=stochastic}"
        )


def evaluated(evaluation: ir.Operation, training: Trainable) -> list[Port]:
    """The results of the function that a model is evaluated by.

    `PassError` unless it takes what @main takes, and gives its loss and metrics.
    """
    where, name = (
        location_string(evaluation.location),
        functions.symbol_name(evaluation),
    )
    takes = [_in_training(port) for port in functions.argument_ports(evaluation)]
    if takes != training.inputs:
        other = [p.name for p in takes if p not in training.inputs] or ["too few"]
        raise PassError(
            f"{where}: @{name} does not take what it evaluates: {other[0]!r} is no "
            "argument of the model, or one of another type"
        )
    found = _results(evaluation)
    given, wanted = (
        [(p.name, p.type) for p in ports if p.role != MODEL_STATE]
        for ports in (found, training.results)
    )
    if given != wanted:
        raise PassError(
            f"{where}: @{name} gives {_listed(given)}, and in training the model gives "
            f"{_listed(wanted)}: the loss and the metrics are the same ones"
        )
    return found


def _listed(results: Sequence[tuple[str, ir.Type]]) -> str:
    return ", ".join(f"{name}: {type_}" for name, type_ in results)


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


def _in_training(port: Port) -> Port:
    role = MODEL_STATE if port.role == "state" else port.role
    return Port(port.name, role, port.type)


def _results(main: ir.Operation) -> list[Port]:
    """The loss, metrics and new state, in their order."""
    types = list(functions.function_type(main).results)
    if not types or not is_scalar_float(types[0]):
        raise _unfit(main, types)
    said = functions.result_attributes(main)
    found = [Port("loss", "loss", types[0])]
    for attributes, type_ in zip(said[1:], types[1:], strict=True):
        role = functions.string(attributes, ROLE)
        name = functions.string(attributes, functions.NAME)
        if name is None or role not in ("metric", "state", MODEL_STATE):
            raise _unfit(main, types)
        found.append(_in_training(Port(name, role, type_)))
    return found


def _unfit(main: ir.Operation, types: Sequence[ir.Type]) -> PassError:
    found = ", ".join(map(str, types)) or "nothing"
    return PassError(
        f"{location_string(main.location)}: @{functions.symbol_name(main)} returns "
        f"{found}; training needs one floating-point scalar, the loss, and beside it "
        "nothing but metrics, which are scalars, and new state"
    )


def _state(main: ir.Operation) -> list[ModelState]:
    ports = map(_in_training, functions.argument_ports(main))
    said = functions.argument_attributes(main)
    return [
        ModelState(port, _first_value(main, i, said[i]), _average(main, port, said[i]))
        for i, port in enumerate(ports)
        if port.role == MODEL_STATE
    ]


def _average(main: ir.Operation, port: Port, said: dict[str, ir.Attribute]) -> str:
    element = hlo.element_type(port.type)
    floats = hlo.is_float(element)
    kind = functions.string(said, AVERAGE) or ("mean" if floats else "max")
    if (kind == "mean" and not floats) or isinstance(element, ir.ComplexType):
        raise PassError(
            f"{location_string(main.location)}: state {port.name!r} is {port.type}, "
            f"which has no {AVERAGE} {kind}; integers have max, sum and first, and "
            "complex numbers are kept as two parts"
        )
    return kind


def _first_value(
    main: ir.Operation, i: int, said: dict[str, ir.Attribute]
) -> Init | None:
    if functions.string(said, functions.INIT) == GIVEN:
        return None
    return _init(main, i, said)


def is_scalar_float(type_: ir.Type) -> bool:
    """Whether it is a rank-0 tensor of a float."""
    return (
        isinstance(type_, ir.RankedTensorType)
        and type_.rank == 0
        and hlo.is_float(type_.element_type)
    )


def _inits(main: ir.Operation) -> list[Init]:
    return [
        _init(main, i, said)
        for i, said in enumerate(functions.argument_attributes(main))
        if functions.string(said, ROLE) == "param"
    ]


def _init(main: ir.Operation, i: int, said: dict[str, ir.Attribute]) -> Init:
    """How an argument starts."""
    where = location_string(functions.entry(main).arguments[i].location)
    text = functions.string(said, functions.INIT)
    if text is None:
        raise PassError(
            f"{where}: argument {i} has no pcp.init; run pcp-infer-roles first"
        )
    try:
        found = parse(text)
    except ConfigError as error:
        raise PassError(f"{where}: argument {i}: {error}") from error
    if found.of and not _has_source(functions.argument_ports(main), i, found):
        raise PassError(
            f"{where}: argument {i} begins as {found}: that is of a parameter, and of "
            "a frozen matrix that has as many vectors"
        )
    return found


def _has_source(ports: Sequence[Port], i: int, init: Init) -> bool:
    """Whether a parameter can begin as norms of a matrix."""
    shapes = {p.name: hlo.shape_of(p.type) for p in ports if p.role == "frozen"}
    shape = shapes.get(init.of, ())
    own, fits = hlo.shape_of(ports[i].type), len(shape) == 2
    return ports[i].role == "param" and fits and own == (shape[1 - init.dimension],)


def _annotate_main(main: ir.Operation, training: Trainable) -> None:
    """Its state is the program's from here on, and its results have names."""
    said = functions.argument_attributes(main)
    for attributes, port in zip(said, training.inputs, strict=True):
        attributes |= _attributes(port)
    functions.set_argument_attributes(main, said)
    functions.set_result_attributes(main, [*map(_attributes, training.results)])


def _annotate_grad(
    module: ir.Module, main: ir.Operation, training: Trainable, name: str
) -> None:
    function = functions.find(module, name)
    if function is None:
        raise PassError(
            f"the module has no function @{name}; run pcp-grad{{name={name}}} first"
        )
    scale = training.loss_scale
    inputs = [*training.inputs, *([scale.port] if scale else [])]
    wanted = ir.FunctionType.get(
        [port.type for port in inputs],
        [port.type for port in (*training.results, *training.params)],
    )
    if functions.function_type(function) != wanted:
        raise PassError(
            f"{location_string(function.location)}: @{name} is "
            f"{functions.function_type(function)}; training needs {wanted}: what the "
            "model returns, and one gradient a parameter"
        )
    _widen_gradients(function, training)
    masters = [
        functions.COMPUTE in said or is_narrow(hlo.element_type(argument))
        for said, argument in zip(
            functions.argument_attributes(main),
            functions.entry(main).arguments,
            strict=True,
        )
        if functions.string(said, ROLE) == "param"
    ]
    master_weights.unrounded_gradients(function, masters, len(training.results))
    if scale is not None:
        _unscale(function, len(training.results))
    outputs = [*training.results, *training.grads]
    functions.set_argument_attributes(function, [*map(_attributes, inputs)])
    functions.set_result_attributes(function, [*map(_attributes, outputs)])


def _end(function: ir.Operation) -> ir.Operation:
    return list(functions.entry(function).operations)[-1].operation


def _widen_gradients(function: ir.Operation, training: Trainable) -> None:
    """Give gradients of narrow parameters in the type that updates them."""
    end = _end(function)
    with before(end):
        for i, port in enumerate(training.grads, len(training.results)):
            wide = hlo.convert(end.operands[i], hlo.element_type(port.type))
            end.operands[i] = wide
    function_body.retype(function)


def _unscale(function: ir.Operation, first: int) -> None:
    """Divide the gradients by the last argument, which the loss was multiplied by.

    They are the results from number `first` on.
    """
    end, scale = _end(function), list(functions.entry(function).arguments)[-1]
    with before(end):
        gradients = loss_scale.unscaled(list(end.operands)[first:], scale)
        for i, gradient in enumerate(gradients, first):
            end.operands[i] = gradient
