"""The shape of an outer algorithm: state with names, and what happens to it when.

    state       what lives between rounds, in slots of one tensor a parameter
    step        after the inner steps: the new parameters and the new state
    early       beside the inner steps: an exchange that needs the state alone
    every_step  inside each inner step: the gradients to apply

A slot is *shared* (alike on all workers, part of the digest that a commit compares:
a momentum) or *private* (a worker's own: an error buffer, a delta in flight). Both
start as zeros; a newcomer is given the shared ones and starts its private ones anew.
Whatever a round computes counts only once the round is committed: one that is done
again, with fewer members, finds all slots as they were.

In a bundle these are `@outer_init`, `@outer_step`, `@outer_early`, `@grad_sync`, and
the roles `outer`, `private` and `received` of their arguments.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import math_type
from pcp.passes.training.outer.parts.group import EVERYONE, Over
from pcp.training_plan import EveryRound, TrainingPlan

Values = Sequence[ir.Value]
Tensors = dict[str, list[ir.Value]]
"""The tensors of each slot, by its name."""


def alike(type_: ir.Type) -> ir.Type:
    """A tensor of a parameter's shape, in the type in which it is updated."""
    return hlo.like(type_, element=math_type(hlo.element_type(type_)))


@dataclass(frozen=True)
class Slot:
    """State by name: one tensor a parameter, of the type that `each` gives.

    With `whole`, one tensor in all, of the type it gives for the parameters' types.
    """

    name: str
    private: bool = False
    each: Callable[[ir.Type], ir.Type] = alike
    whole: Callable[[Sequence[ir.Type]], ir.Type] | None = None

    @property
    def role(self) -> str:
        """Its role in a bundle."""
        return "private" if self.private else "outer"


@dataclass(frozen=True)
class OuterRound:
    """What an outer step is given.

    anchors: θ, where the round began, alike on all workers. locals: θ_m, what this
    worker's inner steps made of it. tokens: t_m of those steps, a rank-0 f32 (None
    for a fragment). state: the slots as the last commit left them. received: what
    `early` gave. over: the members of the round.
    """

    anchors: Values
    locals: Values
    tokens: Any
    state: Tensors = field(default_factory=dict)
    received: Values = ()
    over: Over = EVERYONE


Made = list[ir.Value]


@dataclass(frozen=True)
class Pieces:
    """The four parts of an algorithm by fragments: see `outer.parts.pieces`.

    Shapes are those of the fragment's parameters. `apply` gives new anchors, new
    locals and the new slots.
    """

    split: Callable[[Any, Sequence[str], Sequence[int]], list[list[int]]]
    send: Callable[[Any, OuterRound], list[ir.Value]]
    exchange: Callable[[Any, Values, ir.Value], list[ir.Value]]
    apply: Callable[
        [Any, OuterRound, Values], tuple[list[ir.Value], list[ir.Value], Tensors]
    ]


@dataclass(frozen=True)
class ProbedModel:
    """What a probe may ask: the loss at parameters, or how it changes along tangents.

    `loss(params)` and `along(params, tangents)`, the loss and its derivative; the data
    are those of the step.
    """

    loss: Callable[[Values], ir.Value]
    along: Callable[[Values, Values], tuple[ir.Value, ir.Value]]


Probe = Callable[[Any, ProbedModel, Values, Values], tuple[ir.Value, ir.Value]]
"""`probe(spec, model, params, direction)` gives a loss and a slope."""


Step = Callable[[Any, OuterRound], tuple[list[ir.Value], Tensors]]
StepRule = Callable[
    [Any, Values, Tensors, ir.Value], tuple[list[ir.Value], Mapping[str, Values]]
]


def _none(spec: Any) -> Sequence[Slot]:
    return ()


def _every_round(spec: Any) -> TrainingPlan:
    return EveryRound()


@dataclass(frozen=True)
class OuterRule:
    """One algorithm; at most one of `step` and `every_step` is there.

    `plan(spec)` is what members exchange when, and whose the parameters are.
    `state(spec)` names the slots. `step(spec, round)` gives the new parameters and
    slots. `early(spec, state)` gives tensors of any types, which `step` finds in
    `round.received`; it runs while the inner steps do. `every_step(spec, gradients,
    state, tokens)` gives the gradients to apply and the new slots. `pieces`
    is in place of a step: the parts of one that goes fragment by fragment. With
    `probe`, in place of gradients there are slopes (`outer.parts.probes`), with
    `differences` from losses close to each other. `shards` is whether a worker may be
    spread over a mesh: each element has its own step, or sums over a tensor decide.
    """

    plan: Callable[[Any], TrainingPlan] = _every_round
    step: Step | None = None
    every_step: StepRule | None = None
    early: Callable[[Any, Tensors], list[ir.Value]] | None = None
    state: Callable[[Any], Sequence[Slot]] = _none
    pieces: Pieces | None = None
    probe: Probe | None = None
    differences: bool = False
    shards: bool = False
