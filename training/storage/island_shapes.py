"""Island shapes: the plans of the islands of a run, which cut one state unlike.

    shapes.digest(whole)                     alike for all shapes
    shapes.digest_of(part, place)            a rank's share of it: of what it owns
    joined(shares)                           the digest, from the ranks' shares
    shapes.reduced(name, place, present)     where a rank's exchange finds its peers

Pieces of tensors (`pcp.pieces`) are the same whatever island holds them, so their
digests add up to that of the state: an island of two ranks and one whole device have
the same digest for the same numbers. Of the ranks of an island that hold a piece the
first one owns it; `RoundGroup.agree` gives the others its bits.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from pcp.errors import BundleError, StateMismatch
from pcp.layout import Layout
from pcp.manifest import Manifest
from pcp.pieces import Box, Holders, Reduction, Ring, common, pieces, rings, within
from pcp.training.storage import safetensors_io
from pcp.training.storage.island_parts import Digests, IslandParts, Port, port_of
from pcp.training.storage.safetensors_io import Arrays

PART_OF = "part_of"
"""The attribute of a collective that says of which tensor it has a part."""
_BITS = 256


@dataclass(frozen=True)
class RankPlace:
    """A rank: its island's shape, and its coordinate there."""

    shape: int
    coordinate: int


@dataclass(frozen=True)
class IslandShape:
    """How islands of one shape cut a state, and the tensors that they exchange."""

    parts: IslandParts
    exchanges: Mapping[str, tuple[tuple[int, ...], Layout]] = field(
        default_factory=dict
    )

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """The shape by a bundle; `BundleError` where its ranks exchange unlike."""
        found: dict[str, tuple[tuple[int, ...], Layout]] = {}
        parts = IslandParts.of(manifest)
        names = []
        for program in manifest.programs.values():
            own = [c.attributes.get(PART_OF) for c in program.collectives.values()]
            own = [said for said in own if said is not None]
            found |= {said["name"]: _tensor(said) for said in own}
            names.append({said["name"] for said in own})
        if parts.lacks or any(each != names[0] for each in names):
            raise BundleError(
                f"the ranks of an island of {parts.axes} have different tensors, and "
                "islands of unlike shape exchange all of them; leave pp out of the mesh"
            )
        return cls(parts, found)

    @classmethod
    def read(cls, noted: Mapping[str, Any]) -> Self:
        """The shape by the value of `noted`."""
        found = {said["name"]: _tensor(said) for said in noted["exchanges"]}
        return cls(IslandParts.read(noted["parts"]), found)

    @property
    def noted(self) -> dict[str, Any]:
        """The shape as a value for JSON."""
        exchanges = [
            {"name": name, "shape": [*shape], "layout": [[*axes] for axes in lie.dims]}
            for name, (shape, lie) in self.exchanges.items()
        ]
        return {"parts": self.parts.described, "exchanges": exchanges}


def _tensor(said: Mapping[str, Any]) -> tuple[tuple[int, ...], Layout]:
    return tuple(said["shape"]), Layout(tuple(map(tuple, said["layout"])))


