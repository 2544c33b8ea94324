"""A member for `churn`: reduces, checks every sum and every input, and rejoins.

Run with one JSON argument (see `Job`). Works through operations 0, 1, 2, ..., some
at a time under tags of their own. What an operation is follows from its number, what
a member brings to it from its name: whoever knows the group's names knows the sum.
Afterwards it makes rounds of operations that count nowhere until it is told to end.

Says a line of JSON for each thing that happens ("begin", "done", "aborted", ...);
"wrong" is what must not happen. Reads "cut one", "cut all" and "finish".
"""

import faulthandler
import hashlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pcp.errors import CollectiveAborted, PeerLost, ProtocolError, RuntimeFault
from pcp.runtime.communicator.communicator import Communicator, ElasticCommunicator
from pcp.runtime.communicator.param_sync import SyncReport, digest
from pcp.runtime.memory.shared_arrays import shared_empty

SIZES = (1, 500, 9_000, 60_000, 250_000)
"""Elements: with the first frames, along the ring over a connection, and in memory."""
TYPES = (np.int64, np.float64, np.float32, np.int32)
PERIOD = 61
EXPECTED = ("join anew", "cannot reach")
"""Why a coordinator may refuse who was stopped or cut off."""
WEIGHTS = 150_000
KEPT = 6
"""Results that are looked at again: nobody may write to them any more."""


@dataclass(frozen=True)
class Job:
    """What all members of a run are told."""

    at: str
    """The coordinator's address."""
    name: str
    operations: int
    window: int
    """Operations under way at once."""
    silence: float
    limit: float
    """Seconds after which an operation or a renewal counts as hung."""
    shared_memory: bool = True


