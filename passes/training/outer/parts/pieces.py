"""Outer algorithms that work on a model fragment by fragment.

    split      which parameters each fragment has
    send       at a fragment's turn: what is to be exchanged, from anchors and locals
    exchange   while inner steps go on: the collective, on what `send` gave alone
    apply      some inner steps later: the new anchors, locals and state

In a bundle fragment p has `@outer_send_p`, `@outer_exchange_p` and `@outer_apply_p`.
An exchange takes nothing that inner steps change, so it runs beside them and can be
done again by the members that are left. Locals live on from round to round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import functions
from pcp.passes.core.functions import Port
from pcp.passes.training.outer.rule import OuterRound, Pieces, Tensors
from pcp.passes.training.trainable import Trainable

Value = ir.Value


class State(Protocol):
    """A fragment's slots as tensors that cross a function's border."""

    def ports(self) -> list[Port]: ...

    def by_slot(self, values: Sequence[Value]) -> Tensors: ...

    def in_order(self, tensors: Mapping[str, Sequence[Value]]) -> list[Value]: ...


def fragments(training: Trainable, spec: Any, pieces: Pieces) -> list[Trainable]:
    """The model's parameters, fragment by fragment."""
    names = [p.name for p in training.params]
    sizes = [hlo.size(p.type) for p in training.params]
    return [
        replace(
            training,
            params=[training.params[i] for i in members],
            inits=[training.inits[i] for i in members],
        )
        for members in pieces.split(spec, names, sizes)
    ]


@dataclass(frozen=True)
class Fragment:
    """One fragment: its number, parameters and slots; adds its functions."""

    number: int
    params: Sequence[Port]
    state: State
    tokens: Port

    def add(self, module: ir.Module, spec: Any, pieces: Pieces) -> None:
        """`@outer_send_p`, `@outer_exchange_p`, `@outer_apply_p`."""
        sent = self._add_send(module, spec, pieces)
        received = self._add_exchange(module, spec, pieces, sent)
        self._add_apply(module, spec, pieces, received)

    @property
    def _anchors(self) -> list[Port]:
        return [Port(p.name, "anchor", p.type) for p in self.params]

    def _add_send(self, module: ir.Module, spec: Any, pieces: Pieces) -> list[Port]:
        made: list[Port] = []

        def build(*arguments: Value) -> list[tuple[Port, Value]]:
            count = len(self.params)
            now = OuterRound(arguments[:count], arguments[count:], None)
            values = pieces.send(spec, now)
            made.extend(_numbered("sent", values))
            return [*zip(made, values, strict=True)]

        inputs = [*self._anchors, *self.params]
        functions.define(module, f"outer_send_{self.number}", inputs, build)
        return made

    def _add_exchange(
        self, module: ir.Module, spec: Any, pieces: Pieces, sent: Sequence[Port]
    ) -> list[Port]:
        made: list[Port] = []

        def build(*arguments: Value) -> list[tuple[Port, Value]]:
            *values, tokens = arguments
            got = pieces.exchange(spec, values, tokens)
            made.extend(_numbered("received", got))
            return [*zip(made, got, strict=True)]

        name = f"outer_exchange_{self.number}"
        functions.define(module, name, [*sent, self.tokens], build)
        return made

    def _add_apply(
        self, module: ir.Module, spec: Any, pieces: Pieces, received: Sequence[Port]
    ) -> None:
        groups = [self._anchors, self.params, self.state.ports(), received]

        def build(*arguments: Value) -> list[tuple[Port, Value]]:
            rest = iter(arguments)
            anchors, own, kept, got = [[*islice(rest, len(g))] for g in groups]
            now = OuterRound(anchors, own, None, self.state.by_slot(kept))
            new, mixed, tensors = pieces.apply(spec, now, got)
            values = [*new, *mixed, *self.state.in_order(tensors)]
            ports = [port for group in groups[:3] for port in group]
            return [*zip(ports, values, strict=True)]

        name = f"outer_apply_{self.number}"
        functions.define(module, name, [p for g in groups for p in g], build)


def _numbered(role: str, values: Sequence[Value]) -> list[Port]:
    return [Port(f"{role}.{i}", role, value.type) for i, value in enumerate(values)]