class IslandShapes(Sequence[IslandShape]):
    """The shapes of a run's islands, in the order of the experiment."""

    def __init__(self, shapes: Sequence[IslandShape]) -> None:
        self._shapes = tuple(shapes)
        first = set(shapes[0].exchanges)
        for shape in shapes:
            if set(shape.exchanges) != first:
                raise BundleError(
                    f"islands of {shapes[0].parts.axes} and of {shape.parts.axes} "
                    "exchange different tensors; compile both from one model"
                )
        self._pieces: dict[str, dict[Holders, list[Box]]] = {}

    @classmethod
    def read(cls, noted: Sequence[Mapping[str, Any]]) -> Self:
        """The shapes by the value of `noted`."""
        return cls([IslandShape.read(each) for each in noted])

    @property
    def noted(self) -> list[dict[str, Any]]:
        """The shapes as a value for JSON."""
        return [shape.noted for shape in self._shapes]

    def __getitem__(self, index: Any) -> Any:
        return self._shapes[index]

    def __len__(self) -> int:
        return len(self._shapes)

    def __iter__(self) -> Iterator[IslandShape]:
        return iter(self._shapes)

    # Who holds what

    def pieces_of(self, name: str) -> dict[Holders, list[Box]]:
        """The pieces of a state's tensor; () is the box of a whole one."""
        if name not in self._pieces:
            self._pieces[name] = self._cut(port_of(name))
        return self._pieces[name]

    def _cut(self, port: Port) -> dict[Holders, list[Box]]:
        known = [shape.parts.whole.get(port) for shape in self._shapes]
        shape = next((found[0] for found in known if found is not None), None)
        if shape is None:
            return {self._everybody: [()]}
        whole = Layout.replicated(len(shape))
        return self._lying(
            shape, [whole if found is None else found[1] for found in known]
        )

    def _lying(
        self, shape: Sequence[int], layouts: Sequence[Layout]
    ) -> dict[Holders, list[Box]]:
        meshes = [one.parts.mesh for one in self._shapes]
        return pieces(shape, list(zip(layouts, meshes, strict=True)))

    @property
    def _everybody(self) -> Holders:
        return tuple(tuple(range(one.parts.size)) for one in self._shapes)

    def where(self, name: str, place: RankPlace) -> Box:
        """The box of a state's tensor that a rank holds; () is all of it."""
        return self._shapes[place.shape].parts.where(name, place.coordinate) or ()

    def owned(
        self, part: Mapping[str, np.ndarray], place: RankPlace
    ) -> dict[Ring, Arrays]:
        """The pieces of a rank's part that it owns, by who owns them in all shapes.

        They are named `tensor#n`, alike in all shapes.
        """
        found: dict[Ring, Arrays] = {}
        for name, array in part.items():
            own, numbers = self.where(name, place), 0
            for held, boxes in self.pieces_of(name).items():
                owners = tuple(ranks[0] for ranks in held)
                for box in boxes:
                    numbers += 1
                    if owners[place.shape] == place.coordinate:
                        at = within(box, own) if own else box
                        piece = np.array(np.asarray(array)[at], order="C")
                        found.setdefault(owners, {})[f"{name}#{numbers}"] = piece
        return found

    def owned_along(
        self, part: Mapping[str, np.ndarray], place: RankPlace, present: Sequence[int]
    ) -> dict[Ring, Arrays]:
        """The pieces that a rank owns, by their ring of islands of these shapes."""
        found: dict[Ring, Arrays] = {}
        for owners, arrays in self.owned(part, place).items():
            ring = tuple(owners[shape] for shape in present)
            found.setdefault(ring, {}).update(arrays)
        return found

    def put(
        self, part: Arrays, pieces_: Mapping[str, np.ndarray], place: RankPlace
    ) -> None:
        """Write pieces, by their names, into a rank's part."""
        for named, piece in pieces_.items():
            name, _, number = named.rpartition("#")
            box = self._numbered(name)[int(number) - 1]
            own = self.where(name, place)
            part[name][within(box, own) if own else box] = piece

    def _numbered(self, name: str) -> list[Box]:
        return [box for boxes in self.pieces_of(name).values() for box in boxes]

    # Exchanges

    def rings(self, present: Sequence[int]) -> list[Ring]:
        """All rings of islands of these shapes, in the order in which ranks use them.

        `present` has each shape once, in ascending order.
        """
        held = self._all_holders
        return sorted({ring for each in held for ring in rings(each, present)})

    @cached_property
    def _all_holders(self) -> set[Holders]:
        """The holders of any piece of what is exchanged, or of the state."""
        found = {self._everybody}
        for name in self._shapes[0].exchanges:
            found |= self._exchanged(name).keys()
        for port in {port for one in self._shapes for port in one.parts.whole}:
            found |= self._cut(port).keys()
        return found

    def _exchanged(self, name: str) -> dict[Holders, list[Box]]:
        known = [shape.exchanges[name] for shape in self._shapes]
        return self._lying(known[0][0], [layout for _, layout in known])

    def reduced(
        self, name: str, place: RankPlace, present: Sequence[int]
    ) -> list[Reduction]:
        """The reductions of a rank of these islands in an exchange, ring by ring."""
        shape, layout = self._shapes[place.shape].exchanges[name]
        mesh = self._shapes[place.shape].parts.mesh
        own = layout.slices(shape, mesh, mesh.members[place.coordinate])
        at = present.index(place.shape)
        boxes: dict[Ring, list[Box]] = {}
        taken: dict[Ring, list[Box]] = {}
        for held, found in self._exchanged(name).items():
            if place.coordinate not in held[place.shape]:
                continue
            mine = [within(box, own) for box in found]
            through = [r for r in rings(held, present) if r[at] == place.coordinate]
            taken.setdefault(through[0], []).extend(mine)
            for ring in through:
                boxes.setdefault(ring, []).extend(mine)
        return [Reduction(r, boxes[r], taken.get(r, [])) for r in sorted(boxes)]

    # Digests

    def digest(self, whole: Mapping[str, np.ndarray]) -> str:
        """The digest of a whole state."""
        first = self._shapes[0].parts
        ranks = range(first.size)
        shares = [
            self.digest_of(first.cut(whole, at), RankPlace(0, at)) for at in ranks
        ]
        found = joined(shares)
        assert found is not None, "every rank has a share"
        return found

    def digest_of(self, part: Mapping[str, np.ndarray], place: RankPlace) -> str:
        """A rank's share of the digest of a state: of the pieces that it owns."""
        total = 0
        for owners, arrays in self.owned(part, place).items():
            said = f"{owners}\0{safetensors_io.digest(arrays)}"
            total += int(hashlib.sha256(said.encode()).hexdigest(), 16)
        return _text(total)


