"""pcp-plan: which devices work, on what mesh, and how every parameter lies."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import NoReturn

from pcp.dialect.bindings import ir
from pcp.errors import PassError, nearest
from pcp.passes.analysis import cluster
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import (
    ROLE,
    argument_attributes,
    find,
    function_type,
    string,
    symbol_name,
)
from pcp.passes.core.rewriting import functions, refuse
from pcp.passes.core.sizes import bytes_text
from pcp.passes.core.walk import block_of, walk
from pcp.passes.planning import pipelined, tensor_groups
from pcp.passes.planning.candidates import (
    AXES,
    DOUBT,
    Candidate,
    Guess,
    Space,
)
from pcp.passes.planning.choice import Choice
from pcp.passes.planning.evaluation import (
    BETWEEN,
    STEPS,
    Judge,
    Judged,
    add_mesh,
    annotate,
)
from pcp.passes.planning.model_size import ModelSize
from pcp.passes.sharding.inline_calls import inline_calls
from pcp.passes.sharding.mesh import read_meshes

#: Ops that are partitioned in a search, all candidates together: a bound on its time.
WORK = 16_000
FEWEST, MOST = 4, 24

#: A mesh whose best guess is this much slower than the best is not judged for variety.
HOPELESS = 2.5

#: Reasons that differ in numbers alone are said once of a mesh.
NUMBER = re.compile(r"[\d.]+(e[+-]\d+)?")


@dataclass(frozen=True)
class Plan(Pass):
    """Choose devices, mesh, ZeRO stage and the layout of every parameter.

    Assumes `pcp.device`s with throughput and memory, `pcp.link`s between them, roles
    of arguments, and for training what pcp-expand-training leaves. Judges by the cost
    model of `passes/planning`: candidates over "dp" and "tp", ZeRO stages up to
    `zero`, fewer devices than there are, groups of parameters cut along "tp" as their
    shapes hang together, sequences along "sp" and experts along "ep", uneven shares of
    the batch where devices are unequal; and stages along "pp", cut as pcp-stage cuts
    them (`tied` is its option), in microbatches that divide the batch and each order
    of pcp-schedule. The `keep` that look best from the forward alone (0: as many as
    are quick) are made and judged; the fastest that fits in every device's memory is
    written down. `mesh=dp=2` fixes the
    axes. With `explain=true` the module's `pcp.alternatives` lists what was judged. Of
    a plan with stages, `pcp.pipeline` says in how many microbatches and which order
    they are to run. Nothing fits: an error with the least memory reachable.

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
    tied: bool = False
    explain: bool = False

    def run(self, module: ir.Module) -> None:
        """Choose, and write the choice into the module."""
        with module.context:
            axes = parse_axes(self.mesh)
            search = Search.of(module, self.func, self.zero, axes, self.tied)
            choice = search.run(self.keep)
            write(module, choice)
            if self.explain:
                module.operation.attributes["pcp.alternatives"] = ir.ArrayAttr.get(
                    [ir.StringAttr.get(line) for line in choice.lines()]
                )


def parse_axes(text: str) -> dict[str, int] | None:
    """`pp=2,dp=2` as sizes; None for an empty text."""
    if not text:
        return None
    axes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in AXES or not size.isdigit() or int(size) < 1:
            raise PassError(
                f"pcp-plan: mesh={text}: {part!r} is not pp=N, dp=N, sp=N, ep=N or "
                "tp=N; a plan has these axes"
            )
        if axis in axes:
            raise PassError(f'pcp-plan: mesh={text}: axis "{axis}" is said twice')
        axes[axis] = int(size)
    return axes


def write(module: ir.Module, choice: Choice) -> None:
    """The mesh and the layouts of the plan taken; how its stages run."""
    candidate = choice.best.candidate
    add_mesh(module, candidate)
    if candidate.pp > 1:
        count = ir.IntegerAttr.get(
            ir.IntegerType.get_signless(64, module.context), candidate.microbatches
        )
        kind = ir.StringAttr.get(candidate.schedule, module.context)
        said = {"kind": kind, "microbatches": count}
        module.operation.attributes["pcp.pipeline"] = ir.DictAttr.get(
            said, module.context
        )
    annotate(module, candidate, choice.groups)


