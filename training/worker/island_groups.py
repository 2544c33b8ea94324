"""The groups of an island's ranks, along the axes of their program's mesh."""

from typing import Any

from pcp.errors import CollectiveAborted
from pcp.runtime.program.mesh_groups import group_ranks
from pcp.training.wire.messages import (
    RoundStart,
)
from pcp.training.worker.worker_state import WorkerState


class IslandGroups:
    """The groups of one epoch, by their axes of the mesh; a whole worker has none.

    `purpose` separates their epochs from those of other groups. Groups are formed by
    addresses, so ranks need no group to form one.
    """

    def __init__(self, state: WorkerState, endpoint: Any, purpose: str) -> None:
        self._state, self._endpoint = state, endpoint
        self._purpose = purpose
        self.by_axes: dict[str, Any] = {}
        self.epoch: int | None = None
        """The epoch of the groups; None: there are none."""
        self._forming = False
        self._floor = 0
        """The epoch below which no group is formed any more."""

    @property
    def failed(self) -> bool:
        """Whether a group is broken, or could not be formed."""
        broken = any(group.fault is not None for group in self.by_axes.values())
        return self._forming or broken

    def form(self, order: RoundStart, epoch: int, timeout: float) -> None:
        """Form the groups of an epoch, once; `CollectiveAborted` if one broke."""
        if not order.island:
            self.close()
            return
        if self.epoch == epoch:
            if self.failed:
                raise CollectiveAborted("the ranks of the island lost each other")
            return
        self.close()
        if epoch < self._floor:
            raise CollectiveAborted("the ranks of the island begin anew")
        trainer, at = self._state.trainer, self._state.coordinate
        assert at is not None, "an order for an island is for a rank of it"
        mesh = trainer.parts.mesh
        self.epoch, self._forming = epoch, True
        for axes in trainer.axes_inside:
            ranks = group_ranks(mesh, axes or tuple(mesh.axes), at)
            name = ",".join(axes)
            group = self.by_axes[name] = self._endpoint.form(
                epoch,
                [order.island[rank] for rank in ranks],
                ranks.index(at),
                timeout,
                scope=self._scope(name),
            )
            group.timeout = timeout
        self._forming = False

    def abandon(self, reason: str, epoch: int) -> None:
        """Abort exchanges of groups before `epoch`, of which none is formed any more.

        From any thread: the rank's own may be about to form one.
        """
        self._floor = max(self._floor, epoch)
        for axes in self._state.trainer.axes_inside if self._state.loaded else ():
            self._endpoint.cancel(
                reason, below=epoch, scope=self._scope(",".join(axes))
            )
        if (held := self.epoch) is not None and held < epoch:
            for group in list(self.by_axes.values()):
                group.abort(reason)

    def close(self) -> None:
        """Leave the groups."""
        groups, self.by_axes, self.epoch = self.by_axes, {}, None
        self._forming = False
        for group in groups.values():
            group.close(timeout=0)

    def _scope(self, axes: str) -> str:
        """The scope in which epochs of the groups along these axes are compared."""
        return f"{self._purpose} {axes}"
