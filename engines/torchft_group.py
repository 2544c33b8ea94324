"""torchft's process group on pcp: replicas that come and go add up over pcp.

    from pcp.engines.torchft_group import ProcessGroupPcp
    manager = torchft.Manager(pg=ProcessGroupPcp(), ...)

torchft configures the group anew for every quorum: the ranks meet at the store that it
names, on a communicator of their own. Needs torchft (`pip install torchft`).
"""

# torchft has no stubs, and is not installed with pcp.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pcp.engines.torch_backend import PcpProcessGroup
from pcp.engines.torch_meeting import meet
from pcp.errors import MissingPackage, RuntimeFault

try:
    from torchft.process_group import ProcessGroupWrapper
except ModuleNotFoundError as error:
    raise MissingPackage("torchft is not installed: pip install torchft") from error

_SECONDS = timedelta(seconds=60)


class ProcessGroupPcp(ProcessGroupWrapper):
    """A group of torchft over communicators of pcp, one for each quorum.

    `timeout` bounds the meeting of a quorum and each operation.
    """

    def __init__(self, timeout: timedelta = _SECONDS) -> None:
        super().__init__(timeout)

    def getBackendName(self) -> str:
        """The name that torchft registers it under."""
        return "torchft-pcp"

    def getRank(self) -> int:
        """This replica's number in the quorum, for C++; 0 before the first."""
        return self._pg.rank() if self._pg is not None else 0

    def getSize(self) -> int:
        """How many replicas the quorum has, for C++; 1 before the first."""
        return self._pg.size() if self._pg is not None else 1

    def errored(self) -> Exception | None:
        """Why this quorum's group has to be configured again; None while it works."""
        group = self._pg
        return group.errored() if isinstance(group, PcpProcessGroup) else None

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of operations, of this quorum's group too."""
        super().set_timeout(timeout)
        if isinstance(self._pg, PcpProcessGroup):
            self._pg.set_timeout(timeout)

    def abort(self, errored: bool = True) -> None:
        """End the quorum's group on all members; their operations raise."""
        ended = self._pg
        super().abort(errored)
        _leave(ended, abrupt=True)

    def shutdown(self) -> None:
        """Leave the quorum's group, once earlier operations have happened."""
        ended = self._pg
        super().shutdown()
        _leave(ended)

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> Any:
        return PcpProcessGroup(meet(store, rank, world_size, self._timeout))

    def _opts_hook(self, opts: Any) -> Any:
        """What torchft gives as options; a reduction may stand for them."""
        if not isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
            return opts
        options = dist.AllreduceOptions()
        options.reduceOp = opts
        return options


def _leave(group: Any, *, abrupt: bool = False) -> None:
    if not isinstance(group, PcpProcessGroup):
        return
    with suppress(RuntimeFault):  # what failed is told by `errored` and by the works
        group.comm.close(**({"timeout": 0} if abrupt else {}))
