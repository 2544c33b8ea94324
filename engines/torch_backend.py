"""`torch.distributed` on pcp's communicator.

    import pcp.engines.torch_backend
    torch.distributed.init_process_group("pcp")

The rendezvous is through torch's own store (env://, tcp://, file://), of which it
uses one key: the first rank's address. Tensors are on the CPU, of every type of
numpy and ml_dtypes; contiguous ones are sent and written in place. Calls
are matched in the order of the calls, as torch demands. Failures are pcp's:
an operation happens on all members or raises on all of them.
"""

# Torch's stubs name overloads and arguments that its own C++ never passes by name,
# and do not export what its documentation does.
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportPrivateImportUsage=false

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.rendezvous import register_rendezvous_handler

from pcp.engines import torch_elastic, torch_monitored, torch_split
from pcp.engines.tensors import Tensors, back, fill, into, ordered, spread
from pcp.engines.torch_meeting import meet
from pcp.engines.torch_monitored import monitored_barrier
from pcp.engines.torch_ops import bitwise_of, patience_of, word_of
from pcp.engines.torch_sparse import all_reduce_sparse
from pcp.engines.torch_split import fresh_name
from pcp.engines.torch_work import PcpWork
from pcp.errors import UsageError
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.communicator.communicator import Communicator

T = TypeVar("T")
_CPU = torch.device("cpu")


