"""pcp-remat: what the backward half needs is computed again instead of kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pcp.autodiff.core import functions
from pcp.autodiff.remat.boundary import behind_waits, last_of_forward
from pcp.autodiff.remat.guards import waiting
from pcp.autodiff.remat.remat_report import Report
from pcp.autodiff.remat.segments import Cuts, Guard, Rerun, Schedule, constants, cut
from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.diagnostics import location_string
from pcp.errors import DoesNotFit, PassError, nearest
from pcp.passes.analysis.memory import peak
from pcp.passes.analysis.storage import StorageGraph, StorageNode, StorageStep, graph
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import CONTRACTIONS, operations
from pcp.passes.core.sizes import UNITS, bytes_in

#: Numbers of segments that are tried when none is asked for.
SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class Remat(Pass):
    """Keep less of the forward half of a gradient function; compute it again.

    The half that ends with the first `forward-results` results is cut into
    `segments` (0: as many as give the least peak). The values that pass from one
    segment to the next are kept, or with `slots` only so many of these states, as
    Revolve chooses. The rest of a segment is computed again, once, in front of the
    first backward op that asks for it, from values that a never-true predicate
    makes wait for the cotangents and gradients so far: a backend can then neither
    recompute early, nor postpone gradients, nor merge the copy with its original,
    and IREE keeps all in one submission. Ops with effects are never run twice.

    `policy` says what is kept besides: `everything_saveable` changes nothing,
    `nothing_saveable`, `dots_saveable` and `dots_with_no_batch_dims_saveable` are
    JAX's. `names=a,b` also keeps the results of ops with the attribute `pcp.name`
    of that value, `min-bytes=N` values smaller than N. `budget=512MiB` drops values
    in the order of bytes times time held for each operation until the predicted
    peak (without arguments) fits; it is an error, with the least peak found, if
    none does.

    The function's attribute `pcp.remat` has the predicted bytes and FLOPs before
    and after; `report=FILE` writes them as JSON, with the ops that run again. The
    gradients stay the same bit for bit on a deterministic backend. Loops are left
    as they are: pcp-checkpoint-loops is for them, before differentiation. In a
    partitioned program run it behind the partitioner, on one device's program: the
    forward half ends in front of the exchange of its results there, and no exchange
    runs twice.

        %y = stablehlo.sine %x : tensor<4xf32>         // forward
        %z = stablehlo.sine %y : tensor<4xf32>
        ...
        %c = stablehlo.cosine %y : tensor<4xf32>       // backward
        %d = stablehlo.multiply %g, %c : tensor<4xf32>

    becomes, when %y is not kept,

        %b = stablehlo.slice %g [0:1] : (tensor<4xf32>) -> tensor<1xf32>
        %i = stablehlo.bitcast_convert %b : (tensor<1xf32>) -> tensor<1xi32>
        %o = stablehlo.or %i, %one : tensor<1xi32>
        %p = stablehlo.compare EQ, %o, %zero
            : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
        %q = stablehlo.broadcast_in_dim %p, dims = [0]
            : (tensor<1xi1>) -> tensor<4xi1>
        %x1 = stablehlo.select %q, %zeros, %x : tensor<4xi1>, tensor<4xf32>
        %y1 = stablehlo.sine %x1 : tensor<4xf32>
        %c = stablehlo.cosine %y1 : tensor<4xf32>
        %d = stablehlo.multiply %g, %c : tensor<4xf32>
    """

    name = "pcp-remat"
    func: str = "main_grad"
    policy: str = "nothing_saveable"
    budget: str = ""
    segments: int = 0
    slots: int = 0
    names: tuple[str, ...] = ()
    min_bytes: int = 0
    forward_results: int = 1
    report: str = ""

    def run(self, module: ir.Module) -> None:
        """Rewrite `@func` and set its `pcp.remat`."""
        with module.context:
            function = functions.find(module, self.func)
            problem = _Problem.of(function, self)
            if self.budget:
                schedule = problem.fit(_bytes(self.budget))
            else:
                schedule = problem.follow()
            if schedule is not None:
                _rewrite(function, problem.graph, schedule)
            found = problem.report(schedule)
            function.attributes["pcp.remat"] = found.attribute()
            if self.report:
                found.write(self.report)


# --- policies ---


def _is_dot(node: StorageNode) -> bool:
    return node.op.name in CONTRACTIONS


def _is_plain_dot(node: StorageNode) -> bool:
    if node.op.name != "stablehlo.dot_general":
        return _is_dot(node)
    numbers = node.op.attributes["dot_dimension_numbers"]
    return not stablehlo.DotDimensionNumbers(numbers).lhs_batching_dimensions


POLICIES: Mapping[str, Callable[[StorageNode], bool]] = {
    "everything_saveable": lambda node: True,
    "nothing_saveable": lambda node: False,
    "dots_saveable": _is_dot,
    "dots_with_no_batch_dims_saveable": _is_plain_dot,
}


def _bytes(text: str) -> int:
    """`512MiB` in bytes."""
    size = bytes_in(text)
    if size is None:
        raise PassError(
            f"pcp-remat: budget={text!r} is not a number of bytes such as 512MiB "
            f"(units: {', '.join(UNITS)})"
        )
    return size


# --- what to keep ---


@dataclass
class _Problem:
    """One function, where its forward half ends, and what is asked."""

    graph: StorageGraph
    boundary: int
    options: Remat
    where: str

    @staticmethod
    def of(function: ir.Operation, options: Remat) -> "_Problem":
        where = f"{location_string(function.location)}: @{options.func}"
        if options.policy not in POLICIES:
            raise PassError(
                f"{where}: pcp-remat: unknown policy {options.policy!r} (there are: "
                f"{', '.join(POLICIES)})." + nearest(options.policy, POLICIES)
            )
        whole = graph(functions.body(function))
        results = whole.returned[: options.forward_results]
        ends = last_of_forward(whole, results)
        made = [whole.producer[r] for r in ends if r in whole.producer]
        if not made or options.forward_results < 1:
            raise PassError(
                f"{where}: pcp-remat: none of the first {options.forward_results} "
                "results is computed, so no op ends the forward half; give the "
                "number of results of the forward function as forward-results="
            )
        boundary = behind_waits(whole, max(made) + 1)
        return _Problem(whole, boundary, options, where)

    def peak_of(self, schedule: Schedule | None) -> int:
        """Predicted bytes; of the function as it is for None."""
        if schedule is None:
            return peak(self.graph, self.graph.steps, self.graph.sizes)
        return peak(self.graph, schedule.steps(), schedule.sizes)

    def report(self, schedule: Schedule | None) -> Report:
        """What the schedule is predicted to do."""
        before, after = self.peak_of(None), self.peak_of(schedule)
        return Report.of(self.graph, schedule, before, after)

    def cuts(self) -> list[Cuts]:
        """As asked for, or all that are tried."""
        asked = self.options.segments
        if asked == 1 or asked < 0:
            raise PassError(f"{self.where}: pcp-remat: segments={asked} cuts nothing")
        tried = (asked,) if asked else SEGMENTS
        found = {cut(self.graph, self.boundary, n) for n in tried if n < self.boundary}
        several = [c for c in found if c.segments > 1]
        return sorted(several, key=lambda c: c.edges)

    def schedule(self, cuts: Cuts, kept: frozenset[int], slots: int = 0) -> Schedule:
        """The function with all but `kept` and the states made again."""
        slots = min(slots or cuts.segments, cuts.segments)
        return Rerun(self.graph, cuts, self.boundary, kept, slots).run()

    def saved(self) -> frozenset[int]:
        """What policy, names and sizes say to keep."""
        keep = POLICIES[self.options.policy]
        return frozenset(
            r
            for node in self.graph.nodes[: self.boundary]
            for r in node.results
            if keep(node)
            or _name(node) in self.options.names
            or self.graph.sizes[r] < self.options.min_bytes
        )

    def follow(self) -> Schedule | None:
        """By policy: of the cuts tried, the one with the least peak."""
        if self.options.policy == "everything_saveable":
            return None
        return self._best(self.saved(), self.options.slots)[1]

    def _best(
        self, kept: frozenset[int], slots: int
    ) -> tuple[Cuts | None, Schedule | None]:
        found = [(c, self.schedule(c, kept, slots)) for c in self.cuts()]
        none = (None, None)
        return min(found, key=lambda f: (self.peak_of(f[1]), f[1].flops), default=none)

    def fit(self, budget: int) -> Schedule | None:
        """The least recomputation whose predicted peak is within `budget` bytes."""
        least = self.peak_of(None)
        if least <= budget:
            return None
        cuts, best = self._best(frozenset(), 0)
        if cuts is not None and best is not None:
            least = min(least, self.peak_of(best))
            if least <= budget:
                return self._fewest(cuts, budget)
            for slots in range(cuts.segments - 1, 0, -1):
                fewer = self.schedule(cuts, frozenset(), slots)
                least = min(least, self.peak_of(fewer))
                if least <= budget:
                    return fewer
        raise DoesNotFit(
            f"{self.where}: pcp-remat: the least predicted peak is {least} bytes, "
            f"more than the budget of {budget}; give more, or make the batch smaller",
            least,
        )

    def _fewest(self, cuts: Cuts, budget: int) -> Schedule:
        """Drop values in order of worth; bisect for how many must go."""
        order = self._by_worth()
        low, high = 0, len(order)
        best = self.schedule(cuts, frozenset())
        while low < high:
            middle = (low + high) // 2
            tried = self.schedule(cuts, frozenset(order[middle:]))
            if self.peak_of(tried) <= budget:
                best, high = tried, middle
            else:
                low = middle + 1
        return best

    def _by_worth(self) -> list[int]:
        """Forward values that the backward half reads: bytes x time / operations."""
        last: dict[int, int] = {}
        for q in range(self.boundary, len(self.graph.nodes)):
            last.update(dict.fromkeys(self.graph.nodes[q].operands, q))
        free = constants(self.graph)
        worth: dict[int, float] = {}
        for i, node in enumerate(self.graph.nodes[: self.boundary]):
            for r in node.results:
                held = self.graph.sizes[r] * (last.get(r, i) - i)
                if held and r not in free:
                    worth[r] = held / (1 + node.flops)
        others = [
            r
            for node in self.graph.nodes[: self.boundary]
            for r in node.results
            if r not in worth
        ]
        return [*others, *sorted(worth, key=lambda r: -worth[r])]


def _name(node: StorageNode) -> str | None:
    given = hlo.attribute(node.op, "pcp.name")
    return None if given is None else ir.StringAttr(given).value


# --- the program ---


def _rewrite(function: ir.Operation, whole: StorageGraph, schedule: Schedule) -> None:
    """Insert the clones and barriers, and let the backward ops read them."""
    values = dict(enumerate(whole.values))
    originals = {n.results for n in whole.nodes}
    *_, end = functions.body(function).operations
    waiting: list[StorageStep | Guard] = []
    for item in schedule.items:
        if isinstance(item, Guard) or item.results not in originals:
            waiting.append(item)
            continue
        node = whole.nodes[item.node]
        with ir.InsertionPoint(node.op), node.op.location:
            for extra in waiting:
                _insert(extra, whole, values)
        waiting = []
        _reread(node.op, node.operands, item.operands, values)
    if waiting:
        raise PassError(f"{location_string(end.location)}: clones that no op waits for")


def _insert(
    item: StorageStep | Guard, whole: StorageGraph, values: dict[int, ir.Value]
) -> None:
    if isinstance(item, Guard):
        made = waiting(*([values[x] for x in xs] for xs in (item.inputs, item.waits)))
        values.update(zip(item.outputs, made, strict=True))
        return
    node = whole.nodes[item.node]
    clone = node.op.clone().operation
    values.update(zip(item.results, clone.results, strict=True))
    _reread(clone, node.operands, item.operands, values)


def _reread(
    op: ir.Operation,
    old: tuple[int, ...],
    new: tuple[int, ...],
    values: Mapping[int, ir.Value],
) -> None:
    """Let the op and its regions read `new` for `old`."""
    changed = {values[a]: values[b] for a, b in zip(old, new, strict=True) if a != b}
    if not changed:
        return
    for inner in (op, *operations(op)):
        for i, operand in enumerate(inner.operands):
            if operand in changed:
                inner.operands[i] = changed[operand]
