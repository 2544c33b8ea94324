"""PCCL's all-reduce, for the benchmarks that compare with it.

Needs `pypccl`, of which there are wheels for CPython 3.12 on a C library from 2.38
on (they load libcuda too), so the benchmark runs in such an environment.
"""

import atexit
import faulthandler
import time
from collections.abc import Callable

import numpy as np

Reduce = Callable[[np.ndarray], None]
SETUP_S = 60


def pccl(
    address: str, rank: int, world: int, connections: int = 1, *, int8: bool = False
) -> Reduce:
    """What sums a float32 array in place; rank 0's process has the master at `address`.

    With more connections than one to each neighbour the array goes as that many
    operations under way together, which is how PCCL uses them; with `int8` as eight
    bits an element. PCCL waits for peers without a deadline: a group that is not
    complete after a minute ends the process.
    """
    try:
        import pccl as lib  # pyright: ignore[reportMissingImports]
    except (ImportError, OSError) as error:
        needs = "it needs pypccl, CPython 3.12, glibc 2.38 and libcuda"
        raise SystemExit(f"PCCL cannot be loaded ({error}): {needs}") from error
    if rank == 0:
        master = lib.MasterNode(address)
        master.run()
        atexit.register(master.interrupt)
    faulthandler.dump_traceback_later(SETUP_S, exit=True)
    comm = lib.Communicator(address, p2p_connection_pool_size=connections)
    comm.connect(n_attempts=SETUP_S)
    while comm.get_attribute(lib.Attribute.GLOBAL_WORLD_SIZE) < world:
        if comm.are_peers_pending():
            comm.update_topology()
        time.sleep(0.01)
    faulthandler.cancel_dump_traceback_later()
    operand = lib.ReduceOperandDescriptor(lib.DataType.FLOAT)
    kinds = lib.QuantizationAlgorithm
    wire = (
        lib.QuantizationOptions(lib.DataType.UINT8, kinds.ZERO_POINT_SCALE)
        if int8
        else lib.QuantizationOptions(lib.DataType.FLOAT, kinds.NONE)
    )

    def reduce(array: np.ndarray) -> None:
        parts = np.array_split(array, connections)
        done = comm.all_reduce_multiple_with_retry(
            [
                lib.ReduceOpDescriptor.from_numpy(
                    part,
                    part,
                    lib.ReduceDescriptor(
                        part.size, lib.ReduceOp.SUM, tag, operand, wire
                    ),
                )
                for tag, part in enumerate(parts)
            ],
            max_in_flight=connections,
        )
        if done.local_world_size != world:
            raise SystemExit(f"PCCL summed {done.local_world_size} of {world} peers")

    return reduce
