"""pcp-overlap-collectives: a collective begins early and is waited for late."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pcp.dialect import asynchronous
from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import all_functions, is_pure, replace
from pcp.passes.core.walk import CONTROL_FLOW, used

#: What can be on its way while the program goes on.
COLLECTIVES = frozenset(
    f"pcp.{kind}"
    for kind in (
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "all_to_all",
        "permute",
        "broadcast",
    )
)
GATHER, EXCHANGE = "pcp.all_gather", "pcp.all_to_all"
#: Work too small to hide a collective behind.
CHEAP = frozenset(
    f"stablehlo.{name}"
    for name in "broadcast_in_dim constant convert iota reshape slice transpose".split()
)


def usual_inflight(zero: int) -> int:
    """How many collectives may be under way where nobody says it.

    What is under way holds its operand: whoever asks for ZeRO 3 asks for memory.
    """
    return 2 if zero == 3 else 4


@dataclass(frozen=True)
class OverlapCollectives(Pass):
    """Split collectives into pcp.start and pcp.wait, with work in between.

    Assumes what pcp-partition leaves; does the same to every device's program. All
    starts keep the program's order, which is the same on all members. A collective
    starts as soon as its operand is there, but not before the last one's place, and
    one all_gather is under way at a time: so parameters are gathered while the layer
    in front of theirs works, not all at once. What needs its result is put off: until
    a later collective needs it, until more than `inflight` would be under way, or
    until a message, a call or the block's end. A collective behind which nothing can
    be hidden stays as it is.

    Before:

        %0 = "pcp.all_reduce"(%g) {axes = ["dp"], kind = "sum", mesh = @m}
            : (tensor<8x8xf32>) -> tensor<8x8xf32>
        %1 = stablehlo.subtract %w, %0 : tensor<8x8xf32>
        %2 = stablehlo.dot %a, %b
            : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>

    After:

        %f = "pcp.start"(%g) ({
        ^bb0(%x: tensor<8x8xf32>):
          %r = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m}
              : (tensor<8x8xf32>) -> tensor<8x8xf32>
          "pcp.yield"(%r) : (tensor<8x8xf32>) -> ()
        }) : (tensor<8x8xf32>) -> !pcp.future<tensor<8x8xf32>>
        %2 = stablehlo.dot %a, %b
            : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
        %0 = "pcp.wait"(%f) : (!pcp.future<tensor<8x8xf32>>) -> tensor<8x8xf32>
        %1 = stablehlo.subtract %w, %0 : tensor<8x8xf32>
    """

    name = "pcp-overlap-collectives"
    inflight: int = 4

    def run(self, module: ir.Module) -> None:
        """Reorder every block that has collectives."""
        if self.inflight < 1:
            raise PassError(
                f"{self.name}: inflight={self.inflight}: at least one is under way"
            )
        with module.context:
            for function in all_functions(module):
                channels = itertools.count()
                for block in list(_blocks(function)):
                    order = _Order(self.inflight)
                    order.fill(block)
                    _rewrite(block, order.items, channels)


def _blocks(op: ir.Operation) -> Iterator[ir.Block]:
    """The blocks with collectives in them, also those of control flow."""
    for region in op.regions:
        for block in region.blocks:
            inside = [view.operation for view in block.operations]
            if any(inner.name in COLLECTIVES for inner in inside):
                yield block
            for inner in inside:
                if inner.name in CONTROL_FLOW:
                    yield from _blocks(inner)


# --- the order ---


@dataclass(frozen=True)
class _Item:
    """A place in the new order: an op, or the start or end of a collective."""

    what: str
    op: ir.Operation
    #: The collective's number, in the order of their starts.
    number: int = -1


@dataclass
class _Delayed:
    """An op that is put off, and the collectives under way that it needs."""

    op: ir.Operation
    needs: set[int]


@dataclass
class _Order:
    """One block in its new order; see `OverlapCollectives`."""

    inflight: int
    items: list[_Item] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    started: list[ir.Operation] = field(default_factory=list)
    delayed: dict[int, _Delayed] = field(default_factory=dict)
    #: The collectives that a value needs, and the delayed op that makes it.
    needs: dict[ir.Value, set[int]] = field(default_factory=dict)
    makers: dict[ir.Value, int] = field(default_factory=dict)
    #: The values that no op in `items` makes yet, and where the op that does stood.
    unplaced: dict[ir.Value, int] = field(default_factory=dict)
    #: Where ops stood that came before their turn.
    early: set[int] = field(default_factory=set)

    def fill(self, block: ir.Block) -> None:
        """Take the block's ops in their order."""
        *body, _ = (view.operation for view in block.operations)
        for place, op in enumerate(body):
            self.unplaced.update(dict.fromkeys(op.results, place))
        for place, op in enumerate(body):
            if op.name in COLLECTIVES:
                if place not in self.early:
                    self._start(op)
                self._look_ahead(body, place)
            elif place in self.early:
                continue
            elif not is_pure(op):
                self._drain()
                self._put(op)
            elif needs := self._needs(op):
                self._delay(place, op, needs)
            else:
                self._put(op)
        self._drain()

    def _put(self, op: ir.Operation) -> None:
        self.items.append(_Item("op", op))
        for result in op.results:
            self.unplaced.pop(result, None)

    def _look_ahead(self, body: list[ir.Operation], place: int) -> None:
        """Start the next collective too, if nothing but cheap ops is in its way."""
        for later in range(place + 1, len(body)):
            op = body[later]
            if op.name in COLLECTIVES:
                break
            if not is_pure(op):
                return
        else:
            return
        way = self._way(body, op)
        full = len(self.pending) >= self.inflight
        if way is None or full or any(self._holds_up(n, op) for n in self.pending):
            return
        for step in sorted(way):
            self._put(body[step])
        self._start(op)
        self.early |= {later, *way}

    def _way(self, body: list[ir.Operation], op: ir.Operation) -> set[int] | None:
        """The cheap ops still to be placed that an op needs; None if others are."""
        way: set[int] = set()
        todo = [op]
        while todo:
            for value in used(todo.pop()):
                place = self.unplaced.get(value)
                if place is None or place in way:
                    continue
                if body[place].name not in CHEAP or place in self.delayed:
                    return None
                way.add(place)
                todo.append(body[place])
        return way

    def _needs(self, op: ir.Operation) -> set[int]:
        """The collectives under way that an op needs, directly or not."""
        found = set().union(*(self.needs.get(v, ()) for v in used(op)))
        return found.intersection(self.pending)

    def _delay(self, place: int, op: ir.Operation, needs: set[int]) -> None:
        self.delayed[place] = _Delayed(op, needs)
        for result in op.results:
            self.needs[result] = needs
            self.makers[result] = place

    def _start(self, op: ir.Operation) -> None:
        """First what the operand needs, then the start, then what is free now.

        In front of an all_to_all stands all that is free. It exchanges activations,
        and what would hide it, products for gradients of weights, holds as many.
        """
        cone, needs = self._cone(op), sorted(self._needs(op))
        for number in needs:
            self._wait(number)
            if op.name != EXCHANGE:
                self._place(p for p in sorted(cone) if p in self.delayed)
        if op.name == EXCHANGE:
            self._place(list(self.delayed))
        for number in list(self.pending):
            if len(self.pending) >= self.inflight or self._holds_up(number, op):
                self._wait(number)
        number = len(self.started)
        self.started.append(op)
        self.pending.append(number)
        self.needs[op.results[0]] = {number}
        self.items.append(_Item("start", op, number))
        self._place(list(self.delayed))

    def _holds_up(self, number: int, op: ir.Operation) -> bool:
        """Whether both gather: what they give is large, so one comes after the other.

        The first is then at work while the second travels.
        """
        return op.name == self.started[number].name == GATHER

    def _cone(self, op: ir.Operation) -> set[int]:
        """The delayed ops that an op needs."""
        cone: set[int] = set()
        todo = [op]
        while todo:
            for value in used(todo.pop()):
                place = self.makers.get(value, -1)
                if place in self.delayed and place not in cone:
                    cone.add(place)
                    todo.append(self.delayed[place].op)
        return cone

    def _wait(self, number: int) -> None:
        self.pending.remove(number)
        op = self.started[number]
        self.items.append(_Item("wait", op, number))
        self.unplaced.pop(op.results[0], None)

    def _place(self, places: Iterable[int]) -> None:
        """Put those delayed ops that wait for nothing any more."""
        for place in list(places):
            if not self.delayed[place].needs.intersection(self.pending):
                self._put(self.delayed.pop(place).op)

    def _drain(self) -> None:
        """Wait for everything, one after the other."""
        for number in list(self.pending):
            self._wait(number)
            self._place(list(self.delayed))


# --- the rewrite ---


def _hiding(items: list[_Item]) -> set[int]:
    """The collectives between whose start and end something happens."""
    found: set[int] = set()
    open_: set[int] = set()
    for item in items:
        if item.what == "wait":
            open_.discard(item.number)
        elif item.op.name not in CHEAP:
            found |= open_
        if item.what == "start":
            open_.add(item.number)
    return found


def _rewrite(block: ir.Block, items: list[_Item], channels: Iterator[int]) -> None:
    """Put the ops into their order; starts and waits for what hides behind work."""
    hiding = _hiding(items)
    if not hiding:
        return
    end = [view.operation for view in block.operations][-1]
    futures: dict[int, ir.Value] = {}
    for item in items:
        if item.what == "wait":
            if item.number in hiding:
                with ir.InsertionPoint(end), item.op.location:
                    values = asynchronous.wait(futures[item.number])
                replace(item.op, values)
            continue
        item.op.move_before(end)
        if item.what == "start" and item.number in hiding:
            channel = next(channels)
            futures[item.number] = asynchronous.start(item.op, channel=channel)
