"""Where a forward program is cut, and the order in which its parts run again.

The forward half is cut into segments at its narrow places: where few bytes pass from
one op to the next, as between the layers of a network. The backward half needs the
segments' values from the last one to the first. `rerun` writes that down: the ops of
the function, and in front of the backward op that first asks for a segment the
clones that make its values again, from what was kept.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pcp.autodiff.remat.revolve import Action, revolve
from pcp.dialect.attributes import Future
from pcp.passes.analysis.storage import GUARD, StorageGraph, StorageStep


@dataclass(frozen=True)
class Cuts:
    """Segment k is the nodes [edges[k], edges[k + 1]).

    `crossing[k]` are the values that segment k and later ones read from earlier.
    """

    edges: tuple[int, ...]
    crossing: tuple[frozenset[int], ...]
    constant: frozenset[int]

    @property
    def segments(self) -> int:
        """How many."""
        return len(self.edges) - 1


def constants(graph: StorageGraph) -> frozenset[int]:
    """Values that depend on no argument: made again wherever they are needed."""
    known: set[int] = set()
    for node in graph.nodes:
        if node.pure and all(x in known for x in node.operands):
            known.update(node.results)
    return frozenset(known)


def cut(graph: StorageGraph, boundary: int, segments: int) -> Cuts:
    """Cut the first `boundary` nodes into about `segments` parts of equal FLOPs.

    Each cut is the narrowest place within half a part of where it would be in
    equal parts; of equally narrow ones the nearest, then the earliest.
    """
    free = constants(graph)
    widths = _widths(graph, boundary, free)
    done, work = [], 0
    for node in graph.nodes[:boundary]:
        work += max(1, node.flops)
        done.append(work)
    share = work / segments
    edges = [0]
    for k in range(1, segments):
        near = [i for i in range(edges[-1], boundary - 1) if _near(done[i], k, share)]
        if near:
            best = min(near, key=lambda i: (widths[i], abs(done[i] - k * share)))
            edges.append(best + 1)
    edges.append(boundary)
    edges = sorted(set(edges))
    crossing = tuple(_crossing(graph, boundary, e, free) for e in edges[:-1])
    return Cuts(tuple(edges), crossing, free)


def _near(done: int, k: int, share: float) -> bool:
    return abs(done - k * share) <= share / 2


def _last_reads(graph: StorageGraph, boundary: int) -> dict[int, int]:
    return {x: i for i, n in enumerate(graph.nodes[:boundary]) for x in n.operands}


def _widths(graph: StorageGraph, boundary: int, free: frozenset[int]) -> list[int]:
    """Bytes that pass from node i or before to later forward nodes."""
    last = _last_reads(graph, boundary)
    ends: dict[int, int] = {}
    widths, live = [], 0
    for i, node in enumerate(graph.nodes[:boundary]):
        for result in node.results:
            if result not in free and last.get(result, i) > i:
                live += graph.sizes[result]
                ends[last[result]] = ends.get(last[result], 0) + graph.sizes[result]
        live -= ends.get(i, 0)
        widths.append(live)
    return widths


def _crossing(
    graph: StorageGraph, boundary: int, edge: int, free: frozenset[int]
) -> frozenset[int]:
    made = {r for n in graph.nodes[:edge] for r in n.results}
    read = {x for n in graph.nodes[edge:boundary] for x in n.operands}
    return frozenset((made & read) - free)


@dataclass(frozen=True)
class Guard:
    """`outputs` are `inputs`, available once all of `waits` are computed."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    waits: tuple[int, ...]


@dataclass
class Schedule:
    """Steps and guards in order; `sizes` of all values, clones included."""

    items: list[StorageStep | Guard]
    sizes: list[int]
    clones: int = 0
    flops: int = 0

    def steps(self) -> list[StorageStep]:
        """The items with a step for each guarded value, for liveness."""
        found = []
        for item in self.items:
            if isinstance(item, Guard):
                pairs = zip(item.inputs, item.outputs, strict=True)
                found += [StorageStep(GUARD, (i,), (o,)) for i, o in pairs]
            else:
                found.append(item)
        return found


