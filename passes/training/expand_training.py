"""pcp-expand-training: the optimizer and the outer algorithm as functions.

The parts are built by `pcp.passes.training.optimizers`, `pcp.passes.training.outer` and
`pcp.passes.training.initialize`; this file says which functions there are, and what
crosses their borders.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, cycle, islice

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.roles import MODEL_STATE
from pcp.errors import ConfigError, PassError
from pcp.initializer import FROM_PARAMETERS, Init
from pcp.passes.core import fresh, functions
from pcp.passes.core import spec as specs
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import Port
from pcp.passes.core.spec import Spec
from pcp.passes.training import (
    first_values,
    initialize,
    model_state,
    trainable,
    written,
)
from pcp.passes.training.optimizers import groups
from pcp.passes.training.optimizers.groups import Groups
from pcp.passes.training.outer import spec as outer_specs
from pcp.passes.training.outer.parts import group, pieces
from pcp.passes.training.outer.parts.pieces import Fragment
from pcp.passes.training.outer.parts.probes import Slopes
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Slot, Tensors
from pcp.passes.training.trainable import Trainable
from pcp.passes.training.update import (
    Update,
    add_apply,
    add_inner_init,
    step_port,
    update_of,
)

Value = ir.Value
JVP = "jvp"
"""What `pcp-jvp` made of @main, for algorithms that need it."""


@dataclass(frozen=True)
class ExpandTraining(Pass):
    """Add @init, @apply, @eval and the outer algorithm's functions to a model.

    Assumes a @main whose arguments and results have names and roles
    (`pcp-infer-roles`), whose parameters are f32 or f64 (`pcp-master-weights`) and
    whose first result is the loss, and a @grad that gives what @main does and one
    gradient a parameter (`pcp-grad{func=main name=grad}`). Leaves both, and adds

    - `@init(seed) -> params, model state, state`
    - `@inner_init(params) -> state`, that of @init for parameters that are given, where
      it follows from them: averages, an optimizer of optax that copies parameters
    - `@apply(params, grads, state) -> params, state`
    - `@eval(inputs of @main) -> loss, metrics`, by the function that `pcp.evaluation`
      on @main names, if there is one
    - `@state_sync(model state before, model state, tokens) -> model state`
    - `@outer_init(params) -> state`
    - `@outer_step(anchors, params, state, received, tokens) -> params, state`
    - `@outer_early(state) -> received`
    - `@outer_send_p(anchors, params) -> sent`
    - `@outer_exchange_p(sent, tokens) -> received`
    - `@outer_apply_p(anchors, params, state, received) -> anchors, params, state`
    - `@grad_sync(grads, state, tokens) -> grads, state`

    of which an algorithm has what it needs: `diloco` outer_init and outer_step, `ddp`
    the last, `streaming_diloco` three for each fragment p, `none`, for one worker
    alone, nothing; those that join workers have @state_sync where there is state
    (`pcp.passes.training.model_state`). With `mezo` and `forward_gradient` there is no
    @grad before; this adds one that gives a slope, and @grad_sync takes that.
    `optimizer` is one of those in `pcp.passes.training.optimizers.spec`, as
    `adamw{lr=6e-4}`; `algorithm` one of those in `pcp.passes.training.outer.spec`, as
    `diloco{lr=0.7,momentum=0.9}`. With `ema=0.999` @apply keeps an average of each
    parameter, which decays so, and @state_sync makes one of all workers'. Where the
    module notes a policy that scales the loss (`pcp-precision`), @grad takes the scale
    as state, and is `pcp-grad{func=main name=grad seed=true}`. Every argument and
    result carries `pcp.name` and `pcp.role`; the module carries both specs as
    `pcp.optimizer` and `pcp.algorithm`.

    Each `pcp.optimizer` and `pcp.outer` is expanded, unless `expand` is false: the
    program's own, the one that @apply is, if the optimizer is one of the op's and has
    no groups, and the one that @outer_step is, of `diloco` and `average`. With `func=`
    (empty), or where the module has such ops and no @main, no function is added.

    Before, run as pcp-expand-training{optimizer=sgd{lr=0.1} algorithm=none}:

        func.func @main(%w: tensor<4xf32> {pcp.role = "param", ...}, %x: ...)
        func.func @grad(%w: tensor<4xf32>, %x: ...) -> (tensor<f32>, tensor<4xf32>)

    After, besides:

        func.func @apply(%w: tensor<4xf32>, %g: tensor<4xf32>, %step: tensor<i32>)
            -> (tensor<4xf32>, tensor<i32>) {
          %one = stablehlo.constant dense<1> : tensor<i32>
          %0 = stablehlo.add %step, %one : tensor<i32>
          %lr = stablehlo.constant dense<0.1> : tensor<4xf32>
          %1 = stablehlo.multiply %g, %lr : tensor<4xf32>
          %2 = stablehlo.subtract %w, %1 : tensor<4xf32>
          return %2, %0 : tensor<4xf32>, tensor<i32>
        }
    """

    name = "pcp-expand-training"
    optimizer: str = "adamw"
    algorithm: str = "diloco"
    func: str = "main"
    grad: str = "grad"
    expand: bool = True
    ema: float = 0.0

    def run(self, module: ir.Module) -> None:
        """Add the functions, and expand the ops."""
        if self.func and (
            functions.find(module, self.func) or not written.any_in(module)
        ):
            self._add_functions(module)
        if self.expand:
            with module.context:
                written.expand_all(module)

    def _add_functions(self, module: ir.Module) -> None:
        try:
            optimizer = groups.parse(self.optimizer)
            algorithm = outer_specs.parse(self.algorithm)
        except ConfigError as error:
            raise PassError(f"{self.name}: {error}") from error
        if not 0 <= self.ema < 1:
            raise PassError(f"{self.name}: ema={self.ema}: a decay lies in [0, 1)")
        expand_training(module, optimizer, algorithm, self.func, self.grad, self.ema)


def expand_training(
    module: ir.Module,
    optimizer: Groups,
    algorithm: Spec,
    func: str = "main",
    grad: str = "grad",
    ema: float = 0.0,
) -> None:
    """See `ExpandTraining`."""
    with module.context, module.operation.location:
        rule = outer_rule(algorithm)
        if rule.differences:
            trainable.refuse_differences(module, func, algorithm.kind)
        training = trainable.read(module, func, None if rule.probe else grad)
        _check_policy(training, algorithm, rule)
        update = update_of(module, training, optimizer, ema)
        add_init(module, training, update)
        add_inner_init(module, training, update)
        add_apply(module, training, update)
        add_eval(module, training, func)
        add_outer(module, training, algorithm, rule)
        states = model_state.states_of(training, update)
        model_state.add_sync(module, states, rule.plan(algorithm), algorithm.kind)
        if rule.probe is not None:
            Slopes(module, training, algorithm).add(rule.probe, func, JVP)
        for key, spec in (("pcp.optimizer", optimizer), ("pcp.algorithm", algorithm)):
            module.operation.attributes[key] = ir.StringAttr.get(str(spec))


def outer_rule(spec: Spec) -> OuterRule:
    """The outer algorithm of a spec."""
    return specs.rule_of(spec, "pcp.passes.training.outer")


def _check_policy(training: Trainable, algorithm: Spec, rule: OuterRule) -> None:
    """`PassError` for an algorithm whose own updates narrow parameters would lose."""
    if training.policy.params != "f32" and (rule.step or rule.pieces or rule.probe):
        raise PassError(
            f"algorithm {algorithm.kind} updates parameters by itself, and "
            f"params={training.policy.params} would lose small updates; keep "
            "params=f32, or take one that exchanges gradients: ddp, none"
        )


# --- @init ---


def add_init(module: ir.Module, training: Trainable, update: Update) -> None:
    """`@init(seed) -> params, model state, state`.

    First values, a first state, step 0; all but what is given, or follows from what is.
    """
    seed = Port("seed", "seed", hlo.tensor((), ir.IntegerType.get_signless(64)))
    drawn = [*zip(training.params, training.inits, strict=True)]
    drawn += [(s.port, s.init) for s in training.state if s.init is not None]
    drawn = [(port, init) for port, init in drawn if not init.of]
    ports, count = [*update.ports, step_port()], len(drawn)
    fills = [first_values.filled(number) for number in [*update.begins, 0]]
    # Beside a parameter that is given, @inner_init makes what follows from parameters.
    given = any(init.of for init in training.inits)
    kept = [not (given and fill == FROM_PARAMETERS) for fill in fills]
    draw = _drawers(module, drawn)

    def build(seed: Value) -> list[tuple[Port, Value]]:
        key = initialize.key_of(seed)
        values = [draw(i, key, seed) for i in range(count)]
        rest, pairs = iter(values), zip(training.params, training.inits, strict=True)
        params = [hlo.zeros(p.type) if init.of else next(rest) for p, init in pairs]
        state = update.first(params, lambda i: fresh.numbered(seed, count + i))
        step = fresh.numbered(seed, count + len(state))
        state += [fresh.filled(ports[-1].type, 0, step)]
        named = [port for port, _ in drawn]
        named += compress(ports, kept)
        values += compress(state, kept)
        return [*zip(named, values, strict=True)]

    function = functions.define(module, "init", [seed], build)
    first_values.say(function, [*(init for _, init in drawn), *compress(fills, kept)])


def _drawers(
    module: ir.Module, drawn: Sequence[tuple[Port, Init]]
) -> Callable[..., Value]:
    """How tensor i is drawn: one private function a shape and distribution."""
    made: dict[tuple[Init, str], str] = {}

    def draw(i: int, key: initialize.Key, seed: Value) -> Value:
        type_, init = drawn[i][0].type, drawn[i][1]
        if not init.random:
            return fresh.filled(type_, init.fill, fresh.numbered(seed, i))
        stream = hlo.constant(i, hlo.tensor((), ir.IntegerType.get_signless(32)))
        if (init, str(type_)) not in made:
            made[init, str(type_)] = f"init.{len(made)}"
            build = partial(initialize.build, init)
            initialize.define(module, made[init, str(type_)], type_, build)
        arguments = [key.low, key.high, stream]
        return functions.call(made[init, str(type_)], arguments, [type_])[0]

    return draw


# --- @eval ---


def add_eval(module: ir.Module, training: Trainable, func: str) -> None:
    """`@eval(inputs) -> loss, metrics`: the forward alone, which leaves the state.

    That of the function that @main names for it, or of @main itself.
    """
    name, results = func, training.results
    if (evaluation := functions.evaluation_of(module, func)) is not None:
        name = functions.symbol_name(evaluation)
        results = trainable.evaluated(evaluation, training)

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        found = functions.call(name, arguments, [port.type for port in results])
        pairs = zip(results, found, strict=True)
        return [(port, x) for port, x in pairs if port.role != MODEL_STATE]

    functions.define(module, "eval", training.inputs, build)


# --- the outer algorithm ---


def add_outer(
    module: ir.Module, training: Trainable, spec: Spec, rule: OuterRule
) -> None:
    """The functions of the outer algorithm: see `pcp.passes.training.outer.rule`."""
    if not (rule.step or rule.every_step or rule.pieces or rule.probe):
        return
    plan = rule.plan(spec)
    if plan.synchronize != "never":
        group.declare_mesh(module, group.PAIR if plan.in_pairs else group.AXIS)
    state = OuterState(training, rule.state(spec))
    if rule.step is not None or state.slots:
        add_outer_init(module, training, state)
    if rule.probe is not None:
        return  # see `pcp.passes.training.outer.parts.probes`
    if rule.pieces is not None:
        for i, part in enumerate(pieces.fragments(training, spec, rule.pieces)):
            fragment = OuterState(part, rule.state(spec))
            Fragment(i, part.params, fragment, _tokens()).add(module, spec, rule.pieces)
        return
    if rule.every_step is not None:
        add_grad_sync(module, training, state, partial(rule.every_step, spec))
        return
    received = add_early(module, state, spec, rule)
    assert rule.step is not None
    own = plan.synchronize == "round" and plan.parameters != "shared"
    role = "replica" if own else "anchor"
    anchors = [Port(p.name, role, p.type) for p in training.params]
    inputs = [anchors, training.params, state.ports(), received, [_tokens()]]
    step = written.write_outer if written.can_write_outer(spec) else rule.step
    add_outer_step(module, training, state, inputs, partial(step, spec))


@dataclass(frozen=True)
class OuterState:
    """The slots of an algorithm as tensors that cross a function's border."""

    training: Trainable
    slots: Sequence[Slot]

    def ports(self) -> list[Port]:
        """All of them, slot by slot."""
        return [port for slot in self.slots for port in self.of(slot)]

    def of(self, slot: Slot) -> list[Port]:
        """Those of a slot: one a parameter in their order, or one in all."""
        params = self.training.params
        if slot.whole is not None:
            return [Port(slot.name, slot.role, slot.whole([p.type for p in params]))]
        return [
            Port(f"{slot.name}.{p.name}", slot.role, slot.each(p.type)) for p in params
        ]

    def by_slot(self, values: Sequence[Value]) -> Tensors:
        """The values, in the order of the ports, by slot."""
        rest = iter(values)
        return {slot.name: [*islice(rest, len(self.of(slot)))] for slot in self.slots}

    def in_order(self, tensors: Mapping[str, Sequence[Value]]) -> list[Value]:
        """The tensors of all slots, in the order of the ports."""
        return [value for slot in self.slots for value in tensors[slot.name]]


