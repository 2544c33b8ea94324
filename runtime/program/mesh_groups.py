"""Mesh groups: the groups in which a partitioned program's members communicate.

A collective along axes of a mesh joins the members that differ only along those
axes. Each such group is a communicator of its own, formed once over the whole
world: the first member hosts the rendezvous, and an all_gather tells its address.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack

from pcp.errors import ConfigError, PeerLost, RuntimeFault
from pcp.manifest import Manifest
from pcp.mesh import WORKERS, Mesh
from pcp.runtime.collectives.tracing import Recorder
from pcp.runtime.communicator.communicator import Communicator, Seconds


class MeshGroups(Mapping[str, Communicator]):
    """Communicators by axes: `groups["dp"]`, `groups["dp,tp"]`; `""` is the world.

    Rank r of the world is the mesh's member r. Close it before the world. Of several
    workers that each run a program over the mesh, `""` joins the members of one, and
    `groups["workers"]` those at one place of all.
    """

    def __init__(
        self,
        world: Communicator,
        groups: dict[str, Communicator],
        own: Communicator | None = None,
    ) -> None:
        self._world = world
        self._groups = {"": own or world, **groups}

    @classmethod
    def form(
        cls, world: Communicator, mesh: Mesh, wanted: Iterable[tuple[str, ...]]
    ) -> "MeshGroups":
        """Form a group for each tuple of axes; every member calls it alike."""
        if world.world_size != mesh.size:
            raise ConfigError(
                f"mesh @{mesh.name} has {mesh.size} members, the world has "
                f"{world.world_size}; start one process for each device"
            )
        made: dict[str, Communicator] = {}
        try:
            for axes in sorted(set(wanted)):
                made[",".join(axes)] = _form(world, mesh, axes)
        except BaseException:
            cls(world, made).close(timeout=0)
            raise
        return cls(world, made)

    @classmethod
    def of(
        cls, world: Communicator, manifest: Manifest, workers: int = 1
    ) -> "MeshGroups":
        """The groups that the programs of a bundle communicate in.

        Rank r of the world is member r modulo the mesh's size of one of `workers`.
        """
        mesh = manifest.worker_mesh()
        wanted = {c.axes for c in manifest.all_collectives() if c.axes}
        if workers == 1 and (WORKERS,) not in wanted:
            return cls.form(world, mesh, wanted)
        inner = tuple(mesh.axes)
        made = cls.form(world, mesh.times(workers), {*wanted, (WORKERS,), inner})
        groups = {axes: group for axes, group in made.items() if axes}
        return cls(world, groups, made[",".join(inner)] if inner else None)

    def __getitem__(self, axes: str) -> Communicator:
        return self._groups[axes]

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def _recorder(self) -> Recorder | None:
        """The recorder of a trace of the groups; None without one."""
        return self._world._recorder

    @_recorder.setter
    def _recorder(self, recorder: Recorder | None) -> None:
        for axes, group in self._groups.items():
            if group is self._world:
                group._recorder = recorder
            else:
                group._recorder = recorder and recorder.of(f"collectives along {axes}")

    def cause(self, fault: RuntimeFault, patience: float = 1.0) -> RuntimeFault:
        """The fault of the world that caused `fault`; `fault` itself without one.

        A member whose group broke leaves its other groups, so that a fault may name
        one that only left, by its rank in that group. The world's fault names the
        rank that died. Waits up to `patience` seconds for it.
        """
        until = time.monotonic() + patience
        while self._world.fault is None and time.monotonic() < until:
            time.sleep(0.02)
        found = self._world.fault
        return found if isinstance(found, PeerLost) else fault

    def close(self, timeout: Seconds = None) -> None:
        """Leave all groups but the world, each as `Communicator.close` does."""
        with ExitStack() as stack:
            for axes, group in self._groups.items():
                if axes and group is not self._world:
                    stack.callback(group.close, timeout)


def group_ranks(mesh: Mesh, axes: tuple[str, ...], rank: int) -> list[int]:
    """The world ranks of a member's group, the first of `axes` varying slowest."""
    here = mesh.members[rank]
    fixed = [axis for axis in mesh.axes if axis not in axes]
    ranks = [
        r
        for r, place in enumerate(mesh.members)
        if all(place[axis] == here[axis] for axis in fixed)
    ]
    return sorted(ranks, key=lambda r: [mesh.members[r][axis] for axis in axes])


def _form(world: Communicator, mesh: Mesh, axes: tuple[str, ...]) -> Communicator:
    ranks = group_ranks(mesh, axes, world.rank)
    if ranks == list(range(world.world_size)):
        return world
    made = world.group(ranks)
    assert made is not None, "a member is in its own group"
    return made
