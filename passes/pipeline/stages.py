"""Which stage every op of a gradient function runs on.

Forward ops are cut in their order, at the user's `pcp.stage` or where it balances.
An op of the backward part runs on the stage whose forward values and parameters it
reads, as late as its cotangents allow: these come from the last stage and go down.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError
from pcp.passes.analysis.cost import size_bytes, work
from pcp.passes.core.functions import (
    NAME,
    argument_attributes,
    result_attributes,
    string,
    symbol_name,
)
from pcp.passes.core.marks import MARK, mark_of
from pcp.passes.core.rewriting import refuse
from pcp.passes.core.walk import walk
from pcp.passes.pipeline.cuts import Chain, best_cuts
from pcp.passes.pipeline.flow import AXIS, Flow
from pcp.passes.pipeline.microbatches import Separated

#: How many times slower than with free cuts a stage may be before a parameter that
#: is used all over the program is an error.
LAME = 2.0

Value = ir.Value


@dataclass(frozen=True)
class Wanted:
    """What the user asks for: see `pcp-stage`. `speeds` and `room` by stage.

    `shared_loss`: the loss is delivered on every stage. `state`: bytes of optimizer
    state that go with each parameter, by name.
    """

    stages: int
    balance: str
    tied: bool
    microbatches: int
    speeds: list[float]
    room: list[float]
    shared_loss: bool = False
    state: Mapping[str, float] = field(default_factory=dict)


#: The stages that hold each parameter, by name.
Homes = dict[str, list[int]]


@dataclass
class Stages:
    """The stage of each op by number, forward ops, and the arguments' homes.

    An argument without homes is at hand wherever it is read. `delivered` are the
    stages on which each result is wanted, where that is more than where it belongs.
    """

    flow: Flow
    count: int
    of: dict[int, int] = field(default_factory=dict)
    forward: set[int] = field(default_factory=set)
    homes: dict[Value, list[int]] = field(default_factory=dict)
    delivered: dict[int, list[int]] = field(default_factory=dict)

    def of_value(self, value: Value) -> int | None:
        """The stage of the op that makes a value; None for arguments, fixed ones."""
        maker = self.flow.makers.get(value)
        return None if maker is None else self.of.get(maker)

    def source_of(self, argument: Value, stage: int) -> int:
        """The stage from which another has an argument: itself, if that holds it."""
        homes = self.homes.get(argument, [stage])
        return stage if stage in homes else min(homes)

    def deliveries(self) -> list[list[int]]:
        """The stages on which each result is delivered."""
        found = []
        for k, (value, owner) in enumerate(
            zip(self.flow.results, self.owners(), strict=True)
        ):
            made = self.of_value(value) or 0
            found.append(self.delivered.get(k, [made if owner is None else owner]))
        return found

    def owners(self) -> list[int | None]:
        """Where each result is to lie: a gradient by its parameter."""
        names = {
            string(said, NAME): argument
            for said, argument in zip(
                argument_attributes(self.flow.function),
                self.flow.arguments,
                strict=True,
            )
        }
        owners: list[int | None] = []
        for said, value in zip(
            result_attributes(self.flow.function), self.flow.results, strict=True
        ):
            homes = self.homes.get(names.get(string(said, NAME), value), [])
            owners.append(min(homes) if homes else None)
        return owners


def assign(separated: Separated, wanted: Wanted, homes: Homes) -> Stages:
    """Stages for all ops but fixed ones; `PassError` where that cannot be.

    `homes` are those of a function that was cut before, and hold here too; what
    parameters this one adds to them is added.
    """
    flow = separated.flow
    forward = flow.forward()
    stages = Stages(flow, wanted.stages, forward=set(forward))
    if len(forward) < wanted.stages:
        refuse(
            flow.function,
            f"has {len(forward)} ops between data and loss, too few for "
            f"{wanted.stages} stages; use fewer stages",
        )
    if _is_marked([flow.ops[n] for n in forward]):
        _by_marks(stages, forward)
    else:
        _by_cuts(stages, forward, separated, wanted, homes)
    _find_homes(stages, forward, wanted.tied, homes)
    _deliver_marked(stages)
    if wanted.shared_loss:
        stages.delivered[0] = list(range(wanted.stages))
    return stages


def _deliver_marked(stages: Stages) -> None:
    """Results go to the stage that they are marked with."""
    for k, said in enumerate(result_attributes(stages.flow.function)):
        if MARK not in said:
            continue
        stage = ir.IntegerAttr(said[MARK]).value
        if not 0 <= stage < stages.count:
            refuse(
                stages.flow.function,
                f"result {k} has {MARK} = {stage}, and there are {stages.count} stages",
            )
        stages.delivered[k] = [stage]


# --- forward, by the user's marks ---


def _is_marked(ops: list[ir.Operation]) -> bool:
    """Whether some op has a mark; one inside of another op cannot be a stage's own."""
    for op in ops:
        for region in op.regions:
            for inner in walk(region.blocks[0]):
                if MARK in inner.attributes:
                    refuse(
                        inner,
                        f"has a mark {MARK} inside of a {op.name}, which runs whole on "
                        f"one stage; mark the {op.name} at "
                        f"{location_string(op.location)}",
                    )
    return any(MARK in op.attributes for op in ops)