def rates(module: ir.Module, func: str, devices: tuple[str, ...]) -> dict[str, float]:
    """How many forwards each of `devices` makes in a second while these work.

    The devices of a mesh are weighed as those of a candidate are; `module` is changed.
    """
    inline_calls(module)
    mode, forward = _mode(module, func)
    model = ModelSize(forward, mode, _batch(forward), _slots(module, mode))
    known = Space(model, cluster.read(module), {}).among(devices).devices
    # A program may cost nothing by the model: then no device is faster than another.
    return {name: 1 / max(model.seconds(known[name]), 1e-12) for name in devices}


# --- the search ---


@dataclass
class Found:
    """What was judged so far, and why stages are impossible, by mesh."""

    judge: Judge
    judged: dict[Candidate, Judged] = field(default_factory=dict)
    impossible: list[tuple[str, str]] = field(default_factory=list)
    _refused: set[Candidate] = field(default_factory=set)
    _said: set[tuple[str, str]] = field(default_factory=set)

    def add(self, some: Iterable[Candidate]) -> None:
        """Judge those that were not."""
        for candidate in some:
            if candidate not in self.judged and (j := self._judge(candidate)):
                self.judged[candidate] = j

    def _judge(self, c: Candidate) -> Judged | None:
        if c.pp == 1:
            return self.judge.judge(c)
        any_order = replace(c, schedule="")
        if not self._refused.isdisjoint((c, any_order)):
            return None
        try:
            return pipelined.judge(self.judge, c)
        except pipelined.Uncut as error:
            self._refuse(any_order, str(error))
        except PassError as error:
            self._refuse(c, str(error))
        return None

    def _refuse(self, c: Candidate, reason: str) -> None:
        """Not to be tried again; without a schedule in any order."""
        self._refused.add(c)
        axes = ",".join(f"{axis}={n}" for axis, n in c.axes.items())
        said = axes, NUMBER.sub("", reason)
        if said not in self._said:
            self._said.add(said)
            order = f" schedule={c.schedule}" if c.schedule else ""
            plan = f"{axes} microbatches={c.microbatches}{order}"
            self.impossible.append((plan, reason))