def cut_of(info: Mapping[str, Any]) -> IslandParts | IslandShapes:
    """How the state of a checkpoint was cut, by its `info`."""
    if (unlike := info.get("shapes")) is not None:
        return IslandShapes.read(unlike)
    return IslandParts.read(info.get("parts"))


def joined(shares: Digests) -> str | None:
    """The digest of a state from its ranks' shares; None if one is missing."""
    known = [int(share, 16) for share in shares if share is not None]
    return _text(sum(known)) if len(known) == len(shares) else None


def _text(number: int) -> str:
    return f"{number % 2**_BITS:064x}"


class FetchedPart:
    """A rank's part of a state that ranks of an island of another shape hold.

    `add` takes a rank's snapshot at a time, so that never the whole state is held.
    """

    def __init__(self, shapes: IslandShapes, place: RankPlace, source: int) -> None:
        self._shapes, self._place, self._source = shapes, place, source
        self._arrays: Arrays = {}
        self._seen: dict[str, np.ndarray] = {}
        """Which elements of a tensor have come."""

    def add(self, coordinate: int, snapshot: Mapping[str, np.ndarray]) -> None:
        """Take what the rank at `coordinate` has of this rank's part."""
        theirs = RankPlace(self._source, coordinate)
        for name, array in snapshot.items():
            mine = self._shapes.where(name, self._place)
            other = self._shapes.where(name, theirs)
            if not mine and not other:
                self._arrays.setdefault(name, array)
                continue
            self._copy(name, array, mine, other)

    def _copy(self, name: str, array: np.ndarray, mine: Box, other: Box) -> None:
        shape = self._whole_shape(name)
        everything = tuple(slice(0, n) for n in shape)
        mine, other = mine or everything, other or everything
        part = self._arrays.get(name)
        if part is None:
            sizes = [side.stop - side.start for side in mine]
            part = self._arrays[name] = np.zeros(sizes, array.dtype)
            self._seen[name] = np.zeros(sizes, bool)
        if (box := common(mine, other)) is not None:
            part[within(box, mine)] = array[within(box, other)]
            self._seen[name][within(box, mine)] = True

    def _whole_shape(self, name: str) -> tuple[int, ...]:
        port = port_of(name)
        found = [one.parts.whole.get(port) for one in self._shapes]
        return next(lie[0] for lie in found if lie is not None)

    def finished(self) -> Arrays:
        """The part; `StateMismatch` where no rank had some of it."""
        for name, seen in self._seen.items():
            if not seen.all():
                raise StateMismatch(f"no rank of the island holds all of {name}")
        return self._arrays
