"""What a group does with frames that no operation wants, and calls that fail."""

import numpy as np
from helpers.worlds.communicators import eventually, outcome, together, world

from pcp.errors import CollectiveAborted, RuntimeFault
from pcp.runtime.collectives import in_place_reduce
from pcp.runtime.transport.frame import Header, Kind
from pcp.runtime.transport.tcp import TcpLink


def draw(rank: int, count: int) -> np.ndarray:
    return np.random.default_rng(rank).integers(0, 1 << 30, count).astype(np.int32)


def test_data_that_comes_too_late_has_a_place_for_each_sender() -> None:
    """Two may be half here at once, and the checksum of each is verified."""
    with world("tcp", 3) as comms:
        group = comms[1]._group

        def rooms() -> list[memoryview]:
            group._table.outcomes.post((0, 4))
            late = Header(Kind.DATA, group.epoch, 0, 1, 0, 0, 100, 0)
            return [group.place(group.links[rank], late) for rank in (0, 2)]

        first, second = (np.frombuffer(r, np.uint8) for r in group.loop.ask(rooms))
        assert len(first) == len(second) == 100
        assert not np.shares_memory(first, second)


def test_who_gives_up_early_is_flooded_and_stays() -> None:
    data = [draw(rank, 1 << 20) for rank in range(3)]
    with world("tcp", 3) as comms:
        for turn in range(6):

            def gather(comm, turn=turn):
                hurried = comm.rank == 1
                seconds = 0.001 + 0.003 * turn if hurried else 10
                return comm.all_gather(data[comm.rank], timeout=seconds)

            together(comms, lambda c, call=gather: outcome(lambda: call(c)))
            assert [comm.fault for comm in comms] == [None] * 3
        for result in together(comms, lambda c: c.all_gather(data[c.rank])):
            np.testing.assert_array_equal(result, np.concatenate(data))


def test_a_call_that_cannot_start_is_given_up_by_all(monkeypatch) -> None:
    def fails(self) -> bool:
        raise MemoryError("no memory left")

    with world("memory", 2) as comms:
        large = [draw(rank, 100_000) for rank in range(2)]
        with monkeypatch.context() as patched:
            patched.setattr(in_place_reduce.InPlaceReduce, "_offer", fails)
            failed = outcome(lambda: comms[0].all_reduce(large[0].copy(), timeout=10))
        assert isinstance(failed, RuntimeFault)
        assert "did not start: no memory left" in str(failed)
        other = outcome(lambda: comms[1].all_reduce(large[1].copy(), timeout=10))
        assert isinstance(other, CollectiveAborted)
        assert "no memory left" in str(other)
        eventually(lambda: not any(comm._group.in_flight for comm in comms))
        assert [comm._group.loop.expecting for comm in comms] == [0, 0]
        for result in together(comms, lambda c: c.all_reduce(large[c.rank].copy())):
            np.testing.assert_array_equal(result, large[0] + large[1])


def test_why_a_link_is_refused_inside_a_group_is_what_the_caller_reads() -> None:
    """It was read as so many bytes of REFUSE."""
    why = "epoch 3 was not formed here in time: the other side went on without us"
    with world("tcp", 2) as comms:
        pending = comms[0].all_reduce_async(np.ones(4))
        (link,) = comms[1]._group.links.values()
        assert isinstance(link, TcpLink)
        comms[1]._group.loop.ask(lambda: link.refuse(why))
        error = outcome(lambda: pending.result(30))
        assert isinstance(error, RuntimeFault)
        assert why in str(error)
