"""What one step does to parameters and state: an optimizer, and what is around it.

An `Update` says what it keeps, what that is before the first step, and what a step
makes of it. Those that stand around another one add to what it keeps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.roles import MODEL_STATE
from pcp.errors import PassError
from pcp.passes.core import fresh, functions
from pcp.passes.core.functions import Port
from pcp.passes.training import loss_scale, written
from pcp.passes.training.loss_scale import LossScale
from pcp.passes.training.optimizers import apply, numbers, rounding
from pcp.passes.training.optimizers.apply import Trained
from pcp.passes.training.optimizers.groups import Groups
from pcp.passes.training.optimizers.imported import ImportedRule
from pcp.passes.training.trainable import Trainable

Value = ir.Value

Source = Callable[[int], Value]
"""Something known at run time only, another for each number (`fresh.numbered`)."""


def step_port() -> Port:
    """The number of the last step: rank-0 i32."""
    return Port("step", "state", hlo.tensor((), ir.IntegerType.get_signless(32)))


@dataclass(frozen=True)
class Stepped:
    """What a step is given: its number's predecessor, and tensors in order of ports."""

    step: Value
    params: Sequence[Value]
    grads: Sequence[Value]
    kept: Sequence[Value]


class Update(Protocol):
    """A step's update of all parameters."""

    @property
    def ports(self) -> list[Port]:
        """What it keeps, besides the number of the step."""
        ...

    @property
    def begins(self) -> list[float | None]:
        """The number that each begins with everywhere; None: the parameters say it."""
        ...

    def first(self, params: Sequence[Value], source: Source) -> list[Value]:
        """What that is before the first step, each tensor in a buffer of its own."""
        ...

    def __call__(self, now: Stepped) -> list[Value]:
        """New parameters, then what is kept, then the number of the last step."""
        ...


def update_of(
    module: ir.Module, training: Trainable, optimizer: Groups, ema: float = 0.0
) -> Update:
    """The update that a program is trained with; `ema` is the decay of an average."""
    rule = apply.rule_of(optimizer.default)
    if isinstance(rule, ImportedRule):
        _check_types(optimizer, training)
        inner: Update = ImportedUpdate.of(module, training, rule)
    else:
        trained = apply.assign(optimizer, training.params)
        inner = RuleUpdate(optimizer, trained, training)
    if ema:
        inner = AveragedUpdate(inner, ema, training.params)
    if training.loss_scale is None:
        return inner
    return ScaledUpdate(inner, training.loss_scale)


def _check_types(optimizer: Groups, training: Trainable) -> None:
    """`PassError` for parameters that an imported optimizer has no rounding for."""
    if training.policy.rounding != "nearest":
        raise PassError(
            f"optimizer {optimizer.kind} updates f32; params="
            f"{training.policy.params} is for the optimizers of pcp"
        )


@dataclass(frozen=True)
class RuleUpdate:
    """Each parameter by its own rule of `pcp.passes.training.optimizers`."""

    optimizer: Groups
    trained: Sequence[Trained]
    training: Trainable

    @property
    def ports(self) -> list[Port]:
        """The rules' slots."""
        return apply.ports(self.trained)

    @property
    def begins(self) -> list[float | None]:
        """All zeros."""
        return [0.0] * len(self.ports)

    def first(self, params: Sequence[Value], source: Source) -> list[Value]:
        """Zeros."""
        return [fresh.filled(p.type, 0, source(i)) for i, p in enumerate(self.ports)]

    def __call__(self, now: Stepped) -> list[Value]:
        """By one `pcp.optimizer`, where that can say it."""
        at_random = self.training.policy.rounding == "stochastic"
        if written.can_write(self.optimizer) and not at_random:
            tensors = [*now.params, *now.grads, *now.kept, now.step]
            return written.write_optimizer(self.optimizer, tensors, len(now.params))
        step = after(now.step)
        rounded = rounding.stochastic(step) if at_random else rounding.nearest
        tensors = (now.params, now.grads, now.kept)
        new = apply.updates(self.optimizer, self.trained, step, *tensors, rounded)
        return [*new, step]


@dataclass(frozen=True)
class ImportedUpdate:
    """Functions from outside, which the module has as private ones."""

    names: tuple[str, str]
    training: Trainable
    kept: Sequence[Port]
    constants: Sequence[float | None]

    @classmethod
    def of(
        cls, module: ir.Module, training: Trainable, rule: ImportedRule
    ) -> "ImportedUpdate":
        """Trace it for these parameters, and add what comes of that to the module."""
        functions_ = rule.functions(training.params)
        names = functions_.add_to(module)
        return cls(names, training, functions_.ports, functions_.constants)

    @property
    def ports(self) -> list[Port]:
        """The leaves of its state."""
        return [*self.kept]

    @property
    def begins(self) -> list[float | None]:
        """As traced: of schedule-free, some are the parameters."""
        return [*self.constants]

    def first(self, params: Sequence[Value], source: Source) -> list[Value]:
        """As its own `init` makes them of the parameters."""
        types = [port.type for port in self.kept]
        made = functions.call(self.names[0], params, types)
        return [
            fresh.filled(x.type, c, source(i)) if c is not None else own(x, source(i))
            for i, (x, c) in enumerate(zip(made, self.constants, strict=True))
        ]

    def __call__(self, now: Stepped) -> list[Value]:
        """As its own `update` makes them."""
        types = [port.type for port in (*self.training.params, *self.kept)]
        tensors = [*now.params, *now.grads, *now.kept]
        return [*functions.call(self.names[1], tensors, types), after(now.step)]


