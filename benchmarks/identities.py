"""What identities cost, beside TLS without them, and how soon one is out.

    python benchmarks/identities.py

Two members sum 16 MiB over TLS on this machine, with certificates of a plain authority
and with those of an issuer of identities, in turns; then a connection is made by each;
then a worker of a run is revoked while rounds of about 90 ms go on, several times, and
the time taken until its connection has ended.
"""

import argparse
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.models.bigram_numpy import BigramTrainer
from helpers.worlds.certificates import member_tls
from helpers.worlds.communicators import together
from helpers.worlds.identities import member
from helpers.worlds.training_runs import Background, experiment, start_shepherd

from pcp.errors import PcpError
from pcp.runtime import Communicator, Endpoint
from pcp.runtime.group.rendezvous import Rendezvous
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.tls import Tls
from pcp.training.worker.worker import Identity, Worker

SUM_BYTES = 16 << 20


def main() -> None:
    """Print the three comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--revoked", type=int, default=5)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = [member_tls(), member_tls()]
        known = [member(folder, "worker", name=who)[0] for who in "ab"]
        rates: dict[str, list[float]] = {"plain": [], "identities": []}
        dials: dict[str, list[float]] = {"plain": [], "identities": []}
        for _ in range(flags.turns):
            for which, tls in (("plain", plain), ("identities", known)):
                began = time.perf_counter()
                with_members(tls, lambda comms: None)
                dials[which].append(time.perf_counter() - began)
                rates[which].append(with_members(tls, summed))
        fast = {which: statistics.median(found) for which, found in rates.items()}
        print(
            f"sum of 16 MiB: {fast['plain']:.0f} MB/s with TLS, "
            f"{fast['identities']:.0f} with identities "
            f"({fast['identities'] / fast['plain']:.2f})"
        )
        made = {which: 1e3 * statistics.median(found) for which, found in dials.items()}
        print(
            f"a group of two forms in {made['plain']:.1f} ms with TLS, in "
            f"{made['identities']:.1f} with identities"
        )
        times = sorted(revoked(folder / str(i)) for i in range(flags.revoked))
        print(
            f"revoked, a worker is out in {statistics.median(times):.2f} s, at most "
            f"{times[-1]:.2f} s ({len(times)} times)"
        )


def with_members(tls: Sequence[Tls], work: Callable):
    """What `work` returns of two connected members."""
    meeting = Rendezvous.listen("127.0.0.1:0", tls=tls[0])
    places = [meeting, meeting.address]
    comms = together(
        range(2),
        lambda r: Communicator.connect(places[r], rank=r, world_size=2, tls=tls[r]),
    )
    try:
        return work(comms)
    finally:
        together(comms, lambda comm: comm.close())


def summed(comms: Sequence[Communicator]) -> float:
    """MB/s of each member, in one direction, over eight sums."""
    arrays = [np.ones(SUM_BYTES // 4, np.float32) for _ in comms]

    def several(rank: int) -> None:
        for _ in range(8):
            comms[rank].all_reduce(arrays[rank], "mean")

    together(range(2), lambda rank: comms[rank].all_reduce(arrays[rank], "mean"))
    began = time.perf_counter()
    together(range(2), several)
    return 8 * SUM_BYTES / 1e6 / (time.perf_counter() - began)


def revoked(folder: Path) -> float:
    """Seconds from the list's new line to the end of the worker that it names."""
    folder.mkdir()
    own, _ = member(folder, "shepherd")
    exp = experiment(folder, outer_loop_steps=10**6, max_epochs=10**6)
    shepherd, watcher, _ = start_shepherd(
        exp, workers=2, protection=Protection(tls=own)
    )
    ended = threading.Event()
    good, _ = member(folder, "worker", name="good")
    bad, number = member(folder, "worker", name="bad")
    crew = start(shepherd.port, "good", Protection(tls=good), ended)
    start(shepherd.port, "bad", Protection(tls=bad), ended)
    watcher.wait_for_round(3)
    began = time.monotonic()
    with open(folder / "revoked", "a") as file:
        file.write(f"{number}\n")
    assert ended.wait(30), "it is still there"
    took = time.monotonic() - began
    shepherd.interrupt(signal.SIGTERM)
    with suppress(PcpError):
        crew.finish(30)
    return took


def start(
    port: int, name: str, protected: Protection, ended: threading.Event
) -> Background:
    """A worker in a thread; `ended` is set when one is not let in any more."""
    worker = Worker(
        Identity(name=name, host="127.0.0.1", port=port),
        Endpoint.listen("127.0.0.1:0", **protected.options),
        lambda content: BigramTrainer(0.02),
        lambda text: None,
        protection=protected,
    )

    def work() -> None:
        try:
            worker.run()
        except PcpError as error:
            if "revoked" in str(error):
                ended.set()

    return Background(work)


if __name__ == "__main__":
    main()
