"""@apply, the update of a training program: an optimizer, and what is around it."""

from collections.abc import Sequence
from functools import partial

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import functions
from pcp.passes.core.functions import Port
from pcp.passes.training import loss_scale, written
from pcp.passes.training.optimizers import apply, rounding
from pcp.passes.training.optimizers.apply import Trained
from pcp.passes.training.optimizers.groups import Groups
from pcp.passes.training.trainable import Trainable

Value = ir.Value


def step_port() -> Port:
    """The number of the last step: rank-0 i32."""
    return Port("step", "state", hlo.tensor((), ir.IntegerType.get_signless(32)))


def add_apply(
    module: ir.Module,
    training: Trainable,
    optimizer: Groups,
    trained: Sequence[Trained],
) -> None:
    """`@apply(params, grads, state) -> params, state`: one optimizer step.

    Of a scaled loss a step with an infinite gradient leaves all as it is but the scale.
    """
    count, scale = len(training.params), training.loss_scale
    own = [] if scale is None else scale.ports
    state = [*apply.ports(trained), *own, step_port()]
    update = partial(_updated, optimizer, trained, training)

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        *tensors, step = arguments
        scaling = tensors[len(tensors) - len(own) :]
        taken = [*tensors[: len(tensors) - len(own)], step]
        new = update(taken)
        if scale is not None:
            finite = loss_scale.all_finite(taken[count : 2 * count])
            old = [*taken[:count], *taken[2 * count :]]
            new = loss_scale.kept_unless(finite, new, old)
            scaling = scale.next(finite, *scaling)
        results = [*new[:-1], *scaling, new[-1]]
        return [*zip([*training.params, *state], results, strict=True)]

    inputs = [*training.params, *training.grads, *state]
    functions.define(module, "apply", inputs, build)


def _updated(
    optimizer: Groups,
    trained: Sequence[Trained],
    training: Trainable,
    tensors: Sequence[Value],
) -> list[Value]:
    """New parameters, state and step, of parameters, gradients, state and step."""
    count, at_random = len(trained), training.policy.rounding == "stochastic"
    if written.can_write(optimizer) and not at_random:
        return written.write_optimizer(optimizer, tensors, count)
    *tensors, step = tensors
    step = hlo.add(step, hlo.constant_like(step, 1))
    params, grads = tensors[:count], tensors[count : 2 * count]
    kept = tensors[2 * count :]
    rounded = rounding.stochastic(step) if at_random else rounding.nearest
    new = apply.updates(optimizer, trained, step, params, grads, kept, rounded)
    return [*new, step]