@dataclass(frozen=True)
class AveragedUpdate:
    """Another update, and e <- d e + (1 - d) p behind it, for each parameter p.

    The average begins as the first parameters (Polyak and Juditsky 1992, with weights
    that decay). It is state of the program under the name `ema.<parameter>`, so that
    the end of a round makes one of all workers' averages.
    """

    inner: Update
    decay: float
    params: Sequence[Port]

    @property
    def averages(self) -> list[Port]:
        """One average a parameter."""
        return [
            Port(f"ema.{p.name}", MODEL_STATE, hlo.like(p.type, element=_math(p)))
            for p in self.params
        ]

    @property
    def ports(self) -> list[Port]:
        """The inner one's, and the averages."""
        return [*self.inner.ports, *self.averages]

    @property
    def begins(self) -> list[float | None]:
        """The inner one's, and averages, which begin as the parameters."""
        return [*self.inner.begins, *(None for _ in self.params)]

    def first(self, params: Sequence[Value], source: Source) -> list[Value]:
        """The inner one's, and copies of the parameters."""
        inner = self.inner.first(params, source)
        copies = (
            own(numbers.widen(p), source(i)) for i, p in enumerate(params, len(inner))
        )
        return [*inner, *copies]

    def __call__(self, now: Stepped) -> list[Value]:
        """The inner update, and the averages of what it gives."""
        count = len(now.kept) - len(self.params)
        *new, last = self.inner(replace(now, kept=now.kept[:count]))
        averages = [
            hlo.add(
                numbers.scale(old, self.decay),
                numbers.scale(numbers.widen(p), 1 - self.decay),
            )
            for old, p in zip(now.kept[count:], new, strict=False)
        ]
        return [*new, *averages, last]


def _math(port: Port) -> ir.Type:
    return numbers.math_type(hlo.element_type(port.type))


@dataclass(frozen=True)
class ScaledUpdate:
    """Another update, left out where a gradient of the scaled loss is infinite."""

    inner: Update
    scale: LossScale

    @property
    def ports(self) -> list[Port]:
        """The inner one's, and the scale's."""
        return [*self.inner.ports, *self.scale.ports]

    @property
    def begins(self) -> list[float | None]:
        """The inner one's, and the first scale."""
        start = self.scale.first
        return [*self.inner.begins, *(start.get(p.name, 0) for p in self.scale.ports)]

    def first(self, params: Sequence[Value], source: Source) -> list[Value]:
        """The inner one's, and the first scale."""
        inner, start = self.inner.first(params, source), self.scale.first
        return [
            *inner,
            *(
                fresh.filled(port.type, start.get(port.name, 0), source(i))
                for i, port in enumerate(self.scale.ports, len(inner))
            ),
        ]

    def __call__(self, now: Stepped) -> list[Value]:
        """The inner update if all gradients are finite, and the next scale."""
        count = len(now.kept) - len(self.scale.ports)
        old, scaling = now.kept[:count], now.kept[count:]
        finite = loss_scale.all_finite(now.grads)
        new = self.inner(replace(now, kept=old))
        held = loss_scale.kept_unless(finite, new, [*now.params, *old, now.step])
        return [*held[:-1], *self.scale.next(finite, *scaling), held[-1]]


def after(step: Value) -> Value:
    """The number of the step that is made."""
    return hlo.add(step, hlo.constant_like(step, 1))


def own(x: Value, source: Value) -> Value:
    """The same numbers in a buffer of their own."""
    return hlo.add(x, fresh.filled(x.type, 0, source))


# --- @inner_init and @apply ---


def add_inner_init(module: ir.Module, training: Trainable, update: Update) -> None:
    """`@inner_init(params) -> state`, where the first state follows from parameters.

    As @init makes it of those that it draws.
    """
    if None not in update.begins:
        return
    ports = [*update.ports, step_port()]

    def build(*params: Value) -> list[tuple[Port, Value]]:
        word = fresh.bits(hlo.sum_all(hlo.convert(params[0], ir.F32Type.get())))
        state = update.first(params, lambda i: fresh.numbered(word, i))
        step = fresh.numbered(word, len(state))
        values = [*state, fresh.filled(ports[-1].type, 0, step)]
        return [*zip(ports, values, strict=True)]

    functions.define(module, "inner_init", training.params, build)


def add_apply(module: ir.Module, training: Trainable, update: Update) -> None:
    """`@apply(params, grads, state) -> params, state`: one optimizer step."""
    count, state = len(training.params), [*update.ports, step_port()]

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        *tensors, step = arguments
        params, grads = tensors[:count], tensors[count : 2 * count]
        new = update(Stepped(step, params, grads, tensors[2 * count :]))
        return [*zip([*training.params, *state], new, strict=True)]

    inputs = [*training.params, *training.grads, *state]
    functions.define(module, "apply", inputs, build)