def _by_marks(stages: Stages, forward: list[int]) -> None:
    """An op without a mark is on the last stage that it reads from."""
    flow = stages.flow
    for number in forward:
        op = flow.ops[number]
        sources = [stages.of_value(v) for v in flow.mains(number)]
        latest = max((s for s in sources if s is not None), default=0)
        mark = mark_of(op)
        stage = latest if mark is None else mark
        if not 0 <= stage < stages.count:
            refuse(op, f"{MARK} = {stage}, and there are {stages.count} stages")
        if stage < latest:
            refuse(
                op,
                f"stage cycle: it is on stage {stage} and reads a value of stage "
                f"{latest}; activations go from lower stages to higher ones",
            )
        stages.of[number] = stage
    for stage in range(stages.count):
        if stage not in stages.of.values():
            refuse(flow.function, f"no op is on stage {stage}; mark one, or use fewer")


# --- forward, balanced ---


def _by_cuts(
    stages: Stages,
    forward: list[int],
    separated: Separated,
    wanted: Wanted,
    homes: Homes,
) -> None:
    chain = _chain(stages.flow, forward, separated, wanted, homes)
    cuts = best_cuts(chain)
    if cuts is None or _is_lame(chain, cuts):
        _explain(stages.flow, forward, chain, wanted)
    stage = 0
    for place, number in enumerate(forward):
        while cuts and place >= cuts[0]:
            stage, cuts = stage + 1, cuts[1:]
        stages.of[number] = stage


def _is_lame(chain: Chain, cuts: list[int]) -> bool:
    """Whether cuts between a parameter's uses would make the stages much evener."""
    free = best_cuts(replace(chain, allowed=[True] * len(chain.cost)))
    return free is not None and _slowest(chain, cuts) > LAME * _slowest(chain, free)


def _slowest(chain: Chain, cuts: list[int]) -> float:
    bounds = [0, *cuts, len(chain.cost)]
    pieces = zip(bounds, bounds[1:], chain.speeds, strict=False)
    return max(sum(chain.cost[a:b]) / speed for a, b, speed in pieces)


def _chain(
    flow: Flow, forward: list[int], separated: Separated, wanted: Wanted, homes: Homes
) -> Chain:
    """The forward ops' costs, and what crosses each cut."""
    sizes = _Sizes(separated)
    spans = _parameter_spans(flow, forward)
    kept = [_kept(flow, n, sizes, wanted) for n in forward]
    for parameter, (first, _) in spans.items():
        kept[first] += 2 * sizes.of(parameter)  # itself and its gradient
        kept[first] += wanted.state.get(name_of(flow, parameter), 0.0)
    by_time = [work(flow.ops[n]) * sizes.share(n) for n in forward]
    crossing, allowed = _crossing(flow, forward, sizes), [True] * len(forward)
    for parameter, (first, last) in spans.items():
        for cut in range(first + 1, last + 1):
            allowed[cut] = allowed[cut] and wanted.tied
            crossing[cut] += sizes.of(parameter)
    return Chain(
        by_time if wanted.balance == "time" else kept,
        kept,
        crossing,
        allowed,
        wanted.speeds if wanted.balance == "time" else [1.0] * wanted.stages,
        wanted.room,
        _bound(flow, forward, wanted.stages, homes),
    )


def _bound(
    flow: Flow, forward: list[int], count: int, homes: Homes
) -> list[frozenset[int]]:
    """The stages that each forward op may be on: those that hold what it reads."""
    everywhere = frozenset(range(count))
    bound = []
    for number in forward:
        found = everywhere
        for parameter in flow.parameters_of(number):
            found &= frozenset(homes.get(name_of(flow, parameter), everywhere))
        bound.append(found)
    return bound