def _tokens() -> Port:
    return Port("tokens", "tokens", hlo.tensor((), ir.F32Type.get()))


def add_outer_init(module: ir.Module, training: Trainable, state: OuterState) -> None:
    """`@outer_init(params) -> state`: zeros.

    Those of a parameter come from its own elements: no device of a mesh needs another
    for them, and no group is there yet. Of a program that is to be spread, a number for
    all parameters is a constant; who keeps it copies it.
    """
    ports = [(port, slot) for slot in state.slots for port in state.of(slot)]

    def build(*params: Value) -> list[tuple[Port, Value]]:
        floats = [hlo.convert(p, ir.F32Type.get()) for p in params]
        own, alone = cycle(floats), not group.is_spread()
        values = []
        for i, (port, slot) in enumerate(ports):
            if slot.whole is None or alone:
                source = next(own) if slot.whole is None else hlo.sum_all(floats[0])
                word = fresh.numbered(fresh.bits(source), i)
                values.append((port, fresh.filled(port.type, 0, word)))
            else:
                values.append((port, hlo.zeros(port.type)))
        return values

    functions.define(module, "outer_init", training.params, build)


def add_early(
    module: ir.Module, state: OuterState, spec: Spec, rule: OuterRule
) -> list[Port]:
    """`@outer_early(state) -> received`, if the algorithm has it; what it gives."""
    if rule.early is None:
        return []
    early, received = rule.early, []

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        values = early(spec, state.by_slot(arguments))
        received.extend(
            Port(f"received.{i}", "received", value.type)
            for i, value in enumerate(values)
        )
        return [*zip(received, values, strict=True)]

    functions.define(module, "outer_early", state.ports(), build)
    return received