@dataclass(frozen=True)
class Search:
    """Over one program and one cluster."""

    space: Space
    judge: Judge
    ops: int
    module: ir.Operation
    islands: bool = False

    @classmethod
    def of(
        cls,
        module: ir.Module,
        func: str = "main",
        zero: int = 3,
        axes: dict[str, int] | None = None,
        tied: bool = False,
        islands: bool = False,
    ) -> "Search":
        """Read program and cluster; raises `PassError` for what cannot be planned.

        For `islands` a plan is one of as many as the cluster has room for, each on
        devices that no plan names: it must fit in the smallest of all.
        """
        inline_calls(module)
        machines = cluster.read(module)
        if islands:
            machines = machines.as_small_as_the_least()
        _check(module, machines, axes)
        mode, forward = _mode(module, func)
        model = ModelSize(forward, mode, _batch(forward), _slots(module, mode))
        count = len(machines.devices)
        groups: dict = {}
        for n in range(2, count + 1):
            if axes is None or n in axes.values():
                groups |= tensor_groups.by_axis(forward, n)
        if islands:
            groups = {key: some for key, some in groups.items() if key[0] == "tp"}
        space = Space(model, machines, groups, zero, axes)
        kept = STEPS[mode] or (symbol_name(forward),)
        kept += (BETWEEN,) if islands else ()
        text, ops = _without_others(module, kept)
        judge = Judge(text, module.context, mode, machines, groups, tied=tied)
        return cls(space, judge, ops, module.operation, islands)

    def run(self, keep: int = 0) -> Choice:
        """Guess all, judge the most promising; `PassError` when nothing fits."""
        guesses = {c: self.space.guess(c) for c in self.space.candidates()}
        if not guesses:
            refuse(
                self.module,
                "no plan is possible: the batch or the parameters are too small for "
                'the mesh asked for ("sp" needs a sequence, "ep" experts, and stages '
                "take neither), or no links connect the devices",
            )
        limit = keep or min(MOST, max(FEWEST, WORK // max(1, self.ops)))
        found = Found(self.judge)
        found.add(self._promising(guesses)[:limit])
        if not any(j.fits for j in found.judged.values()):
            least = sorted(guesses, key=lambda c: (guesses[c].fullness, str(c)))
            found.add(least[:limit])
        judged = tuple(sorted(found.judged.values(), key=self._order))
        if not any(j.fits for j in judged):
            self._refuse(judged, found.impossible)
        devices = tuple(self.space.cluster.devices)
        groups, why = self.space.groups, tuple(found.impossible)
        data, tied = self.space.model.data, self.judge.tied
        return Choice(judged, groups, len(guesses), devices, why, data, tied)

    def _promising(self, guesses: dict[Candidate, Guess]) -> list[Candidate]:
        """By guessed time, those that may fit; a variety of meshes before all."""
        fit = [c for c in guesses if guesses[c].fullness <= DOUBT]
        times = {c: self._time(c, guesses[c].seconds) for c in fit}
        ordered = sorted(fit, key=lambda c: (times[c], str(c)))
        first: dict[tuple, Candidate] = {}
        sure: dict[tuple, Candidate] = {}
        orders: dict[tuple, Candidate] = {}
        for c in ordered:
            if times[c] <= HOPELESS * times[ordered[0]]:
                shape = (c.devices, *c.axes.items())
                first.setdefault(shape, c)
                if guesses[c].fullness <= 1:
                    sure.setdefault(shape, c)
                orders.setdefault((*shape, c.schedule), c)
        variety = [*first.values(), *sure.values(), *orders.values()]
        return list(dict.fromkeys([*variety, *ordered]))

    def _time(self, c: Candidate, seconds: float) -> float:
        """Of a step; among islands that of all of them for a batch of one."""
        if not self.islands:
            return seconds
        return seconds / (len(self.space.cluster.devices) // len(c.devices))

    def _order(self, judged: Judged) -> tuple:
        """Faster first; of equals fewer devices, less sent, a lower ZeRO stage."""
        c = judged.candidate
        seconds = float(f"{self._time(c, judged.cost.seconds):.3g}")
        return seconds, len(c.devices), judged.cost.sent, c.zero, str(c), c.groups

    def _refuse(
        self, judged: tuple[Judged, ...], impossible: Iterable[tuple[str, str]]
    ) -> NoReturn:
        if not judged:
            why = "".join(f"\n{plan}: {reason}" for plan, reason in impossible)
            refuse(self.module, f"no layout of these plans is possible{why}")
        least = min(judged, key=lambda j: j.memory / j.room)
        refuse(
            self.module,
            f"nothing fits: the least memory is that of {least.candidate}, "
            f"{bytes_text(least.memory)} on @{least.fullest}, which has "
            f"{bytes_text(least.room)}; use a smaller batch, a smaller model, or "
            "more devices",
        )


# --- what the module says ---


def _check(
    module: ir.Module, machines: cluster.Cluster, axes: dict[str, int] | None
) -> None:
    if not machines.devices:
        refuse(
            module.operation,
            "no pcp.device is described; give a cluster file, which pcp probe writes",
        )
    if read_meshes(module):
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
    copy = ir.Module.parse(_text(module), module.context)
    ops = 0
    for function in list(functions(copy)):
        if symbol_name(function) in kept:
            ops += sum(1 for _ in walk(block_of(function, 0)))
        else:
            function.erase()
    return _text(copy), ops


def _text(module: ir.Module) -> str:
    """With the locations, which say where stages are impossible."""
    return str(module.operation.get_asm(enable_debug_info=True))
