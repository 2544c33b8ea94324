"""pcp-expand-training: the optimizer and the outer algorithm as functions.

The parts are built by `pcp.passes.optimizers`, `pcp.passes.outer` and
`pcp.passes.initialize`; this file says which functions there are, and what crosses
their borders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.errors import ConfigError, PassError
from pcp.passes import fresh, functions, initialize, trainable
from pcp.passes.base import Pass
from pcp.passes.functions import Port
from pcp.passes.optimizers import clip, numbers
from pcp.passes.optimizers import spec as optimizer_specs
from pcp.passes.optimizers.rule import Rule, clock
from pcp.passes.optimizers.spec import Optimizer
from pcp.passes.outer import group
from pcp.passes.outer import spec as outer_specs
from pcp.passes.outer.rule import OuterRule
from pcp.passes.spec import Spec
from pcp.passes.trainable import Trainable

Value = ir.Value


@dataclass(frozen=True)
class ExpandTraining(Pass):
    """Add @init, @apply, @eval and the outer algorithm's functions to a model.

    Assumes a @main whose arguments have names and roles (`pcp-infer-roles`) and
    whose result is the loss, and a @grad that gives the loss and one gradient a
    parameter (`pcp-grad{func=main name=grad}`). Leaves both, and adds

        @init(seed) -> params, state
        @apply(params, grads, state) -> params, state
        @eval(params, data) -> loss
        @outer_init(params) -> momentum                             (diloco, average)
        @outer_step(anchors, params, momentum, tokens) -> params, momentum
        @grad_sync(grads, tokens) -> grads                                      (ddp)

    `optimizer` is `adamw{...}`, `sgd{...}` or `nesterov{...}`; `algorithm` is
    `diloco{...}`, `average`, `ddp`, or `none` for one worker alone. Every argument
    and result carries `pcp.name` and `pcp.role`; the module carries both specs as
    `pcp.optimizer` and `pcp.algorithm`.

    Before, run as pcp-expand-training{optimizer=sgd{lr=0.1} algorithm=none}:

        func.func @main(%w: tensor<4xf32> {pcp.role = "param", ...}, %x: ...)
        func.func @grad(%w: tensor<4xf32>, %x: ...) -> (tensor<f32>, tensor<4xf32>)

    After, besides:

        func.func @apply(%w: tensor<4xf32>, %g: tensor<4xf32>, %step: tensor<i32>) {
          %0 = stablehlo.add %step, 1
          %1 = stablehlo.multiply %g, 0.1
          %2 = stablehlo.subtract %w, %1
          return %2, %0
        }
    """

    name = "pcp-expand-training"
    optimizer: str = "adamw"
    algorithm: str = "diloco"
    func: str = "main"
    grad: str = "grad"

    def run(self, module: ir.Module) -> None:
        """Add the functions."""
        try:
            optimizer = optimizer_specs.parse(self.optimizer)
            algorithm = outer_specs.parse(self.algorithm)
        except ConfigError as error:
            raise PassError(f"{self.name}: {error}") from error
        expand_training(module, optimizer, algorithm, self.func, self.grad)


def expand_training(
    module: ir.Module,
    optimizer: Optimizer,
    algorithm: Spec,
    func: str = "main",
    grad: str = "grad",
) -> None:
    """See `ExpandTraining`."""
    with module.context, module.operation.location:
        training = trainable.read(module, func, grad)
        rule = optimizer_rule(optimizer)
        add_init(module, training, optimizer, rule)
        add_apply(module, training, optimizer, rule)
        add_eval(module, training, func)
        add_outer(module, training, algorithm, outer_rule(algorithm))
        for key, spec in (("pcp.optimizer", optimizer), ("pcp.algorithm", algorithm)):
            module.operation.attributes[key] = ir.StringAttr.get(str(spec))


def optimizer_rule(spec: Optimizer) -> Rule:
    """The update rule of a spec, from the file of its name."""
    return import_module(f"pcp.passes.optimizers.{spec.kind}").RULE


def outer_rule(spec: Spec) -> OuterRule:
    """The outer algorithm of a spec, from the file of its name."""
    return import_module(f"pcp.passes.outer.{spec.kind}").RULE


# --- @init ---


def _step_port() -> Port:
    return Port("step", "state", hlo.tensor((), ir.IntegerType.get_signless(32)))


def add_init(
    module: ir.Module, training: Trainable, spec: Optimizer, rule: Rule
) -> None:
    """`@init(seed) -> params, state`: first values, a zero state, step 0."""
    seed = Port("seed", "seed", hlo.tensor((), ir.IntegerType.get_signless(64)))
    state = [*training.state(rule.slots(spec)), _step_port()]
    draw = _drawers(module, training)

    def build(seed: Value) -> list[tuple[Port, Value]]:
        key = initialize.key_of(seed)
        values = [draw(i, key, seed) for i in range(len(training.params))]
        for port in state:
            source = fresh.numbered(seed, len(values))
            values.append(fresh.filled(port.type, 0, source))
        return [*zip([*training.params, *state], values, strict=True)]

    functions.define(module, "init", [seed], build)


def _drawers(module: ir.Module, training: Trainable) -> Callable[..., Value]:
    """How parameter i is drawn: one private function a shape and distribution."""
    made: dict[tuple[initialize.Init, str], str] = {}

    def draw(i: int, key: initialize.Key, seed: Value) -> Value:
        init, type_ = training.inits[i], training.params[i].type
        if not init.random:
            return fresh.filled(type_, init.fill, fresh.numbered(seed, i))
        stream = hlo.constant(i, hlo.tensor((), ir.IntegerType.get_signless(32)))
        if (init, str(type_)) not in made:
            made[init, str(type_)] = f"init.{len(made)}"
            _define_drawer(module, made[init, str(type_)], init, type_)
        arguments = [key.low, key.high, stream]
        return functions.call(made[init, str(type_)], arguments, [type_])[0]

    return draw


def _define_drawer(
    module: ir.Module, name: str, init: initialize.Init, type_: ir.Type
) -> None:
    word = hlo.tensor((), ir.IntegerType.get_signless(32))
    inputs = [Port(n, "seed", word) for n in ("low", "high", "stream")]

    def build(low: Value, high: Value, stream: Value) -> list[tuple[Port, Value]]:
        drawn = initialize.build(init, type_, initialize.Key(low, high), stream)
        return [(Port("drawn", "result", type_), drawn)]

    functions.define(module, name, inputs, build, private=True)


# --- @apply and @eval ---


def add_apply(
    module: ir.Module, training: Trainable, spec: Optimizer, rule: Rule
) -> None:
    """`@apply(params, grads, state) -> params, state`: one optimizer step."""
    slots, count = rule.slots(spec), len(training.params)
    state = training.state(slots)
    inputs = [*training.params, *training.grads, *state, _step_port()]

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        *tensors, step = arguments
        step = hlo.add(step, hlo.constant_like(step, 1))
        params, grads = tensors[:count], tensors[count : 2 * count]
        kept = [tensors[(2 + s) * count : (3 + s) * count] for s in range(len(slots))]
        new = _updates(spec, rule, step, params, grads, kept)
        ports = [*training.params, *state, _step_port()]
        return [*zip(ports, [*new, step], strict=True)]

    functions.define(module, "apply", inputs, build)


def _updates(
    spec: Optimizer,
    rule: Rule,
    step: Value,
    params: Sequence[Value],
    grads: Sequence[Value],
    kept: Sequence[Sequence[Value]],
) -> list[Value]:
    """New parameters, then the new tensors of each slot."""
    shared = {}
    rows = []
    grads = [numbers.widen(g) for g in grads]
    factor = clip.clip_factor(grads, spec.clip_norm) if spec.clip_norm else None
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        wide = numbers.widen(p)
        element = hlo.element_type(wide)
        if str(element) not in shared:
            shared[str(element)] = rule.before(spec, clock(spec, step, element, factor))
        slots = [slot[i] for slot in kept]
        new, *rest = rule.update(spec, shared[str(element)], wide, g, *slots)
        rows.append([hlo.convert(new, hlo.element_type(p)), *rest])
    return [value for column in zip(*rows, strict=True) for value in column]


def add_eval(module: ir.Module, training: Trainable, func: str) -> None:
    """`@eval(params, data) -> loss`: the forward alone."""

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        loss = functions.call(func, arguments, [training.loss])[0]
        return [(Port("loss", "loss", training.loss), loss)]

    functions.define(module, "eval", training.inputs, build)


# --- the outer algorithm ---


def add_outer(
    module: ir.Module, training: Trainable, spec: Spec, rule: OuterRule
) -> None:
    """@outer_init and @outer_step, or @grad_sync, or nothing."""
    if rule.every_step is not None:
        group.declare_mesh(module)
        add_grad_sync(module, training, spec, rule)
    elif rule.step is not None:
        group.declare_mesh(module)
        add_outer_init(module, training, spec, rule)
        add_outer_step(module, training, spec, rule)


def _tokens() -> Port:
    return Port("tokens", "tokens", hlo.tensor((), ir.F32Type.get()))


def _momenta(training: Trainable, spec: Spec, rule: OuterRule) -> list[Port]:
    return training.state(["outer"] if rule.has_momentum(spec) else [], "momentum")


def add_outer_init(
    module: ir.Module, training: Trainable, spec: Spec, rule: OuterRule
) -> None:
    """`@outer_init(params) -> momentum`: zeros."""
    momenta = _momenta(training, spec, rule)

    def build(*params: Value) -> list[tuple[Port, Value]]:
        return [
            (port, fresh.filled(port.type, 0, fresh.bits(p)))
            for port, p in zip(momenta, params[: len(momenta)], strict=True)
        ]

    functions.define(module, "outer_init", training.params, build)


def add_outer_step(
    module: ir.Module, training: Trainable, spec: Spec, rule: OuterRule
) -> None:
    """`@outer_step(anchors, params, momentum, tokens) -> params, momentum`."""
    assert rule.step is not None
    step, count = rule.step, len(training.params)
    anchors = [Port(p.name, "anchor", p.type) for p in training.params]
    momenta = _momenta(training, spec, rule)

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        *tensors, tokens = arguments
        split = [tensors[:count], tensors[count : 2 * count], tensors[2 * count :]]
        params, buffers = step(spec, *split, tokens)
        ports = [*training.params, *momenta]
        return [*zip(ports, [*params, *buffers], strict=True)]

    inputs = [*anchors, *training.params, *momenta, _tokens()]
    functions.define(module, "outer_step", inputs, build)


def add_grad_sync(
    module: ir.Module, training: Trainable, spec: Spec, rule: OuterRule
) -> None:
    """`@grad_sync(grads, tokens) -> grads`."""
    assert rule.every_step is not None
    every_step = rule.every_step

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        *grads, tokens = arguments
        return [*zip(training.grads, every_step(spec, grads, tokens), strict=True)]

    functions.define(module, "grad_sync", [*training.grads, _tokens()], build)