def part_of(name: str, number: int) -> int:
    """What tells a member's array for an operation from all others; 17 bits."""
    digested = hashlib.blake2b(f"{name}/{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digested, "big") >> 15


def operand(names: Sequence[str], number: int) -> NDArray:
    """The sum of these members' arrays for an operation; exact in every type."""
    rng = random.Random(number)
    size, dtype = rng.choice(SIZES), rng.choice(TYPES)
    pattern = np.arange(size) % PERIOD
    whole = len(names) * pattern + sum(part_of(name, number) for name in names)
    return whole.astype(dtype)


def argument(name: str, number: int) -> NDArray:
    """What a member brings; to every third operation, in memory that others map."""
    array = operand([name], number)
    if number % 3:
        return array
    shared = shared_empty(array.shape, array.dtype)
    shared[...] = array
    return shared


def cut_connections(which: str) -> int:
    """Shut connections of this process at the kernel; how many there were."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            kind = os.readlink(f"/proc/self/fd/{entry}")
            if not kind.startswith("socket:"):
                continue
            sock = socket.socket(fileno=os.dup(int(entry)))
        except OSError:
            continue  # closed meanwhile
        try:
            sock.getpeername()
            found.append(sock)
        except OSError:
            sock.close()  # a listener
    for sock in [random.choice(found)] if found and which == "one" else found:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # its peer was faster
    for sock in found:
        sock.close()
    return len(found)


def target(descriptor: str) -> str:
    """What a descriptor of this process is of."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""  # closed meanwhile


def footprint() -> dict[str, int]:
    """What a member must not use more and more of."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    open_files = [target(entry) for entry in os.listdir("/proc/self/fd")]
    shared = sum(file.startswith("/memfd:") for file in open_files)
    return {
        "fds": len(open_files) - shared,
        "shared": shared,
        "threads": len(os.listdir("/proc/self/task")),
        "mib": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
    }


@dataclass
class State:
    """What all members of an epoch must agree on, to the bit."""

    operations: int
    arrays: dict[str, NDArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrays = {
            "done": np.zeros(self.operations, np.uint8),
            "sums": np.zeros((self.operations, 16), np.uint8),
            "weights": np.zeros(WEIGHTS, np.int64),
            "epoch": np.zeros(1, np.int64),
        }

    @property
    def epoch(self) -> int:
        """The epoch in which it was compared last; 0 before the first time."""
        return int(self.arrays["epoch"][0])

    @property
    def todo(self) -> list[int]:
        """Operations not done yet."""
        return np.flatnonzero(self.arrays["done"] == 0).tolist()

    def apply(self, number: int, result: NDArray) -> None:
        """Remember an operation's result."""
        self.arrays["done"][number] = 1
        self.arrays["sums"][number] = np.frombuffer(digest(result), np.uint8)
        size = min(result.size, WEIGHTS)
        self.arrays["weights"][:size] += result[:size].astype(np.int64)


class Synced(Protocol):
    """What an agreement asks of an `ElasticCommunicator`."""

    @property
    def epoch(self) -> int:
        """Of the group of now."""
        ...

    def param_sync(
        self,
        tensors: Mapping[str, NDArray],
        *,
        revision: int,
        source: int | str,
        timeout: float,
    ) -> SyncReport:
        """Make them the same on all members."""
        ...


class Member:
    """The program of one member under one name."""

    def __init__(
        self, job: Job, name: str, state: State, finish: threading.Event
    ) -> None:
        self.job, self.name, self.state = job, name, state
        self.finish = finish
        self.compared = False
        """Whether this life has agreed with a group; what it brings is older."""
        self.kept: deque[tuple[int, Sequence[str], NDArray]] = deque(maxlen=KEPT)

    def work(self, comm: ElasticCommunicator) -> None:
        """Until it is told to end and all others are too."""
        while comm.retry(self.window, timeout=self.job.limit):
            pass
        say("end", total={k: digest(a).hex() for k, a in self.state.arrays.items()})

    def window(self, comm: ElasticCommunicator) -> bool:
        """Some operations at once; False when it is time to end."""
        comm.update_membership(timeout=self.job.limit)
        if comm.epoch != self.state.epoch:
            self.agree(comm)
        first = self.state.todo[: self.job.window]
        counts = bool(first)
        beyond = range(self.job.operations, self.job.operations + self.job.window)
        numbers = first or list(beyond)
        say(
            "begin",
            ops=numbers,
            epoch=comm.epoch,
            names=comm.names,
            counts=counts,
            **footprint(),
        )
        self.reduce(comm, numbers, counts)
        told = np.array([self.finish.is_set()], np.uint8)
        asked = comm.all_reduce(told, "min", timeout=self.job.limit)
        return counts or not asked[0]

    def agree(self, comm: Synced) -> None:
        """A newcomer gets the state; who was in the last group has the same as all.

        A member that was stopped while others went on has not, and knows an older
        epoch. One that joins anew was taken for dead: it may have been so in the very
        epoch that the others come from, and what they did there without it is theirs.
        """
        revision = int(self.state.arrays["done"].sum())
        report = comm.param_sync(
            self.state.arrays,
            revision=revision,
            source="elected",
            timeout=self.job.limit,
        )
        if self.compared and report.updated and "epoch" not in report.updated:
            wrong(f"in epoch {comm.epoch} it had other {report.updated}")
        self.state.arrays["epoch"][0] = comm.epoch
        self.compared = True
        say("agreed", epoch=comm.epoch, source=report.source)

    def reduce(self, comm: ElasticCommunicator, numbers: list[int], counts: bool):
        """These operations, all at once; raises the first fault of them."""
        names, epoch = comm.names, comm.epoch
        arrays = [argument(self.name, number) for number in numbers]
        pending = [
            (comm.all_reduced_async if number % 2 else comm.all_reduce_async)(
                array, tag=f"slot {number % self.job.window}", timeout=self.job.limit
            )
            for number, array in zip(numbers, arrays, strict=True)
        ]
        faults = []
        for number, array, future in zip(numbers, arrays, pending, strict=True):
            try:
                result = future.result()
            except RuntimeFault as fault:
                faults.append(fault)
                if not np.array_equal(array, operand([self.name], number)):
                    wrong(f"operation {number} was aborted and changed its input")
                say("aborted", op=number, epoch=epoch, why=str(fault)[:120])
                continue
            if not np.array_equal(result, operand(names, number)):
                wrong(f"operation {number} gave another sum than that of {names}")
            if number % 2 and not np.array_equal(array, operand([self.name], number)):
                wrong(f"operation {number} changed its input")
            self.kept.append((number, names, result))
            if counts:
                self.state.apply(number, result)
                say("done", op=number, epoch=epoch, digest=digest(result).hex())
        for number, members, result in self.kept:
            if not np.array_equal(result, operand(members, number)):
                wrong(f"the result of operation {number} has changed since")
        if faults:
            raise faults[0]


def say(what: str, **facts: object) -> None:
    """Tell the injector."""
    sys.stdout.write(json.dumps({"what": what, **facts}) + "\n")
    sys.stdout.flush()


def wrong(why: str) -> None:
    """Tell the injector of what must not happen, and end."""
    say("wrong", why=why)
    os._exit(2)


def obey(finish: threading.Event) -> None:
    """Do what the injector says."""
    for line in sys.stdin:
        command = line.split()
        if command[0] == "cut":
            say("cut", connections=cut_connections(command[1]))
        elif command[0] == "finish":
            finish.set()
    os._exit(3)  # the injector is gone


def main() -> None:
    """Join, work; when it was taken for dead, join anew under another name."""
    faulthandler.register(signal.SIGUSR1)
    job = Job(**json.loads(sys.argv[1]))
    finish = threading.Event()
    threading.Thread(target=obey, args=(finish,), daemon=True).start()
    # Who was taken for dead comes with what it has: nobody else may have as much.
    state = State(job.operations)
    for life in range(1000):
        name = f"{job.name}.{life}"
        try:
            comm = Communicator.join(
                job.at,
                name=name,
                timeout=job.limit,
                silence=job.silence,
                heartbeat=0.1,
                shared_memory=job.shared_memory,
            )
            with comm:
                say("joined", name=name, epoch=comm.epoch)
                Member(job, name, state, finish).work(comm)
            return
        except ProtocolError as error:
            if not any(reason in str(error) for reason in EXPECTED):
                wrong(repr(error))
            say("expelled", name=name, why=str(error))
        except (PeerLost, CollectiveAborted) as error:
            # Stopped for so long that the time for its retry was over too.
            say("expelled", name=name, why=repr(error))
        except RuntimeFault as error:
            wrong(repr(error))
        time.sleep(0.05)


if __name__ == "__main__":
    main()
