"""Along which axes of a mesh the members' programs surely hold values of their own.

Two members hold the same of a value unless it is a part or a partial sum, or made of
what only one of them has. Only what is sure is said: from the shardings of arguments
and from who holds them, forwards, through messages to the member that gets them. A
value that is cut out of a copy counts as a copy, and so does what single members get
in a permute, which may gather.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pcp.dialect.base import integer, strings, symbol
from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.core.functions import NAME, argument_attributes, entry, string
from pcp.passes.core.rewriting import HOLD
from pcp.passes.core.walk import CONTROL_FLOW, block_of, returned, walk
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.owners import AGREE
from pcp.passes.sharding.ports import port_shardings

Axes = frozenset[str]

#: Collectives after which each member along their axes holds a part of its own.
_CUT = ("pcp.reduce_scatter", "pcp.all_to_all")
#: What may give members the same along axes that nothing here says.
_OPAQUE = ("pcp.permute", "func.call")

#: Of a value that nothing is known of, and of all that is made of it.
UNKNOWN: Axes = frozenset({"?"})

#: A message: who sends it, who gets it, on which channel.
Message = tuple[str, str, int]


def variations(
    functions: Mapping[str, ir.Operation], mesh: Mesh
) -> "dict[str, Variation]":
    """What is known of each device's function of one name, by device of the mesh.

    They are followed side by side: one that comes to a message which was not sent yet
    waits until the sender's axes are known. A message that nobody is seen to send
    says nothing.
    """
    holders = _holders(functions)
    mail: dict[Message, Axes] = {}
    found = {
        device: Variation(device, mesh, mail).begin(function, holders)
        for device, function in functions.items()
    }
    follow_all(found, functions, UNKNOWN)
    return found


def follow_all(
    found: "Mapping[str, Variation]",
    functions: Mapping[str, ir.Operation],
    unsent: Axes,
) -> None:
    """Follow the devices' functions until all are through.

    `unsent` is what is said of a message that nobody sends.
    """
    mail = next(iter(found.values())).mail
    waiting = {
        device: found[device].follow(entry(function))
        for device, function in functions.items()
    }
    while waiting:
        came = len(mail)
        for device, steps in list(waiting.items()):
            if next(steps, None) is None:
                del waiting[device]
        if waiting and len(mail) == came:
            wanted = {message for v in found.values() for message in v.wanted}
            mail.update((message, unsent) for message in wanted - mail.keys())


def _holders(functions: Mapping[str, ir.Operation]) -> dict[str, list[str]]:
    """The devices whose function has an argument of each name."""
    holders: dict[str, list[str]] = {}
    for device, function in functions.items():
        for said in argument_attributes(function):
            if (name := string(said, NAME)) is not None:
                holders.setdefault(name, []).append(device)
    return holders


@dataclass
class Variation:
    """The axes of each value of one device's function; see `variations`."""

    device: str
    mesh: Mesh
    mail: dict[Message, Axes]
    known: dict[ir.Value, Axes] = field(default_factory=dict)
    #: What other devices get of a value is the same there.
    shared: dict[ir.Value, Axes] = field(default_factory=dict)
    wanted: set[Message] = field(default_factory=set)

    def axes(self, values: Iterable[ir.Value]) -> Axes:
        """Along which axes what is made of `values` varies."""
        return _union([self.known.get(v, frozenset()) for v in values])

    def begin(
        self, function: ir.Operation, holders: Mapping[str, list[str]]
    ) -> "Variation":
        """Read what is known of the arguments."""
        block = entry(function)
        for op in walk(block):
            if op.name == "pcp.send":
                self._share(op.operands[0], symbol(op, "to"))
        given = port_shardings(function, "arg_attrs", len(block.arguments))
        for argument, sharding, said in zip(
            block.arguments, given, argument_attributes(function), strict=True
        ):
            alone = self.alone(holders.get(string(said, NAME) or "", []))
            self._learn(argument, _cut_axes(sharding) | alone)
        return self

    def follow(self, block: ir.Block) -> Generator[Message, None, list[Axes]]:
        """Follow a block; the axes of what it hands on. Stops at what has to come."""
        for view in block.operations:
            op = view.operation
            if op.name == "pcp.recv":
                message = self._message(op)
                while message not in self.mail:
                    self.wanted.add(message)
                    yield message
            found = yield from self._results(op)
            for result, axes in zip(op.results, found, strict=True):
                self._learn(result, axes)
            if op.name == "pcp.send":
                self._post(op)
        return [self.axes([value]) for value in returned(block).operands]

    def _learn(self, value: ir.Value, axes: Axes) -> None:
        self.known[value] = axes - self.shared.get(value, frozenset())

    def _results(self, op: ir.Operation) -> Generator[Message, None, list[Axes]]:
        if op.name == "stablehlo.while":
            return (yield from self._loop(op))
        if op.name in CONTROL_FLOW:
            branches = []
            for region in op.regions:
                branches.append((yield from self.follow(region.blocks[0])))
            return [self.either(each) for each in zip(*branches, strict=True)]
        if op.name == HOLD:  # each result is its operand, and of no other one
            return [self.axes([value]) for value in op.operands]
        own = self.axes(op.operands)
        if op.name == "pcp.start":
            self.known.update((a, own) for a in block_of(op, 0).arguments)
            own = _union((yield from self.follow(block_of(op, 0))))
        elif op.name == "pcp.recv":
            own = self.mail[self._message(op)]
        else:
            own = self.made(op, own)
        return [own] * len(op.results)

    def _loop(self, op: ir.Operation) -> Generator[Message, None, list[Axes]]:
        """The sets that the first and every later round agree on."""
        carried = [self.axes([value]) for value in op.operands]
        while True:
            for region in op.regions:
                arguments = region.blocks[0].arguments
                self.known.update(zip(arguments, carried, strict=True))
            yield from self.follow(block_of(op, 0))
            after = yield from self.follow(block_of(op, 1))
            kept = [self.either(each) for each in zip(carried, after, strict=True)]
            if kept == carried:
                return carried
            carried = kept

    # --- the lattice: what another analysis of this kind puts in its own place ---

    @property
    def lost(self) -> Axes:
        """Of a value that nothing is known of."""
        return UNKNOWN

    def either(self, sets: Sequence[Axes]) -> Axes:
        """Of what may be any of several values: the axes of all."""
        return _common(sets)

    def made(self, op: ir.Operation, own: Axes) -> Axes:
        """Of an op's results, where `own` are the axes of its operands."""
        if op.name in _OPAQUE:
            return UNKNOWN
        if op.name in AGREE:
            return own - set(strings(op, "axes"))
        if op.name in _CUT:
            return _union([own, frozenset(strings(op, "axes"))])
        return own

    # --- who has what ---

    def alone(self, devices: Sequence[str]) -> Axes:
        """The axes along which no two places hold an argument."""
        places = dict(zip(self.mesh.devices, self.mesh.members, strict=True))
        held = [places[device] for device in devices if device in places]
        return frozenset(
            axis
            for axis, size in self.mesh.axes.items()
            if size > 1 and len({place[axis] for place in held}) == 1
        )

    def _share(self, value: ir.Value, other: str) -> None:
        before = self.shared.get(value, frozenset())
        self.shared[value] = before | self._between(other)

    def _between(self, other: str) -> Axes:
        """The axes along which the device and another one differ."""
        places = dict(zip(self.mesh.devices, self.mesh.members, strict=True))
        if other not in places:
            return frozenset(self.mesh.axes)
        here, there = places[self.device], places[other]
        return frozenset(axis for axis in here if here[axis] != there[axis])

    def _post(self, op: ir.Operation) -> None:
        """What is sent in a loop or a branch may be another thing each time."""
        message, axes = self._message(op), self.axes(op.operands)
        again = op.parent.operation.name != "func.func" or message in self.mail
        self.mail[message] = self.lost if again else axes

    def _message(self, op: ir.Operation) -> Message:
        channel = integer(op, "channel")
        if op.name == "pcp.send":
            return self.device, symbol(op, "to"), channel
        return symbol(op, "source"), self.device, channel


def _union(sets: Iterable[Axes]) -> Axes:
    """What is made of all of them varies along the axes of each."""
    joined = frozenset[str]().union(*sets)
    return UNKNOWN if joined & UNKNOWN else joined


def _common(sets: Sequence[Axes]) -> Axes:
    """What may be any of them varies along the axes of all."""
    return UNKNOWN if _union(sets) == UNKNOWN else frozenset.intersection(*sets)


def _cut_axes(sharding: ir.Attribute | None) -> Axes:
    if sharding is None:
        return frozenset()
    layout = from_attribute(sharding)
    return frozenset((*layout.axes, *layout.unreduced))
