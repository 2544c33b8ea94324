"""Large sums over sockets in drawn worlds whose members die, give up or are late.

Some members leave the sums to the compiled loop and some make them in Python. Whatever
happens: a result is the sum, the same on all members that have one; where a call raises
the caller's array is as it was; and no call waits for ever.
"""

import random
import threading
import time
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.worlds.communicators import endpoints, leave, outcome, together
from numpy.typing import NDArray

from pcp.errors import PcpError
from pcp.runtime.communicator.communicator import Communicator

CASES = 200
_TYPES = ("float32", "float64", "int32", "uint32", "int64", "uint64")


class DrawnSum(NamedTuple):
    """One call of all members, and their operands."""

    op: str
    in_place: bool
    operands: list[NDArray[Any]]

    @classmethod
    def draw(cls, chance: random.Random, members: int) -> "DrawnSum":
        """A call of at least 64 KiB a member."""
        dtype = np.dtype(chance.choice(_TYPES))
        floats = dtype.kind == "f"
        op = chance.choice(["sum", "sum", "mean" if floats else "sum", "max"])
        nbytes = (64 << 10) * members + int(chance.random() ** 2 * (600 << 10))
        count = nbytes // dtype.itemsize + chance.randint(0, 7)
        numbers = np.random.default_rng(chance.randrange(1 << 30))
        operands = [
            (100 * numbers.standard_normal(count)).astype(dtype)
            if floats
            else numbers.integers(0, 1 << 30, count).astype(dtype)
            for _ in range(members)
        ]
        return cls(op, chance.random() < 0.75, operands)

    def holds(self, result: NDArray[Any]) -> bool:
        """Whether this is the result, within the rounding of any order."""
        if self.op == "max":
            return bool((result == np.maximum.reduce(self.operands)).all())
        stacked, members = np.stack(self.operands), len(self.operands)
        if stacked.dtype.kind != "f":
            return bool((result == np.add.reduce(stacked, dtype=stacked.dtype)).all())
        want = stacked.astype(np.longdouble).sum(axis=0)
        want = want / members if self.op == "mean" else want
        most = 8 * members * np.finfo(stacked.dtype).eps * np.abs(stacked).sum(axis=0)
        return bool((np.abs(result - want) <= most + 1e-300).all())


class DrawnMember(threading.Thread):
    """A member that makes the calls in an order of its own, and waits for all."""

    def __init__(
        self,
        comm: Communicator,
        sums: list[DrawnSum],
        chance: random.Random,
        late: bool,
    ) -> None:
        super().__init__(daemon=True)
        self.comm, self.sums, self.chance, self.late = comm, sums, chance, late
        self.arrays = [one.operands[comm.rank].copy() for one in sums]
        self.results: list[Any] = [None] * len(sums)

    def run(self) -> None:
        """Start the calls, then wait for each."""
        order = list(range(len(self.sums)))
        self.chance.shuffle(order)
        started: dict[int, Any] = {}
        for index in order:
            one, short = self.sums[index], self.late and self.chance.random() < 0.3
            call = (
                self.comm.all_reduce_async
                if one.in_place
                else self.comm.all_reduced_async
            )
            timeout = self.chance.uniform(1e-3, 0.05) if short else 30.0
            started[index] = outcome(
                lambda i=index, call=call, one=one, timeout=timeout: call(
                    self.arrays[i], one.op, tag=str(i), timeout=timeout
                )
            )
            if self.chance.random() < 0.2:
                time.sleep(self.chance.random() * 0.004)
        for index, future in started.items():
            waits = isinstance(future, Future)
            result = outcome(lambda f=future: f.result(60)) if waits else future
            # At once: the caller may use the array from here on.
            if isinstance(result, Exception) or not self.sums[index].in_place:
                before = self.sums[index].operands[self.comm.rank]
                if self.arrays[index].tobytes() != before.tobytes():
                    result = AssertionError("the array of the caller has changed")
            self.results[index] = result


def ended(members: list[DrawnMember], how: str, chance: random.Random) -> None:
    """Run the members to their end; one of them ends the world before, in some way."""
    for member in members:
        member.start()
    time.sleep(chance.random() ** 2 * 0.05)
    someone = chance.choice(members).comm
    if how == "kill":
        someone._crash()
    elif how == "abort":
        someone.abort("told")
    elif how == "close":
        someone.close(timeout=0)
    for member in members:
        member.join(90)
        assert not member.is_alive(), "a call waits for ever"


def drawn_world(seed: int) -> tuple[int, int]:
    """Sums of one drawn world: how many calls had a result, and how many raised."""
    chance = random.Random(seed)
    count = chance.choice([2, 2, 3, 3, 4, 5])
    how = chance.choice(["nothing", "kill", "kill", "late", "abort", "close"])
    sums = [DrawnSum.draw(chance, count) for _ in range(chance.randint(1, 10))]
    options = {} if chance.random() < 0.6 else {"checksum": "none"}
    with endpoints(count, shared_memory=False, **options) as made:
        at = [one.address for one in made]
        comms = together(range(count), lambda rank: made[rank].form(1, at, rank, 30))
        for comm in comms:
            if chance.random() < 0.15:  # its sums are made in Python
                comm._group.compiled_loop = lambda peers: None
        members = [
            DrawnMember(comm, sums, random.Random(f"{seed} {rank}"), how == "late")
            for rank, comm in enumerate(comms)
        ]
        ended(members, how, chance)
        results = [one for member in members for one in member.results]
        good = [one for one in results if isinstance(one, np.ndarray)]
        bad = [one for one in results if not isinstance(one, np.ndarray)]
        assert all(isinstance(one, PcpError) for one in bad), bad
        assert not (bad and how == "nothing"), bad
        for index, one in enumerate(sums):
            ends = [member.results[index] for member in members]
            arrays = [end for end in ends if isinstance(end, np.ndarray)]
            assert len({array.tobytes() for array in arrays}) < 2, index
            assert all(one.holds(array) for array in arrays), (index, one.op)
        leave(comms)
    return len(good), len(bad)


@pytest.mark.slow  # 200 worlds take half a minute
def test_sums_of_drawn_worlds_are_right_or_have_not_happened() -> None:
    counts = []
    for seed in range(CASES):
        try:
            counts.append(drawn_world(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert sum(good for good, _ in counts) > 1000
    assert sum(bad for _, bad in counts) > 200
