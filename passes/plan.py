"""pcp-plan: which devices work, on what mesh, and how every parameter lies."""

from dataclasses import dataclass
from math import prod
from typing import NoReturn

from pcp.dialect.bindings import ir
from pcp.errors import PassError, nearest
from pcp.passes.base import Pass
from pcp.passes.functions import (
    ROLE,
    argument_attributes,
    find,
    function_type,
    string,
    symbol_name,
)
from pcp.passes.planning import cluster, tensor_groups
from pcp.passes.planning.candidates import Candidate, Guess, Model, Space
from pcp.passes.planning.evaluation import STEPS, Judge, Judged, add_mesh, annotate
from pcp.passes.planning.tensor_groups import Group
from pcp.passes.propagate_sharding import inline_calls
from pcp.passes.rewriting import functions, refuse
from pcp.passes.sharding.flow import block_of, walk

#: Ops that are partitioned in a search, all candidates together: a bound on its time.
WORK = 16_000
FEWEST, MOST = 4, 24

#: A guess of memory may be this much too high for a candidate to be judged still.
DOUBT = 1.5

#: A mesh whose best guess is this much slower than the best is not judged for variety.
HOPELESS = 2.5


@dataclass(frozen=True)
class Plan(Pass):
    """Choose devices, mesh, ZeRO stage and the layout of every parameter.

    Assumes `pcp.device`s with throughput and memory, `pcp.link`s between them, roles
    of arguments, and for training what pcp-expand-training leaves. Judges by the cost
    model of `passes/planning`: candidates over "dp" and "tp", ZeRO stages up to
    `zero`, fewer devices than there are, groups of parameters cut along "tp" as their
    shapes hang together, and uneven shares of the batch where devices are unequal.
    The `keep` that look best from the forward alone (0: as many as are quick) are
    made and judged; the fastest that fits in every device's memory is written down.
    `mesh=dp=2` fixes the axes. With `explain=true` the module's `pcp.alternatives`
    lists what was judged. Nothing fits: an error with the least memory reachable.

    Before:

        "pcp.device"() {sym_name = "a", throughput = {f32 = 1.0e10}, memory = ...}
        "pcp.device"() {sym_name = "b", ...}
        "pcp.link"() {ends = [@a, @b], bandwidth = 1.0e9, latency_ns = 50000}
        func.func @grad(%w: tensor<64x64xf32> {pcp.role = "param"}, ...)

    After:

        "pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], ...}
        func.func @grad(%w: tensor<64x64xf32> {pcp.role = "param",
            pcp.sharding = #pcp.sharding<@mesh, [[], []], [], []>}, ...)
    """

    name = "pcp-plan"
    func: str = "main"
    zero: int = 3
    keep: int = 0
    mesh: str = ""
    explain: bool = False

    def run(self, module: ir.Module) -> None:
        """Choose, and write the choice into the module."""
        with module.context:
            search = Search.of(module, self.func, self.zero, parse_axes(self.mesh))
            choice = search.run(self.keep)
            write(module, choice)
            if self.explain:
                module.operation.attributes["pcp.alternatives"] = ir.ArrayAttr.get(
                    [ir.StringAttr.get(line) for line in choice.lines()]
                )


def parse_axes(text: str) -> dict[str, int] | None:
    """`dp=2,tp=2` as sizes; None for an empty text."""
    if not text:
        return None
    axes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in ("dp", "tp") or not size.isdigit() or int(size) < 1:
            raise PassError(
                f"pcp-plan: mesh={text}: {part!r} is not dp=N or tp=N; a plan has "
                "these axes"
            )
        axes[axis] = int(size)
    return axes


# --- the answer ---


