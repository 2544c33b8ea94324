"""Training by slopes: a step knows one number, how the loss changes along a direction.

    @grad(params, data, direction) -> loss, slope       z drawn from `direction`
    @grad_sync(slope, direction, steps, tokens) -> grads, steps
                                                        g = Σ_m t_m s_m z_m / Σ_m t_m

No activation is kept for a reverse pass, and 16 bytes a member and step cross the
wire: the number a direction is drawn from, the slope, and their weight. Every member
draws all directions again; random numbers are Threefry's, counted by the parameter
and the position in it, so that nobody has to store a direction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.initializer import Init
from pcp.passes.core import functions
from pcp.passes.core.functions import Port
from pcp.passes.training import initialize
from pcp.passes.training.initialize import Key
from pcp.passes.training.optimizers.numbers import like, math_type, scale
from pcp.passes.training.outer.parts import coded
from pcp.passes.training.outer.parts.codes import as_numbers, as_words
from pcp.passes.training.outer.parts.group import converted
from pcp.passes.training.outer.parts.replicas import STEPS, counter
from pcp.passes.training.outer.rule import Probe, ProbedModel, Values
from pcp.passes.training.outer.spec import Slope
from pcp.passes.training.trainable import Trainable
from pcp.training_plan import EveryStep

Value = ir.Value


def plan(spec: Slope) -> EveryStep:
    """Slopes in every step, along directions drawn from the seed."""
    return EveryStep(estimator="slope", seed=spec.seed)


@dataclass(frozen=True)
class Slopes:
    """Adds the functions of such an algorithm to a module."""

    module: ir.Module
    training: Trainable
    spec: Any

    def add(self, probe: Probe, func: str, jvp: str) -> None:
        """@grad and @grad_sync; `PassError` for a model with more than a loss."""
        if more := self.training.results[1:]:
            raise PassError(
                f"@{func} returns {more[0].role.replace('_', ' ')} {more[0].name!r}, "
                "and an algorithm that knows slopes runs the model for its loss alone; "
                "take one with gradients, as diloco"
            )
        draw = Directions(self.module, self.training.params, self.spec.noise)
        self._add_grad(probe, draw, func, jvp)
        self._add_sync(draw)

    def _add_grad(self, probe: Probe, draw: "Directions", func: str, jvp: str) -> None:
        training = self.training

        def build(*arguments: Value) -> list[tuple[Port, Value]]:
            *inputs, direction = arguments
            params = [
                x
                for x, port in zip(inputs, training.inputs, strict=True)
                if port.role == "param"
            ]
            known = functions.find(self.module, jvp) is not None
            model = _model(training, inputs, func, jvp, known)
            loss, slope = probe(self.spec, model, params, draw(direction))
            slope = hlo.convert(slope, ir.F32Type.get())
            return [(Port("loss", "loss", training.loss), loss), (_slope(), slope)]

        functions.define(self.module, "grad", [*training.inputs, _direction()], build)

    def _add_sync(self, draw: "Directions") -> None:
        grads = self.training.grads
        steps = Port(STEPS.name, STEPS.role, counter())
        tokens = Port("tokens", "tokens", hlo.tensor((), ir.F32Type.get()))

        def build(
            slope: Value, direction: Value, done: Value, weight: Value
        ) -> list[tuple[Port, Value]]:
            key = initialize.key_of(direction)
            words = [hlo.reshape(word, (1,)) for word in (key.low, key.high)]
            numbers = [as_words(weight), as_words(hlo.multiply(slope, weight))]
            sums = self._sum(draw, hlo.concatenate([*words, *numbers], 0))
            values = [
                hlo.convert(x, hlo.element_type(g.type))
                for x, g in zip(sums, grads, strict=True)
            ]
            more = hlo.add(done, hlo.constant_like(done, 1))
            return [*zip([*grads, steps], [*values, more], strict=True)]

        inputs = [_slope(), _direction(), steps, tokens]
        functions.define(self.module, "grad_sync", inputs, build)

    def _sum(self, draw: "Directions", payload: Value) -> list[Value]:
        """The mean of all slopes times their directions, in the order of ranks."""
        zeros = [hlo.zeros(_wide(p.type)) for p in self.training.params]
        none = hlo.zeros(hlo.tensor((), ir.F32Type.get()))

        def add(row: Value, total: Value, *sums: Value) -> list[Value]:
            words = [hlo.slice_(row, [i], [i + 1]) for i in range(4)]
            low, high = (hlo.reshape(word, ()) for word in words[:2])
            weight, slope = (hlo.reshape(as_numbers(w), ()) for w in words[2:])
            directions = zip(sums, draw.of(Key(low, high)), strict=True)
            more = [hlo.add(x, scale(z, converted(slope, z))) for x, z in directions]
            return [hlo.add(total, weight), *more]

        total, *sums = coded.for_everyone(payload, [none, *zeros], add)
        return [hlo.divide(x, like(converted(total, x), x)) for x in sums]


def _model(
    training: Trainable, inputs: Sequence[Value], func: str, jvp: str, known: bool
) -> ProbedModel:
    def whole(params: Values) -> list[Value]:
        new = iter(params)
        return [
            next(new) if port.role == "param" else x
            for x, port in zip(inputs, training.inputs, strict=True)
        ]

    def loss(params: Values) -> Value:
        return functions.call(func, whole(params), [training.loss])[0]

    def along(params: Values, tangents: Values) -> tuple[Value, Value]:
        if not known:
            raise PassError(
                f"the module has no function @{jvp}; run pcp-jvp{{name={jvp}}} first"
            )
        zeros = [hlo.zeros(x.type) for x in inputs]
        rest = iter(tangents)
        every = [
            next(rest) if port.role == "param" else zero
            for zero, port in zip(zeros, training.inputs, strict=True)
            if hlo.is_differentiable(port.type)
        ]
        given = [*whole(params), *every]
        results = functions.call(jvp, given, [training.loss, training.loss])
        return results[0], results[1]

    return ProbedModel(loss, along)


class Directions:
    """z for all parameters from one number: a private function a shape and type."""

    def __init__(self, module: ir.Module, params: Sequence[Port], noise: str) -> None:
        self._module, self._params, self._noise = module, params, noise
        self._made: dict[str, str] = {}

    def __call__(self, direction: Value) -> list[Value]:
        """z, in the parameters' types."""
        drawn = self.of(initialize.key_of(direction))
        return [
            hlo.convert(z, hlo.element_type(p.type))
            for z, p in zip(drawn, self._params, strict=True)
        ]

    def of(self, key: Key) -> list[Value]:
        """z, in the parameters' math types."""
        return [self._draw(i, key) for i in range(len(self._params))]

    def _draw(self, i: int, key: Key) -> Value:
        type_ = _wide(self._params[i].type)
        if str(type_) not in self._made:
            self._made[str(type_)] = f"direction.{len(self._made)}"
            name, noise = self._made[str(type_)], NOISES[self._noise]
            initialize.define(self._module, name, type_, noise)
        stream = hlo.constant(i, hlo.tensor((), ir.IntegerType.get_signless(32)))
        arguments = [key.low, key.high, stream]
        return functions.call(self._made[str(type_)], arguments, [type_])[0]


def _signs(type_: ir.Type, key: Key, stream: Value) -> Value:
    """-1 and +1 with equal chances: the same on every target, to the bit."""
    word, _ = initialize.random_words(hlo.shape_of(type_), key, stream)
    negative = hlo.compare("LT", word, hlo.zeros(word.type), "SIGNED")
    return hlo.select(
        negative, hlo.constant_like(type_, -1.0), hlo.constant_like(type_, 1.0)
    )


NOISES: dict[str, Callable[[ir.Type, Key, Value], Value]] = {
    "normal": partial(initialize.build, Init("normal", (1.0,))),
    "signs": _signs,
}


def _wide(type_: ir.Type) -> ir.Type:
    return hlo.like(type_, element=math_type(hlo.element_type(type_)))


def _direction() -> Port:
    return Port(
        "direction", "direction", hlo.tensor((), ir.IntegerType.get_signless(64))
    )


def _slope() -> Port:
    return Port("slope", "slope", hlo.tensor((), ir.F32Type.get()))
