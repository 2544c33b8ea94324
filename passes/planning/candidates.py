"""The plans to judge, and a first guess of each: numbers of the forward program only.

A candidate says which devices take part, in which order, on which axes; which groups
of parameters the axis "tp" cuts; whether "sp" cuts sequences, and "ep" experts; the
ZeRO stage along "dp"; and in how many
microbatches and which order the stages along "pp" run. Guesses order them, so that
only the promising ones are made and judged (`evaluation`, `pipelined`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from pcp.passes.analysis.cluster import Cluster, Device, Link
from pcp.passes.planning.cost import exchange_seconds, wire_seconds
from pcp.passes.planning.model_size import ModelSize
from pcp.passes.planning.tensor_groups import (
    AXIS,
    EXPERTS,
    SEQUENCE,
    Group,
    Groups,
    chosen,
    ranked,
    together,
)
from pcp.passes.sharding.split_batch import shares

#: Microbatches for each stage that are worth a try: the bubble is small by then.
MOST_MICROBATCHES = 8

#: Orders of a pipeline's tasks, and how much of a full bubble each leaves: that of
#: zero-bubble schedules holds a forward only, of three parts.
SCHEDULES = {"1f1b": 1.0, "zb-h1": 1 / 3, "gpipe": 1.0}

#: A guess of memory may be this much too high, and a plan be judged still.
DOUBT = 1.5

#: The axes of plans, the slowest first.
AXES = ("pp", "dp", SEQUENCE, EXPERTS, AXIS)

#: (axis, its size, group) of all that a plan cuts.
Cuts = list[tuple[str, int, Group]]

#: Backward is twice the work of forward.
PASSES = {"train": 3, "grad": 3, "forward": 1}


@dataclass(frozen=True)
class Candidate:
    """A plan: `devices` with "tp" fastest, `groups` by number, the batch's split.

    "tp" cuts the numbered groups of parameters, "ep" all experts, "sp" sequences. Of
    `pp` stages, slowest among `devices`, `microbatches` and `schedule` say how they
    run.
    """

    devices: tuple[str, ...]
    dp: int = 1
    tp: int = 1
    zero: int = 0
    groups: tuple[int, ...] = ()
    split: tuple[int, ...] = ()
    pp: int = 1
    microbatches: int = 1
    schedule: str = ""
    sp: int = 1
    ep: int = 1

    @property
    def inner(self) -> int:
        """The members that share one part of the batch, in one stage."""
        return self.sp * self.ep * self.tp

    def cuts(self, groups: Groups) -> "Cuts":
        """All that it cuts."""
        return list(chosen(groups, (self.tp, self.groups), self.ep, self.sp))

    @property
    def axes(self) -> dict[str, int]:
        """The mesh: axes of more than one member, "pp" first; "dp" where none has."""
        axes = {axis: getattr(self, axis) for axis in AXES}
        return {a: n for a, n in axes.items() if n > 1} or {"dp": 1}

    def __str__(self) -> str:
        """As the table names it."""
        axes = ",".join(f"{axis}={n}" for axis, n in self.axes.items())
        split = f" split={'/'.join(map(str, self.split))}" if self.split else ""
        zero = f" zero={self.zero}" if self.zero else ""
        flow = f" microbatches={self.microbatches} {self.schedule}"
        return axes + zero + split + (flow if self.pp > 1 else "")


@dataclass(frozen=True)
class Guess:
    """Seconds of a candidate, before it is made, and how full its devices are.

    1.0 is as full as the fullest can be.
    """

    seconds: float
    fullness: float


# --- which there are ---


@dataclass(frozen=True)
class Space:
    """Everything that candidates are made from."""

    model: ModelSize
    cluster: Cluster
    groups: Groups
    most_zero: int = 3
    axes: dict[str, int] | None = None
    _working: dict[tuple[str, ...], Cluster] = field(default_factory=dict)

    def among(self, devices: tuple[str, ...]) -> Cluster:
        """The cluster while only these devices work."""
        if devices not in self._working:
            self._working[devices] = self.cluster.among(devices)
        return self._working[devices]

    def candidates(self) -> Iterator[Candidate]:
        """All of them, the fewest devices first."""
        for devices in self._subsets():
            for pp, dp, sp, ep, tp in self._shapes(len(devices)):
                split = self._split(devices, pp, dp)
                if split is None:
                    continue
                for zero, numbers, flow in product(
                    self._stages(devices, dp),
                    self._choices(tp, ep),
                    self._flows(pp, dp),
                ):
                    made = Candidate(
                        devices, dp, tp, zero, numbers, split, pp, *flow, sp, ep
                    )
                    yield made
                    yield from self._roomier(made)

    def _subsets(self) -> Iterator[tuple[str, ...]]:
        """The fastest n, the roomiest n, of all and of a host; hosts side by side."""
        all_ = list(self.cluster.devices.values())
        speed = {d.name: self.model.seconds(d) for d in all_}
        found: dict[tuple[str, ...], None] = {}
        for key in (lambda d: (speed[d.name],), lambda d: (-d.memory, speed[d.name])):
            ranked = sorted(all_, key=key)
            for some in (*self._linked(ranked), *_by_host(ranked)):
                for n in range(1, len(some) + 1):
                    chosen = sorted(
                        some[:n], key=lambda d: (d.host, speed[d.name], d.name)
                    )
                    names = tuple(d.name for d in chosen)
                    if self.cluster.connected(names):
                        found[names] = None
        yield from found

    def _linked(self, ranked: Sequence[Device]) -> Iterator[list[Device]]:
        """Devices all linked with each other, the first as many as there are."""
        while ranked:
            some: list[Device] = []
            for device in ranked:
                if self.cluster.connected([d.name for d in (*some, device)]):
                    some.append(device)
            yield some
            ranked = [device for device in ranked if device not in some]

    def _shapes(self, devices: int) -> Iterator[tuple[int, ...]]:
        """Sizes of the axes for so many devices; stages go with "dp" and "tp" only."""
        sizes = [n for n in range(1, devices + 1) if devices % n == 0]
        for pp, sp, ep, tp in product(sizes, repeat=4):
            dp, rest = divmod(devices, pp * sp * ep * tp)
            if rest or not dp or (pp > 1 and sp * ep > 1):
                continue
            shape = (pp, dp, sp, ep, tp)
            wanted = self.axes is None or shape == tuple(
                self.axes.get(axis, 1) for axis in AXES
            )
            room = dp == 1 or self.model.batch >= dp
            cuts = all(
                n == 1 or self.groups.get((axis, n))
                for axis, n in ((SEQUENCE, sp), (EXPERTS, ep), (AXIS, tp))
            )
            if wanted and room and cuts:
                yield shape

    def _flows(self, pp: int, dp: int) -> list[tuple[int, str]]:
        """Microbatches that a device's share falls into evenly, and their orders."""
        if pp == 1:
            return [(1, "")]
        share = self.model.batch // dp
        most = min(share, MOST_MICROBATCHES * pp)
        counts = [n for n in range(1, most + 1) if share % n == 0]
        orders = ["1f1b"] if self.model.mode == "forward" else list(SCHEDULES)
        return [(n, kind) for n in counts for kind in (orders if n > 1 else ["1f1b"])]

    def _stages(self, devices: Sequence[str], dp: int) -> range:
        """Unlike machines round differently: each parameter gets one owner there."""
        if dp == 1 or self.model.mode == "forward":
            return range(1)
        targets = {self.cluster.devices[name].target for name in devices}
        if self.model.mode != "train":
            return range(1)
        first = 1 if len(targets) > 1 and self.most_zero else 0
        return range(first, self.most_zero + 1)

    def _choices(self, tp: int, ep: int) -> list[tuple[int, ...]]:
        """Groups that go together: each first one, and more and more of the others.

        None of them cuts an expert that "ep" cuts.
        """
        if tp == 1:
            return [()]
        groups = self.groups[AXIS, tp]
        taken = {name for g in self.groups.get((EXPERTS, ep), ()) for name in g.cut}
        found: dict[tuple[int, ...], None] = {}
        order = [i for i in ranked(groups) if taken.isdisjoint(groups[i].cut)]
        for first in order:
            some = together(groups, dict.fromkeys([first, *order]))
            found |= {tuple(sorted(some[:n])): None for n in range(1, len(some) + 1)}
        return list(found)

    def _split(
        self, devices: tuple[str, ...], pp: int, dp: int
    ) -> tuple[int, ...] | None:
        """Shares of the batch by speed, of each at least one; empty if all are alike.

        Stages share evenly, so that microbatches are equal: None where they cannot.
        """
        if dp == 1:
            return ()
        if pp > 1:
            return None if self.model.batch % dp else ()
        rates = self._rates(devices, dp)
        if alike(rates):
            return ()
        return tuple(shares(self.model.batch, rates, [None] * dp, least=1))

    def _rates(self, devices: tuple[str, ...], dp: int) -> list[float]:
        """What each row of "dp" makes in a second: all wait for its slowest."""
        known = self.among(devices).devices
        # A program may cost nothing by the model: then all are alike.
        speeds = {d: 1 / max(self.model.seconds(known[d]), 1e-12) for d in devices}
        return [min(speeds[d] for d in row) for row in _rows(devices, dp)]

    def _roomier(self, c: Candidate) -> Iterator[Candidate]:
        """The same with shares by memory, where those by speed may not fit."""
        if c.dp == 1 or c.pp > 1 or DOUBT * self.guess(c).fullness <= 1:
            return
        even, more = divmod(self.model.batch, c.dp)
        usual = c.split or tuple(even + (i < more) for i in range(c.dp))
        for sizes in dict.fromkeys(self._by_memory(c)):
            if min(sizes) and sizes != usual:
                yield replace(c, split=sizes)

    def _by_memory(self, c: Candidate) -> Iterator[tuple[int, ...]]:
        """The fastest shares that fit by the guess, and all rows equally full."""
        batch, kept, whole = self.model.batch, self._bytes(c, 0.0), self._bytes(c, 1.0)
        rooms = [min(map(self._room, row)) for row in _rows(c.devices, c.dp)]
        left = [max(0.0, min(batch * whole, room) - kept) for room in rooms]
        if not all(left):
            return
        most = [int(some * batch / (whole - kept)) for some in left]
        if sum(most) >= batch:
            rates = self._rates(c.devices, c.dp)
            yield tuple(shares(batch, rates, most, least=1))
        yield tuple(shares(batch, left, [None] * c.dp, least=1))

    # --- guesses ---

    def guess(self, candidate: Candidate) -> Guess:
        """Seconds of the busiest member, bytes of the fullest."""
        parts = [
            self._member(candidate, name, i // candidate.inner % candidate.dp)
            for i, name in enumerate(candidate.devices)
        ]
        return Guess(
            max(part.seconds for part in parts), max(part.fullness for part in parts)
        )

    def _room(self, name: str) -> float:
        return self.cluster.devices[name].memory

    def _member(self, c: Candidate, name: str, row: int) -> Guess:
        model, device = self.model, self.among(c.devices).devices[name]
        share = c.split[row] / model.batch if c.split else 1 / c.dp
        cuts = c.cuts(self.groups)
        left = _left(cuts, model.work, lambda group: group.work)
        passes = PASSES[model.mode]
        busy = passes * model.seconds(device) * share * left / c.pp
        held = _left(cuts, model.parameters, lambda group: group.parameter_bytes)
        parameters = model.parameters * held / c.pp
        return Guess(
            self._in_turn(c, device, busy, share)
            + self._wire(c, device, cuts, share, parameters),
            self._bytes(c, share) / self._room(name),
        )

    def _in_turn(
        self, c: Candidate, device: Device, busy: float, share: float
    ) -> float:
        """With the bubble of a pipeline, its dispatches and its messages."""
        if c.pp == 1:
            return busy
        model, count = self.model, c.microbatches
        again = device.overhead * model.dispatches * (count - 1) / c.pp
        busy += PASSES[model.mode] * again
        both = 1 if model.mode == "forward" else 2
        link = self.cluster.slowest(c.devices)
        bytes_ = model.boundary * share / count
        ends = 2 * exchange_seconds(bytes_, 0.0, device)
        message = ends + wire_seconds("send", 2, bytes_, bytes_, link)
        bubble = SCHEDULES[c.schedule] * (c.pp - 1) / count
        return busy * (1 + bubble) + both * count * message

    def _wire(
        self, c: Candidate, device: Device, cuts: Cuts, share: float, parameters: float
    ) -> float:
        """Sums of activations along tp and ep, of gradients along dp and sp."""
        total = 0.0
        both = 1 if self.model.mode == "forward" else 2
        link = self.cluster.slowest(c.devices[: c.inner])
        for axis, members, group in cuts:
            if axis != SEQUENCE:
                each = sum(
                    count * _sum_seconds(members, bytes_ * share / c.sp, link, device)
                    for bytes_, count in group.reduced.items()
                )
                total += both * each / c.pp
        if c.dp * c.sp > 1 and self.model.mode != "forward":
            row = c.devices[: len(c.devices) // c.pp]
            link = self.cluster.slowest(row[:: c.ep * c.tp])
            rounds = 1.5 if c.zero == 3 else 1.0
            total += rounds * _sum_seconds(c.dp * c.sp, parameters, link, device)
        return total

    def _bytes(self, c: Candidate, share: float) -> float:
        """Parameters, gradients and state by ZeRO stage; what the forward stores."""
        model, cuts = self.model, c.cuts(self.groups)
        held = _left(cuts, model.parameters, lambda group: group.parameter_bytes)
        parameters = model.parameters * held / c.pp
        left = _left(cuts, model.activations, lambda group: group.activations)
        share /= c.pp
        if model.mode == "forward":
            return parameters + model.activations * left * share / 2
        if c.pp > 1 and c.schedule != "gpipe":
            share *= min(c.pp, c.microbatches) / c.microbatches
        state = model.slots * parameters / (c.dp if c.zero >= 1 else 1)
        gradients = parameters / (c.dp if c.zero >= 2 else 1)
        own = parameters / (c.dp if c.zero >= 3 else 1)
        return own + gradients + state + model.activations * left * share


def _by_host(ranked: Sequence[Device]) -> list[list[Device]]:
    """The devices of each host, those of hosts with the same devices once."""
    hosts: dict[str, list[Device]] = {}
    for device in ranked:
        hosts.setdefault(device.host, []).append(device)
    known = {tuple(d.facts for d in some): some for some in reversed(hosts.values())}
    return [*known.values()]


def _rows(devices: tuple[str, ...], dp: int) -> list[tuple[str, ...]]:
    """The devices at each place of "dp"."""
    inner = len(devices) // dp
    return [devices[i * inner : (i + 1) * inner] for i in range(dp)]


def _left(cuts: Cuts, whole: float, of: Callable[[Group], float]) -> float:
    """The share of something that a member has, of which groups are cut."""
    parts: dict[str, float] = {}
    sizes = {axis: size for axis, size, _ in cuts}
    for axis, _, group in cuts:
        parts[axis] = parts.get(axis, 0.0) + of(group)
    left = 1.0
    for axis, part in parts.items():
        cut = min(1.0, part / max(1.0, whole))
        left *= 1 - cut + cut / sizes[axis]
    return left


def alike(rates: Sequence[float]) -> bool:
    """Whether unequal shares are not worth their while."""
    return max(rates) < 1.02 * min(rates)


def _sum_seconds(members: int, bytes_: float, link: Link, device: Device) -> float:
    """One sum over the members."""
    wire = wire_seconds("all_reduce", members, bytes_, bytes_, link)
    return wire + exchange_seconds(bytes_, bytes_, device)
