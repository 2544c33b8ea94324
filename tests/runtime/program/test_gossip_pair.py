"""Gossip pairs: perfect matchings that all members draw alike, and their sums."""

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp.errors import RuntimeFault, UsageError
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.program.gossip_pair import Pair, partners


@given(st.integers(1, 60), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_a_matching_is_perfect_but_for_one(members: int, seed: int, turn: int) -> None:
    found = partners(members, seed, turn)
    assert found == partners(members, seed, turn)
    alone = [rank for rank, other in enumerate(found) if other is None]
    assert len(alone) == members % 2
    for rank, other in enumerate(found):
        if other is not None:
            assert found[other] == rank
            assert other != rank


def test_all_pairs_are_drawn_alike_often() -> None:
    """Each of the 6 pairs of 4 in a third of 3000 rounds, within 5 deviations."""
    rounds = 3000
    count = Counter(
        (a, b)
        for turn in range(rounds)
        for a, b in enumerate(partners(4, 7, turn))
        if b is not None and a < b
    )
    assert len(count) == 6
    deviation = (rounds * (1 / 3) * (2 / 3)) ** 0.5
    assert all(abs(n - rounds / 3) < 5 * deviation for n in count.values())


def _each(communicators: list[Any], work: Any) -> list[Any]:
    results: list[Any] = [None] * len(communicators)

    def run(rank: int) -> None:
        try:
            results[rank] = work(communicators[rank])
        except RuntimeFault as error:
            results[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank,)) for rank in range(len(communicators))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return results


def test_a_pair_sums_what_its_two_members_have() -> None:
    group = Communicator.in_process(5, timeout=20)
    start = np.arange(40_000, dtype=np.float32)  # larger than what goes unasked
    found_partners = partners(5, 3, 11)

    def work(comm: Communicator) -> list[np.ndarray]:
        pair = Pair(comm, found_partners[comm.rank], 11)
        waits = [
            pair.all_reduced_async(start + 10 * comm.rank + k, tag="x")
            for k in range(3)
        ]
        assert pair.world_size == (1 if found_partners[comm.rank] is None else 2)
        return [wait.result(20) for wait in waits]

    results = _each(group, work)
    for rank, other in enumerate(found_partners):
        for k, found in enumerate(results[rank]):
            own = start + 10 * rank + k
            wanted = own if other is None else own + (start + 10 * other + k)
            np.testing.assert_array_equal(found, wanted)
    for comm in group:
        comm.close()


def test_members_may_begin_sums_of_two_tags_in_another_order() -> None:
    """IREE calls imports that do not depend on each other in any order."""
    group = Communicator.in_process(2, timeout=20)

    def work(comm: Communicator) -> list[float]:
        pair = Pair(comm, 1 - comm.rank, 0)
        waits = {
            tag: pair.all_reduced_async(np.full(2, number + comm.rank, "f4"), tag=tag)
            for tag, number in sorted({"x": 1, "y": 10}.items(), reverse=comm.rank > 0)
        }
        return [float(waits[tag].result(30)[0]) for tag in ("x", "y")]

    assert _each(group, work) == [[3.0, 21.0]] * 2
    for comm in group:
        comm.close()


def test_a_lost_partner_is_an_error_and_not_a_wait() -> None:
    group = Communicator.in_process(2, timeout=20)
    group[1].close()
    with pytest.raises(RuntimeFault):
        Pair(group[0], 1, 0).all_reduced_async(np.ones(100_000, np.float32)).result(20)
    group[0].close()


def test_a_pair_does_sums_only() -> None:
    group = Communicator.in_process(2)
    with pytest.raises(UsageError, match="sums, not max"):
        Pair(group[0], 1, 0).all_reduced_async(np.ones(2), "max")
    for comm in group:
        comm.close()