@dataclass(frozen=True)
class Choice:
    """What was judged, the fastest first, and the one to take."""

    judged: tuple[Judged, ...]
    groups: dict[int, list[Group]]
    considered: int
    devices: tuple[str, ...]

    @property
    def best(self) -> Judged:
        """The fastest that fits."""
        return next(j for j in self.judged if j.fits)

    def lines(self) -> list[str]:
        """A table: predicted milliseconds, of them waiting, bytes sent and held."""
        head = (
            f"{'plan':28} {'ms':>9} {'waiting':>9} {'sends':>10} {'holds':>10}  devices"
        )
        rows = [head, *map(self._line, self.judged)]
        rows.append(f"{len(self.judged)} of {self.considered} plans judged")
        if left := [d for d in self.devices if d not in self.best.candidate.devices]:
            rows.append(f"left out: {', '.join(left)}")
        if cut := self.describe(self.best.candidate):
            rows.append(f"cut along tp: {cut}")
        return rows

    def _line(self, j: Judged) -> str:
        mark = "" if j.fits else f"  needs more memory than @{j.fullest} has"
        mark = "  <- taken" if j is self.best else mark
        ms, waiting = (1e3 * s for s in (j.cost.seconds, j.cost.waiting))
        count = f"{len(j.candidate.devices)} of {len(self.devices)}"
        numbers = f"{ms:9.2f} {waiting:9.2f} {_mib(j.cost.sent)} {_mib(j.memory)}"
        return f"{self._title(j.candidate):28} {numbers}  {count}{mark}"

    def _title(self, candidate: Candidate) -> str:
        number = f" cut={','.join(map(str, candidate.groups))}"
        return str(candidate) + (number if candidate.groups else "")

    def describe(self, candidate: Candidate) -> str:
        """The parameters that "tp" cuts, with their dimensions."""
        groups = self.groups.get(candidate.tp, [])
        return "; ".join(str(groups[i]) for i in candidate.groups)


def _mib(count: float) -> str:
    return f"{count / (1 << 20):6.1f} MiB"


def write(module: ir.Module, choice: Choice) -> None:
    """The mesh and the layouts of the plan taken."""
    candidate = choice.best.candidate
    add_mesh(module, candidate)
    annotate(module, candidate, choice.groups.get(candidate.tp, []))


# --- the search ---


