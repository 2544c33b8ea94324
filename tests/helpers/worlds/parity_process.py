"""A member in its own process that runs a bundle's @main; one may be perturbed.

Run with a bundle, a rank, the rendezvous' address ("" for rank 0, which says it) and
the rank that brings other bits. Says what came of it.
"""

import sys

import numpy as np

from pcp.errors import RuntimeFault
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.rendezvous import Rendezvous
from pcp.runtime.program.executor import Program

MEMBERS = 2


def tensors(perturbed: bool) -> tuple[np.ndarray, np.ndarray]:
    """A weight and a bias; the perturbed weight differs in one lowest bit."""
    random = np.random.default_rng(0)
    w = random.normal(size=(40, 300)).astype(np.float32)
    if perturbed:
        w[7, 11] = np.nextafter(w[7, 11], np.float32(9))
    return w, random.normal(size=5).astype(np.float32)


def main() -> None:
    """As the module says."""
    bundle, text, address, odd = sys.argv[1:]
    rank = int(text)
    meeting: Rendezvous | str = address
    if not rank:
        meeting = Rendezvous.listen("127.0.0.1:0")
        print(f"meeting {meeting.address}", flush=True)
    given = tensors(rank == int(odd))
    with Communicator.connect(
        meeting, rank=rank, world_size=MEMBERS, timeout=20
    ) as comm:
        with Program.load(bundle, device="local-sync", communicator=comm) as program:
            try:
                words, w, b = program["main"](*given)
            except RuntimeFault as fault:
                print(f"{type(fault).__name__}: {fault}", flush=True)
                return
            print("words", *words.tolist(), flush=True)
            own = [w.tobytes() == given[0].tobytes(), b.tobytes() == given[1].tobytes()]
            print("own", *own, flush=True)


if __name__ == "__main__":
    main()