@dataclass(frozen=True)
class _Sizes:
    """What the devices of a stage have of the program, each."""

    separated: Separated

    def of(self, value: Value) -> float:
        """Bytes of a device's part, of all microbatches."""
        return size_bytes(value) / self._cuts(self.separated.plan.layouts[value].axes)

    def share(self, number: int) -> float:
        """The part of an op's work that a device does."""
        op = self.separated.flow.ops[number]
        if op not in self.separated.plan.rules:
            return 1.0
        _, assignment = self.separated.plan.rules[op]
        return 1 / self._cuts(tuple(a for axes in assignment.values() for a in axes))

    def _cuts(self, axes: tuple[str, ...]) -> int:
        return self.separated.mesh.count([axis for axis in axes if axis != AXIS])


def _kept(flow: Flow, number: int, sizes: _Sizes, wanted: Wanted) -> float:
    """Bytes that an op's results keep until the backward part, at most.

    Of `stages` microbatches at once at the most; the ops are of the whole batch.
    """
    at_once = min(wanted.stages, wanted.microbatches) / wanted.microbatches
    return at_once * sum(map(sizes.of, flow.ops[number].results))


def _parameter_spans(flow: Flow, forward: list[int]) -> dict[Value, tuple[int, int]]:
    """The places of the first and last forward op that read each parameter."""
    spans: dict[Value, tuple[int, int]] = {}
    for place, number in enumerate(forward):
        for parameter in flow.parameters_of(number):
            spans[parameter] = (spans.get(parameter, (place, 0))[0], place)
    return spans


def _crossing(flow: Flow, forward: list[int], sizes: _Sizes) -> list[float]:
    """Bytes of the values that are made before each forward op and read after."""
    places = {number: place for place, number in enumerate(forward)}
    crossing = [0.0] * (len(forward) + 1)
    for place, number in enumerate(forward):
        for result in flow.ops[number].results:
            readers = [places.get(r, -1) for r in flow.readers.get(result, ())]
            if (last := max(readers, default=-1)) > place:
                crossing[place + 1] += sizes.of(result)
                crossing[last + 1] -= sizes.of(result)
    for place in range(1, len(crossing)):
        crossing[place] += crossing[place - 1]
    return crossing[:-1]


def _explain(flow: Flow, forward: list[int], chain: Chain, wanted: Wanted) -> NoReturn:
    """Say why there is no cut."""
    free = replace(chain, allowed=[True] * len(chain.cost))
    if best_cuts(free) is not None:
        spans = _parameter_spans(flow, forward)
        parameter = max(spans, key=lambda p: spans[p][1] - spans[p][0])
        first, last = (flow.ops[forward[place]] for place in spans[parameter])
        _refuse_shared(flow, parameter, first, last)
    need = sum(chain.kept)
    refuse(
        flow.function,
        f"does not fit: parameters, gradients and activations need about {need:.3g} "
        f"bytes, and no cut into {wanted.stages} stages leaves each device what it "
        f"can hold ({', '.join(f'{room:.3g}' for room in wanted.room)}); use more "
        "stages or more microbatches",
    )


def name_of(flow: Flow, argument: Value) -> str:
    """An argument's name; one without gets a name that no other function has."""
    place = flow.arguments.index(argument)
    said = argument_attributes(flow.function)[place]
    own = f"argument {place} of @{symbol_name(flow.function)}"
    return string(said, NAME) or own


def _refuse_shared(
    flow: Flow, parameter: Value, first: ir.Operation, last: ir.Operation
) -> NoReturn:
    raise PassError(
        f"{location_string(last.location)}: {last.name}: parameter "
        f"{name_of(flow, parameter)} is used by two stages, here and at "
        f"{location_string(first.location)}; with tied=true both hold it, or keep its "
        "uses in one stage"
    )


def _find_homes(stages: Stages, forward: list[int], tied: bool, known: Homes) -> None:
    """The stages that use each parameter; one, unless `tied`."""
    flow = stages.flow
    first: dict[Value, ir.Operation] = {}
    for argument in flow.arguments:
        name = name_of(flow, argument)
        if argument not in flow.given and name in known:
            stages.homes[argument] = known[name]
    for number in forward:
        for parameter in flow.parameters_of(number):
            first.setdefault(parameter, flow.ops[number])
            homes = stages.homes.setdefault(parameter, [])
            if stages.of[number] in homes:
                continue
            if name_of(flow, parameter) in known:
                refuse(
                    flow.ops[number],
                    f"is on stage {stages.of[number]} and reads parameter "
                    f"{name_of(flow, parameter)}, which another function has on stage "
                    f"{homes[0]}; mark both alike with {MARK}",
                )
            homes.append(stages.of[number])
            if len(homes) > 1 and not tied:
                _refuse_shared(flow, parameter, first[parameter], flow.ops[number])
    for argument in flow.arguments:
        if argument not in flow.given:
            homes = stages.homes.setdefault(argument, [0])  # one that nobody reads
            known[name_of(flow, argument)] = homes
