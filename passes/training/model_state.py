"""@state_sync: what becomes of a program's state when workers meet at a round's end.

    @state_sync(before, states, tokens) -> states

Each worker's steps change a state of its own; a round's end makes one of them, by the
rule that the state's argument declares (`pcp.dialect.roles`), with s the state when the
round began and s_m what the steps of member m left:

    mean    Σ t_m s_m / Σ t_m, by tokens, as parameters are averaged
    max     max s_m
    sum     s + Σ (s_m - s): what all members counted. `before` has s of these alone
    first   that of rank 0

It is called after the algorithm's own exchange, which it does not depend on, and is as
repeatable as that: it consumes nothing.
"""

from collections.abc import Callable, Sequence

from pcp.dialect import collectives, hlo
from pcp.dialect.bindings import ir
from pcp.dialect.roles import MODEL_STATE
from pcp.errors import PassError
from pcp.passes.core import functions
from pcp.passes.core.functions import Port
from pcp.passes.training.outer.parts.group import (
    EVERYONE,
    sum_over_workers,
    weighted_mean,
)
from pcp.passes.training.trainable import ModelState, Trainable
from pcp.passes.training.update import Update
from pcp.training_plan import TrainingPlan

Value = ir.Value
SYNC = "state_sync"


def states_of(training: Trainable, update: Update) -> list[ModelState]:
    """The program's own state, and averages of parameters that its update keeps."""
    ports = [port for port in update.ports if port.role == MODEL_STATE]
    return [*training.state, *(ModelState(port, None, "mean") for port in ports)]


def add_sync(
    module: ir.Module, all_: Sequence[ModelState], plan: TrainingPlan, algorithm: str
) -> None:
    """Add `@state_sync`, if the program has state and the algorithm joins workers."""
    if not all_ or plan.synchronize == "never":
        return
    if plan.synchronize == "asynchronous" or plan.in_pairs:
        raise PassError(
            f"the program has state ({all_[0].port.name!r}), and members under "
            f"{algorithm} never all meet, so nothing makes one state of theirs; take "
            "an algorithm with rounds of all members, as diloco"
        )
    counted = [s for s in all_ if s.average == "sum"]
    before = [Port(s.port.name, "anchor", s.port.type) for s in counted]
    now = [s.port for s in all_]
    tokens = Port("tokens", "tokens", hlo.tensor((), ir.F32Type.get()))

    def build(*arguments: Value) -> list[tuple[Port, Value]]:
        *tensors, weight = arguments
        started = dict(zip((p.name for p in before), tensors, strict=False))
        states = tensors[len(before) :]
        new = _joined(all_, started, states, weight)
        return [*zip(now, new, strict=True)]

    functions.define(module, SYNC, [*before, *now, tokens], build)


def _joined(
    kinds: Sequence[ModelState],
    started: dict[str, Value],
    states: Sequence[Value],
    tokens: Value,
) -> list[Value]:
    averaged = [x for s, x in zip(kinds, states, strict=True) if s.average == "mean"]
    means = iter(weighted_mean(averaged, tokens) if averaged else [])
    found = []
    for s, x in zip(kinds, states, strict=True):
        if s.average == "mean":
            found.append(hlo.convert(next(means), hlo.element_type(x)))
        elif s.average == "sum":
            found.append(_counted(started[s.port.name], x))
        else:
            found.append(_RULES[s.average](x))
    return found


def _counted(before: Value, x: Value) -> Value:
    """What it was, and what every member added."""
    return hlo.add(before, sum_over_workers(hlo.subtract(x, before)))


def _largest(x: Value) -> Value:
    """The maximum; of truth values, whether one is true."""
    element = hlo.element_type(x)
    wide = ir.IntegerType.get_signless(32) if str(element) == "i1" else element
    over = {"mesh": EVERYONE.mesh, "axes": EVERYONE.axes}
    found = collectives.all_reduce(hlo.convert(x, wide), kind="max", **over)
    return hlo.convert(found, element)


def _first(x: Value) -> Value:
    return collectives.broadcast(x, mesh=EVERYONE.mesh, axes=EVERYONE.axes, root=0)


_RULES: dict[str, Callable[[Value], Value]] = {"max": _largest, "first": _first}