@dataclass(frozen=True)
class Search:
    """Over one program and one cluster."""

    space: Space
    judge: Judge
    ops: int
    module: ir.Operation

    @classmethod
    def of(
        cls,
        module: ir.Module,
        func: str = "main",
        zero: int = 3,
        axes: dict[str, int] | None = None,
    ) -> "Search":
        """Read program and cluster; raises `PassError` for what cannot be planned."""
        inline_calls(module)
        machines = cluster.read(module)
        _check(module, machines, axes)
        mode, forward = _mode(module, func)
        model = Model(forward, mode, _batch(forward), _slots(module, mode))
        count = len(machines.devices)
        sizes = [n for n in range(2, count + 1) if axes is None or axes.get("tp") == n]
        groups = {n: tensor_groups.find(forward, n) for n in sizes}
        space = Space(model, machines, groups, zero, axes)
        kept = STEPS[mode] or (symbol_name(forward),)
        text, ops = _without_others(module, kept)
        judge = Judge(text, module.context, mode, machines, groups)
        return cls(space, judge, ops, module.operation)

    def run(self, keep: int = 0) -> Choice:
        """Guess all, judge the most promising; `PassError` when nothing fits."""
        guesses = {c: self.space.guess(c) for c in self.space.candidates()}
        if not guesses:
            refuse(
                self.module,
                "no plan is possible: the batch or the parameters are too "
                "small for the mesh asked for, or no links connect the devices",
            )
        limit = keep or min(MOST, max(FEWEST, WORK // max(1, self.ops)))
        found: dict[Candidate, Judged] = {}
        self._judge(found, self._promising(guesses)[:limit])
        if not any(j.fits for j in found.values()):
            least = sorted(guesses, key=lambda c: (guesses[c].memory, str(c)))
            self._judge(found, least[:limit])
        judged = tuple(sorted(found.values(), key=_order))
        if not any(j.fits for j in judged):
            self._refuse(judged)
        devices = tuple(self.space.cluster.devices)
        return Choice(judged, self.space.groups, len(guesses), devices)

    def _judge(self, found: dict[Candidate, Judged], some: list[Candidate]) -> None:
        for candidate in some:
            if candidate not in found and (j := self.judge.judge(candidate)):
                found[candidate] = j

    def _promising(self, guesses: dict[Candidate, Guess]) -> list[Candidate]:
        """By guessed time, those that may fit; a variety of meshes before all."""
        rooms = {
            c: min(self.space.cluster.devices[d].memory for d in c.devices)
            for c in guesses
        }
        fit = [c for c in guesses if guesses[c].memory <= DOUBT * rooms[c]]
        ordered = sorted(fit, key=lambda c: (guesses[c].seconds, str(c)))
        first: dict[tuple, Candidate] = {}
        for c in ordered:
            if guesses[c].seconds <= HOPELESS * guesses[ordered[0]].seconds:
                first.setdefault((c.devices, c.dp, c.tp), c)
        return list(dict.fromkeys([*first.values(), *ordered]))

    def _refuse(self, judged: tuple[Judged, ...]) -> NoReturn:
        if not judged:
            refuse(self.module, "no layout of these plans is possible")
        least = min(judged, key=lambda j: j.memory / j.room)
        refuse(
            self.module,
            f"nothing fits: the least memory is that of {least.candidate}, "
            f"{_mib(least.memory).strip()} on @{least.fullest}, which has "
            f"{_mib(least.room).strip()}; use a smaller batch, a smaller model, or "
            "more devices",
        )


def _order(judged: Judged) -> tuple:
    """Faster first; of equals fewer devices, less sent, a lower ZeRO stage."""
    c = judged.candidate
    seconds = float(f"{judged.cost.seconds:.3g}")
    return seconds, len(c.devices), judged.cost.sent, c.zero, str(c), c.groups


# --- what the module says ---


def _check(
    module: ir.Module, machines: cluster.Cluster, axes: dict[str, int] | None
) -> None:
    if not machines.devices:
        refuse(
            module.operation,
            "no pcp.device is described; give a cluster file, which pcp probe writes",
        )
    if any(view.operation.name == "pcp.mesh" for view in module.body.operations):
        refuse(
            module.operation,
            "it has a pcp.mesh already; leave that out to have one chosen",
        )
    count = prod((axes or {}).values())
    if count > len(machines.devices):
        refuse(
            module.operation,
            f"a mesh of {count} for {len(machines.devices)} devices",
        )


def _mode(module: ir.Module, func: str) -> tuple[str, ir.Operation]:
    """What the module is for, and its forward function."""
    has = {symbol_name(function): function for function in functions(module)}
    if func not in has:
        known = ", ".join(f"@{name}" for name in has) or "none"
        raise PassError(
            f"pcp-plan: no function @{func} to plan for (has: {known})."
            + nearest(func, has)
        )
    mode = "train" if "apply" in has else "grad" if "grad" in has else "forward"
    return mode, has[func]


def _batch(forward: ir.Operation) -> int:
    """The first dimension that the data tensors share; 1 where there is none."""
    sizes = {
        ir.RankedTensorType(type_).shape[0]
        for type_, said in zip(
            function_type(forward).inputs, argument_attributes(forward), strict=True
        )
        if (string(said, ROLE) or "data") == "data" and ir.RankedTensorType(type_).rank
    }
    return min(sizes, default=1)


def _slots(module: ir.Module, mode: str) -> int:
    """How many tensors of state the optimizer keeps for a parameter."""
    apply = find(module, "apply") if mode == "train" else None
    if apply is None:
        return 0
    roles = [string(said, ROLE) for said in argument_attributes(apply)]
    return roles.count("state") // max(1, roles.count("param"))


def _without_others(module: ir.Module, kept: tuple[str, ...]) -> tuple[str, int]:
    """The text of the functions that a step runs, and how many ops these have."""
    copy = ir.Module.parse(str(module), module.context)
    ops = 0
    for function in list(functions(copy)):
        if symbol_name(function) in kept:
            ops += sum(1 for _ in walk(block_of(function, 0)))
        else:
            function.erase()
    return str(copy), ops
