"""Gloo and NCCL of torch.distributed, under pcp's calls.

    Communicator.connect("gloo://host:29500", rank=0, world_size=4)
    Communicator.connect("gloo:///shared/folder/meeting", ...)     # a file that is new

Rank 0 hosts torch's store at the address; torch's default group is left alone.
With NCCL arrays are copied to the GPU `rank % device_count` and back.
"""

# Torch's stubs do not export what its documentation does.
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from pcp.engines.engine import Engine, Sizes
from pcp.engines.member import translated
from pcp.errors import ConfigError, PeerLost, RuntimeFault, Timeout
from pcp.runtime.communicator.array_interop import to_torch
from pcp.runtime.transport import link
from pcp.runtime.transport.address import parse_address

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
_GLOO = "int8 uint8 int32 int64 float16 bfloat16 float32 float64"
_NCCL = "int8 uint8 int32 int64 uint64 float16 bfloat16 float32 float64"


class TorchEngine(Engine):
    """A process group of torch and the device its tensors are on."""

    def __init__(
        self,
        group: Any,
        name: str,
        types: str,
        device: torch.device,
        *,
        rank: int,
        world_size: int,
        timeout: float,
    ) -> None:
        self.name = name
        super().__init__(rank, world_size, timeout)
        self._group: Any = group
        self._types = frozenset(types.split())
        self._device = device

    def _reduces(self, dtype: np.dtype) -> bool:
        return dtype.name in self._types

    def _reduce(self, flat: NDArray, op: str, patience: float) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[op]
        there = self._there(flat)
        self._wait(lambda: self._group.allreduce([there], options), patience)
        self._back(there, flat)

    def _broadcast(self, view: NDArray, root: int, patience: float) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        there = self._there(view)
        self._wait(lambda: self._group.broadcast([there], options), patience)
        self._back(there, view)

    def _gather(self, view: NDArray, out: NDArray, patience: float) -> None:
        there = self._there(view)
        every = [torch.empty_like(there) for _ in range(self.world_size)]
        self._wait(lambda: self._group.allgather([every], [there]), patience)
        for row, tensor in zip(out, every, strict=True):
            row[:] = tensor.cpu().numpy()

    def _swap(
        self, view: NDArray, sizes: Sizes, out: NDArray, theirs: Sizes, patience: float
    ) -> None:
        options = dist.AllToAllOptions()
        given, taken = self._there(view), torch.empty(out.size, dtype=torch.uint8)
        taken = taken.to(self._device)
        split = list(theirs), list(sizes)
        self._wait(
            lambda: self._group.alltoall_base(taken, given, *split, options), patience
        )
        out[:] = taken.cpu().numpy()

    def _send(self, view: NDArray, dst: int, tag: int, patience: float) -> None:
        there = self._there(view)
        self._wait(lambda: self._group.send([there], dst, tag), patience)

    def _recv(self, view: NDArray, src: int, tag: int, patience: float) -> None:
        there = self._there(view)
        self._wait(lambda: self._group.recv([there], src, tag), patience)
        self._back(there, view)

    def _barrier(self, patience: float) -> None:
        self._wait(self._group.barrier, patience)

    def _end(self) -> None:
        self._group.shutdown()
        self._group = None

    def _there(self, array: NDArray) -> torch.Tensor:
        """The array's memory, or a copy of it on the device."""
        if not array.flags.writeable:
            array = array.copy()  # torch warns of read-only memory
        return to_torch(array).to(self._device)

    def _back(self, tensor: torch.Tensor, array: NDArray) -> None:
        if self._device.type != "cpu":
            to_torch(array).copy_(tensor)

    def _wait(self, start: Any, patience: float) -> None:
        with translated((RuntimeError,), self._fault):
            start().wait(timedelta(seconds=patience))
            if self._device.type != "cpu":
                torch.cuda.synchronize(self._device)

    def _fault(self, error: Exception) -> RuntimeFault:
        told = str(error).partition("\n")[0]
        late = isinstance(error, dist.DistBackendError) or "imed out" in told
        return (Timeout if late else PeerLost)(f"{self.name}: {told}")


def gloo(place: str, *, rank: int, world_size: int, timeout: float) -> TorchEngine:
    """A member of a Gloo group; `place` is the address of the rendezvous."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout)
    devices = dist.ProcessGroupGloo
    if place.startswith("/"):
        options._devices = [devices.create_default_device()]
    else:
        own = link.own_address(place)
        options._devices = [devices.create_device(hostname=own)]
    facts = {"rank": rank, "world_size": world_size, "timeout": timeout}
    store = _store(place, **facts)
    with translated((RuntimeError,), _not_met(place)):
        group = dist.ProcessGroupGloo(store, rank, world_size, options)
    return TorchEngine(group, "gloo", _GLOO, torch.device("cpu"), **facts)


def nccl(place: str, *, rank: int, world_size: int, timeout: float) -> TorchEngine:
    """A member of an NCCL group, as `gloo`; each needs a GPU."""
    kind = getattr(dist, "ProcessGroupNCCL", None)
    if kind is None or not torch.cuda.is_available():
        raise ConfigError(
            "nccl:// needs a GPU of NVIDIA's and a torch built for it; use gloo:// or "
            "pcp's own"
        )
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    facts = {"rank": rank, "world_size": world_size, "timeout": timeout}
    store = _store(place, **facts)
    options = kind.Options()
    options._timeout = timedelta(seconds=timeout)
    with translated((RuntimeError,), _not_met(place)):
        group = kind(store, rank, world_size, options)
    return TorchEngine(group, "nccl", _NCCL, device, **facts)


def _store(place: str, *, rank: int, world_size: int, timeout: float) -> dist.Store:
    if place.startswith("/"):
        return dist.FileStore(place, world_size)
    host, port = parse_address(place)
    with translated((RuntimeError,), _not_met(place)):
        return dist.TCPStore(
            host,
            port,
            world_size,
            rank == 0,
            timedelta(seconds=timeout),
            wait_for_workers=False,
        )


def _not_met(place: str) -> Any:
    def tell(error: Exception) -> RuntimeFault:
        told = str(error).partition("\n")[0]
        return Timeout(f"the members did not meet at {place}: {told}")

    return tell