class PcpProcessGroup(dist.ProcessGroup):
    """A process group of torch over a communicator."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm.rank, comm.world_size)  # pyright: ignore[reportCallIssue]
        self.comm = comm
        """The communicator below; close the group, not this."""
        self._name = ""
        self._failed: Exception | None = None
        self.store: dist.Store | None = None
        """The store of an elastic world that was renewed."""
        self.fresh = True
        """Whether an elastic world has just been renewed."""

    # Facts.

    def rank(self) -> int:
        """This member's number; an elastic world changes it."""
        return self.comm.rank

    def size(self) -> int:
        """How many members there are; an elastic world changes it."""
        return self.comm.world_size

    getRank, getSize = rank, size  # the same for C++

    def errored(self) -> Exception | None:
        """The fault that finished the group, or the first of its works that failed.

        Until the group is made again, or an elastic world is renewed.
        """
        return self.comm.fault or self._failed

    def getBackendName(self) -> str:
        """As in `init_process_group`."""
        return "pcp"

    def name(self) -> str:
        """As in `init_process_group`."""
        return "pcp"

    # Torch keeps name and devices with a group's C++ backends; this group has none.

    @property
    def group_name(self) -> str:
        """The name by which torch finds the group."""
        return self._name

    def getGroupName(self) -> str:
        """As `group_name`, for C++."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    def _get_backend(self, device: torch.device) -> Any:
        """The backend of a device for torch: this group itself."""
        same = torch.device(device).type == _CPU.type
        return self if same else super()._get_backend(device)

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether the backend allocates tensors: no."""
        return False

    # Reductions.

    def allreduce(self, tensors: Tensors, opts: Any = None) -> PcpWork:
        """Every tensor becomes its reduction; a sparse one comes alone."""
        options = opts or dist.AllreduceOptions()
        patience, op = patience_of(options), options.reduceOp
        if len(tensors) == 1 and tensors[0].layout != torch.strided:
            given = (self.comm, tensors[0], word_of(op), patience)
            return all_reduce_sparse(*given, self._note)
        arrays = [ordered(tensor) for tensor in tensors]
        if (bitwise := bitwise_of(op)) is not None:
            pendings = [self.comm.all_gather_async(a, timeout=patience) for a in arrays]

            def combine(values: list[NDArray]) -> None:
                for tensor, value in zip(tensors, values, strict=True):
                    rows = value.reshape(self.size(), -1)
                    fill(tensor, bitwise.reduce(rows, axis=0))

            return self._work(pendings, list(tensors), combine)
        word = word_of(op)
        pendings = [
            self.comm.all_reduce_async(array, word, timeout=patience)
            for array in arrays
        ]
        return self._work(pendings, list(tensors), back(tensors))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> PcpWork:
        """The root's tensor becomes the reduction; the others' stay."""
        (tensor,) = tensors
        pending = self.comm.reduce_async(
            ordered(tensor),
            word_of(opts.reduceOp),
            opts.rootRank,
            timeout=patience_of(opts),
        )
        return self._work([pending], [tensor], back([tensor]))

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> PcpWork:
        """Part r of the sum of all ranks' parts, on rank r."""
        parts = [[ordered(t) for t in each] for each in inputs]
        joined = [(np.concatenate(each), [p.size for p in each]) for each in parts]
        return self._reduce_scatter(outputs, joined, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> PcpWork:
        """As `reduce_scatter`, of one tensor that is split evenly."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> PcpWork:
        """As `reduce_scatter_single`, of several tensors."""
        even = [
            (ordered(given), [output.numel()] * self.size())
            for output, given in zip(outputs, inputs, strict=True)
        ]
        return self._reduce_scatter(outputs, even, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter(
        self, outputs: Tensors, given: list[tuple[NDArray, list[int]]], opts: Any
    ) -> PcpWork:
        options = opts or dist.ReduceScatterOptions()
        pendings = [
            self.comm.reduce_scatter_async(
                array,
                word_of(options.reduceOp),
                sizes=sizes,
                timeout=patience_of(options),
            )
            for array, sizes in given
        ]
        return self._work(pendings, list(outputs), into(outputs))

    # Movements.

    def broadcast(self, tensors: Tensors, opts: Any) -> PcpWork:
        """Every tensor becomes the root's."""
        pendings = [
            self.comm.broadcast_async(
                ordered(tensor), opts.rootRank, timeout=patience_of(opts)
            )
            for tensor in tensors
        ]
        return self._work(pendings, list(tensors), back(tensors))

    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> PcpWork:
        """`outputs[i][r]` becomes rank r's `inputs[i]`; sizes may differ."""
        pendings = [self._gathered(tensor, opts) for tensor in inputs]
        flat = [tensor for each in outputs for tensor in each]

        def finish(values: list[NDArray]) -> None:
            for each, value in zip(outputs, values, strict=True):
                spread(each, value)

        return self._work(pendings, flat, finish)

    def all_gather_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> PcpWork:
        """All ranks' tensors, joined in one."""
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> PcpWork:
        """As `all_gather_single`, of several tensors."""
        pendings = [self._gathered(tensor, opts) for tensor in inputs]
        return self._work(pendings, list(outputs), into(outputs))

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> PcpWork:
        """`outputs[r][i]` becomes rank r's `inputs[i]`."""
        turned = [list(each) for each in zip(*outputs, strict=True)]
        return self.allgather(turned, inputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gathered(self, tensor: torch.Tensor, opts: Any) -> Pending:
        patience = patience_of(opts)
        return self.comm.all_gather_async(ordered(tensor), timeout=patience)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> PcpWork:
        """At the root `outputs[0][r]` becomes rank r's tensor."""
        (tensor,) = inputs
        pending = self.comm.gather_async(
            ordered(tensor), opts.rootRank, timeout=patience_of(opts)
        )

        def finish(values: list[Any]) -> None:
            if values[0] is not None:
                spread(outputs[0], values[0])

        return self._work([pending], [t for each in outputs for t in each], finish)

    def scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any
    ) -> PcpWork:
        """The tensor becomes the root's `inputs[0][r]` on rank r."""
        whole, sizes = None, None
        if self.rank() == opts.rootRank:
            parts = [ordered(tensor) for tensor in inputs[0]]
            whole, sizes = np.concatenate(parts), [part.size for part in parts]
        pending = self.comm.scatter_async(
            whole, opts.rootRank, sizes=sizes, timeout=patience_of(opts)
        )
        return self._work([pending], list(outputs), into(outputs))

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> PcpWork:
        """`inputs[r]` goes to rank r, `outputs[r]` comes from it."""
        parts = [ordered(tensor) for tensor in inputs]
        pending = self.comm.exchange_async(parts, timeout=patience_of(opts))

        def finish(values: list[list[NDArray]]) -> None:
            into(outputs)(values[0])

        return self._work([pending], list(outputs), finish)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        opts: Any = None,
    ) -> PcpWork:
        """As `alltoall`, of rows of one tensor; even without splits."""
        array = ordered(given)
        edges = self._edges(given, input_splits)
        parts = [array[a:b] for a, b in itertools.pairwise(edges)]
        pending = self.comm.exchange_async(parts, timeout=patience_of(opts))

        def finish(values: list[list[NDArray]]) -> None:
            expected = np.diff(self._edges(output, output_splits)).tolist()
            if [part.size for part in values[0]] != expected:
                raise UsageError(
                    f"all_to_all_single: {[p.size for p in values[0]]} elements "
                    f"came, output_split_sizes expect {expected}"
                )
            fill(output, np.concatenate(values[0]))

        return self._work([pending], [output], finish)

    alltoall_base = all_to_all_single

    def _edges(self, tensor: torch.Tensor, splits: Sequence[int] | None) -> list[int]:
        """The offsets at which the ranks' elements begin and end."""
        rows = tensor.shape[0] if tensor.ndim else 1
        if not splits and rows % self.size():
            raise UsageError(f"{rows} rows do not split evenly in {self.size()}")
        counts = list(splits or [rows // self.size()] * self.size())
        if sum(counts) != rows or len(counts) != self.size():
            raise UsageError(f"splits {counts} do not make up {rows} rows")
        width = tensor.numel() // rows if rows else 0
        return [0, *(np.cumsum(counts) * width).tolist()]

    # Pairs, and the barrier.

    def send(self, tensors: Tensors, dst: int, tag: int) -> PcpWork:
        """Send to the rank whose `recv` has the tag."""
        (tensor,) = tensors
        pending = self.comm.send_async(ordered(tensor), dst, tag)
        return self._work([pending], [tensor])

    def recv(self, tensors: Tensors, src: int, tag: int) -> PcpWork:
        """The tensor becomes what `src` sends."""
        (tensor,) = tensors
        pending = self.comm.recv_async(ordered(tensor), src, tag)
        return self._work([pending], [tensor], back([tensor]), source=src)

    def recv_anysource(self, tensors: Tensors, tag: int) -> PcpWork:
        """UsageError: operations are between named members."""
        raise UsageError("the pcp backend receives from a named rank: give src=")

    def barrier(self, opts: Any = None) -> PcpWork:
        """Wait until all ranks have reached it, and their earlier collectives are over.

        As with Gloo, sends and receives may be matched behind it.
        """
        pending = self.comm.barrier_async(pairs=False, timeout=patience_of(opts))
        return self._work([pending], [])

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait until all ranks have called it; rank 0 names those that did not."""
        monitored_barrier(self.comm, timeout, wait_all_ranks)

    # An elastic world (`torch_elastic`).

    def update_membership(self, timeout: timedelta | float | None = None) -> bool:
        """Renew an elastic world between two steps, on all members; True if it changed.

        Rank and size are then the new ones. At once where it has just been renewed.
        """
        fresh, self.fresh = self.fresh, False
        if fresh and self.comm.fault is None:
            return True
        changed = torch_elastic.renew(self, timeout)
        self._failed = None
        return changed

    def retry(
        self, step: Callable[[], T], timeout: timedelta | float | None = None
    ) -> T:
        """`step()` of an elastic world, again among the survivors of lost members."""
        return torch_elastic.retry(self, step, timeout)

    # Other groups.

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> "PcpProcessGroup | None":
        """The group of some of this one's ranks; all of them call it, each its own.

        None for a rank that is not in `new_ranks`. `torch.distributed.split_group` also
        makes it known to torch.
        """
        comm = self.comm.group(new_ranks)
        if comm is None:
            return None
        made = PcpProcessGroup(comm)
        made._set_group_name(group_name or fresh_name(comm))
        made._set_group_desc(group_desc or f"{self.group_desc}:split")
        comm.timeout = timeout.total_seconds() if timeout else self.comm.timeout
        return made

    # The works.

    def _work(
        self,
        pendings: Sequence[Pending],
        tensors: list[torch.Tensor],
        finish: Any = None,
        source: int = -1,
    ) -> PcpWork:
        return PcpWork(pendings, tensors, finish, source, self._note)

    def _note(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._failed = self._failed or error

    # Ending.

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of operations without one of their own."""
        self.comm.timeout = timeout.total_seconds()

    def shutdown(self) -> None:
        """Leave the group, once earlier operations have happened."""
        self.comm.close()

    def abort(self) -> None:
        """Abort the group on all members."""
        self.comm.abort("the process group was aborted")


def register() -> None:
    """Make `pcp` a backend of torch.distributed; importing this module does."""
    if "pcp" not in dist.Backend.backend_list:
        dist.Backend.register_backend("pcp", create, devices=["cpu"])
        register_rendezvous_handler(torch_elastic.SCHEME, torch_elastic.rendezvous)
        split = torch_split.for_groups_of(PcpProcessGroup)
        barrier = torch_monitored.for_groups_of(PcpProcessGroup)
        dist.split_group = dist.distributed_c10d.split_group = split
        dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = barrier


def create(
    store: dist.Store, rank: int, world_size: int, timeout: timedelta
) -> PcpProcessGroup:
    """The group of all ranks with this store."""
    elastic = torch_elastic.joined(store)
    return PcpProcessGroup(elastic or meet(store, rank, world_size, timeout))


register()