def add_outer_step(
    module: ir.Module,
    training: Trainable,
    state: OuterState,
    groups: Sequence[Sequence[Port]],
    step: Callable[[OuterRound], tuple[list[Value], Tensors]],
) -> None:
    """`@outer_step(anchors, params, state, received, tokens) -> params, state`."""

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        rest = iter(arguments)
        start, own, kept, got, (tokens,) = [[*islice(rest, len(g))] for g in groups]
        now = OuterRound(start, own, tokens, state.by_slot(kept), got)
        params, tensors = step(now)
        ports = [*training.params, *state.ports()]
        return [*zip(ports, [*params, *state.in_order(tensors)], strict=True)]

    functions.define(module, "outer_step", [p for g in groups for p in g], build)


def add_grad_sync(
    module: ir.Module,
    training: Trainable,
    state: OuterState,
    every_step: Callable[..., tuple[list[Value], Mapping[str, Sequence[Value]]]],
) -> None:
    """`@grad_sync(grads, state, tokens) -> grads, state`."""
    ports, count = state.ports(), len(training.params)

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        *tensors, tokens = arguments
        kept = state.by_slot(tensors[count:])
        grads, new = every_step(tensors[:count], kept, tokens)
        values = [*grads, *state.in_order(new)]
        return [*zip([*training.grads, *ports], values, strict=True)]

    functions.define(module, "grad_sync", [*training.grads, *ports, _tokens()], build)