@dataclass
class Rerun:
    """Writes a schedule; `kept` values are never made again."""

    graph: StorageGraph
    cuts: Cuts
    boundary: int
    kept: frozenset[int]
    slots: int
    schedule: Schedule = field(init=False)
    current: dict[int, int] = field(default_factory=dict)
    states: dict[int, dict[int, int]] = field(default_factory=dict)
    waits: tuple[int, ...] = ()

    def run(self) -> Schedule:
        """The whole function: forward as it is, backward with its clones."""
        nodes = self.graph.nodes
        self.schedule = Schedule([], list(self.graph.sizes))
        self.producer = self.graph.producer
        self.last = {x: q for q, n in enumerate(nodes) for x in n.operands}
        self.segment = {
            r: k
            for k in range(self.cuts.segments)
            for n in nodes[self.cuts.edges[k] : self.cuts.edges[k + 1]]
            for r in n.results
        }
        starts = self._starts()
        moves = list(_by_reversal(revolve(self.cuts.segments, self.slots)))
        self.opened, self.waits = self.boundary, nodes[self.boundary - 1].results
        self._forward(moves[0])
        pending = list(
            zip(range(self.cuts.segments - 2, -1, -1), moves[1:], strict=True)
        )
        for q in range(self.boundary, len(nodes)):
            while pending and starts[pending[0][0]] <= q:
                segment, actions = pending.pop(0)
                self._open(segment, actions, q)
            node = nodes[q]
            self._emit(
                StorageStep(q, tuple(map(self._now, node.operands)), node.results)
            )
        return self.schedule

    # --- forward ---

    def _forward(self, actions: list[Action]) -> None:
        """The ops as they are; what the schedule stores, it stores on the way."""
        for q, node in enumerate(self.graph.nodes[: self.boundary]):
            self._emit(StorageStep(q, node.operands, node.results))
        for at in [0, *(a.start for a in actions if a.kind == "store")]:
            self.states[at] = {v: v for v in self.cuts.crossing[at]}

    def _emit(self, item: StorageStep | Guard) -> None:
        self.schedule.items.append(item)

    def _is_kept(self, value: int) -> bool:
        """What is never made again.

        Arguments, constants, effects, and the last segment: its turn comes at once.
        """
        if value < self.graph.arguments or value in self.kept:
            return True
        if value in self.cuts.constant:
            return True
        if self.segment[value] == self.cuts.segments - 1:
            return True
        return not self.graph.nodes[self.producer[value]].pure

    def _now(self, value: int) -> int:
        return self.current.get(value, value)

    # --- what the backward half asks for ---

    def _uses(self) -> Iterator[tuple[int, int]]:
        for q in range(self.boundary, len(self.graph.nodes)):
            for x in self.graph.nodes[q].operands:
                if x in self.segment and not self._is_kept(x):
                    yield q, x

    def _starts(self) -> list[int]:
        """The backward node in front of which each segment is made again."""
        never = len(self.graph.nodes)
        starts = [never] * self.cuts.segments
        self.wanted: list[dict[int, None]] = [{} for _ in starts]
        for q, x in self._uses():
            k = self.segment[x]
            self.wanted[k][x] = None
            passed_on = x in self.cuts.crossing[k + 1] if k + 1 < len(starts) else False
            if not passed_on:
                starts[k] = min(starts[k], q)
        for k in range(1, len(starts)):
            starts[k] = min(starts[k - 1], starts[k])
        self._keep_early(starts)
        return starts

    def _keep_early(self, starts: list[int]) -> None:
        """Values asked for before their segment's turn and not at hand: keep them."""
        early = set()
        for q, x in self._uses():
            turn = next((k for k, s in enumerate(starts) if s <= q), len(starts) - 1)
            if turn > self.segment[x] and x not in self.cuts.crossing[turn]:
                early.add(x)
        self.kept = self.kept | early
        for wanted in self.wanted:
            for x in early & wanted.keys():
                del wanted[x]

    # --- one segment's turn ---

    def _open(self, k: int, actions: list[Action], q: int) -> None:
        self._wait_for_all_before(q)
        state = self.states.get(k, {})
        for action in actions:
            if action.kind == "advance":
                state = self.states[action.start]
                for segment in range(action.start, action.end):
                    after = self.cuts.crossing[segment + 1]
                    made = self._clone(segment, state, after)
                    state = {v: made.get(v, state.get(v, v)) for v in after}
            elif action.kind == "store":
                self.states[action.start] = state
            elif action.kind == "free":
                self.states.pop(action.start)
            else:
                state = self.states.get(k, state)
        self.current.update(state)
        due = (v for v in self.wanted[k] if self.last[v] >= q)
        targets = [v for v in due if v not in self.current]
        self.current.update(self._clone(k, state, targets))

    def _wait_for_all_before(self, q: int) -> None:
        """From now on clones wait for what was made since the last turn and is held.

        That is the cotangents, and the results of the function too: nothing reads
        them, and a compiler that orders ops by their readers would make them last
        of all and hold until then what they are made of.
        """
        held = tuple(
            r
            for node in self.graph.nodes[self.opened : q]
            for r in node.results
            if self.graph.sizes[r] and r not in self.cuts.constant
            if not isinstance(self.graph.values[r].type, Future)
            if self.last.get(r, -1) >= q or r in self.graph.returned
        )
        self.opened, self.waits = q, held or self.waits

    def _clone(
        self, segment: int, state: dict[int, int], targets: Iterable[int]
    ) -> dict[int, int]:
        """Make `targets` again from guarded values; returns their new numbers."""
        needed, inputs = self._closure(state, targets)
        if not needed:
            return {}
        known = {v: self._at_hand(v, state) for v in inputs}
        # One guarded operand keeps an op, and all that read it, from running early
        # and from being merged with the original.
        known.update(self._guard({v: known[v] for v in self._first(needed)}))
        for q in sorted(needed):
            known.update(self._again(q, known))
        return {v: known[v] for v in targets if v in known}

    def _at_hand(self, value: int, state: dict[int, int]) -> int:
        return value if self._is_kept(value) else state.get(value, value)

    def _closure(
        self, state: dict[int, int], targets: Iterable[int]
    ) -> tuple[set[int], dict[int, None]]:
        """The nodes to run again, and the values they begin from."""
        needed: set[int] = set()
        inputs: dict[int, None] = {}
        pending = [v for v in targets if v not in state and not self._is_kept(v)]
        while pending:
            q = self.producer[pending.pop()]
            if q in needed:
                continue
            needed.add(q)
            for x in self.graph.nodes[q].operands:
                if self._is_kept(x) or x in state:
                    inputs[x] = None
                else:
                    pending.append(x)
        return needed, inputs

    def _first(self, needed: set[int]) -> set[int]:
        """Of each op that reads nothing made again, the smallest operand."""
        again = {r for q in needed for r in self.graph.nodes[q].results}
        found = set()
        for q in sorted(needed):
            operands = self.graph.nodes[q].operands
            if again.isdisjoint(operands):
                given = [x for x in operands if x not in self.cuts.constant]
                found.add(min(given, key=self.graph.sizes.__getitem__))
        return found

    def _guard(self, known: dict[int, int]) -> dict[int, int]:
        inputs = tuple(dict.fromkeys(known.values()))
        outputs = tuple(self._new(self.schedule.sizes[x]) for x in inputs)
        self._emit(Guard(inputs, outputs, self.waits))
        behind = dict(zip(inputs, outputs, strict=True))
        return {v: behind[now] for v, now in known.items()}

    def _again(self, q: int, known: dict[int, int]) -> dict[int, int]:
        node = self.graph.nodes[q]
        results = tuple(self._new(self.graph.sizes[r]) for r in node.results)
        self._emit(StorageStep(q, tuple(known[x] for x in node.operands), results))
        self.schedule.clones += 1
        self.schedule.flops += node.flops
        return dict(zip(node.results, results, strict=True))

    def _new(self, size: int) -> int:
        self.schedule.sizes.append(size)
        return len(self.schedule.sizes) - 1


def _by_reversal(actions: list[Action]) -> Iterator[list[Action]]:
    """The schedule cut behind each reversal: what comes before it, and itself."""
    found: list[Action] = []
    for action in actions:
        found.append(action)
        if action.kind == "reverse":
            yield found
            found = []
