"""Memory between members of one machine: used, refused, damaged, and gone."""

import os

import numpy as np
import pytest
from helpers.worlds.communicators import endpoints, eventually, form, outcome, together

from pcp.errors import PeerLost
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.transport import shared_memory
from pcp.runtime.transport.frame import Frame, Kind
from pcp.runtime.transport.shared_memory import SLOT_BYTES, SLOTS, SharedLink, Slots

COUNT = (3 * SLOTS * SLOT_BYTES) // 4 + 12_345
"""Elements of float32: more than all slots hold, and no multiple of a slot."""


def reduce_once(comms) -> list[np.ndarray]:
    arrays = [
        np.random.default_rng(c.rank).standard_normal(COUNT).astype("f") for c in comms
    ]
    # Named, it goes from member to member, not through the shared scratch.
    outs = together(
        comms, lambda c: c.all_reduce(arrays[c.rank].copy(), algorithm="ring")
    )
    expected = reference(arrays).tobytes()
    assert [out.tobytes() == expected for out in outs] == [True] * len(comms)
    return outs


def links(comms) -> list[SharedLink]:
    return [link for c in comms for link in c._group.links.values()]


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_large_payloads_go_through_memory(size: int) -> None:
    with endpoints(size) as made:
        comms = form(made)
        for _ in range(3):
            reduce_once(comms)
        tcp = sum(link._tcp.bytes_sent for link in links(comms))
        both = sum(comm.bytes_sent for comm in comms)
        # The first payloads of a link precede its first grant.
        assert both >= 3 * 2 * (size - 1) * 4 * COUNT
        assert tcp < both / 2
        # After that nothing but frames that say where.
        reduce_once(comms)
        assert sum(link._tcp.bytes_sent for link in links(comms)) - tcp < COUNT // 10


def test_a_peer_that_cannot_map_it_gets_everything_by_the_wire(monkeypatch) -> None:
    monkeypatch.setattr(Slots, "map", classmethod(lambda cls, offer: None))
    with endpoints(2) as made:
        comms = form(made)
        reduce_once(comms)
        assert all(link._moved == [0, 0] for link in links(comms))


def test_a_system_without_it_never_offers(monkeypatch) -> None:
    def refuse() -> None:
        raise OSError("no such call")

    monkeypatch.setattr(Slots, "create", refuse)
    with endpoints(2) as made:
        comms = form(made)
        reduce_once(comms)
        assert all(link._in is None for link in links(comms))


def test_an_offer_is_believed_only_with_its_nonce_and_seal() -> None:
    slots, offer = Slots.create()
    try:
        assert Slots.map(offer | {"nonce": "00" * 16}) is None
        assert Slots.map(offer | {"fd": 10_000}) is None
        assert Slots.map({"pid": "1", "fd": None}) is None
        plain = os.memfd_create("plain")
        try:
            os.ftruncate(plain, os.fstat(offer["fd"]).st_size)
            assert Slots.map(offer | {"fd": plain}) is None
        finally:
            os.close(plain)
        reader = Slots.map(offer)
        assert reader is not None
        slots[3][:5] = b"hello"
        assert bytes(reader[3][:5]) == b"hello"
        with pytest.raises(TypeError):
            reader[3][:5] = b"write"
        with pytest.raises(PermissionError):
            os.ftruncate(offer["fd"], 4096)
        reader.close()
    finally:
        slots.close()


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.GRANT, step=0),
        Frame(Kind.GRANT, step=SLOTS),
        Frame(Kind.SHARED, payload=shared_memory._PLACE.pack(SLOTS, SLOT_BYTES)),
        Frame(Kind.SHARED, payload=shared_memory._PLACE.pack(0, SLOT_BYTES + 1)),
        Frame(Kind.SHARED, payload=shared_memory._PLACE.pack(0, 1)),
        Frame(Kind.SHARED, payload=b"short"),
        Frame(Kind.SHARE, payload=b"{}"),
        Frame(Kind.SHARE, payload=bytes(2000)),
    ],
)
def test_nonsense_about_memory_loses_its_sender(frame: Frame) -> None:
    with endpoints(2) as made:
        comms = form(made)
        reduce_once(comms)  # memory is mapped both ways, all slots are granted
        link = comms[1]._group.links[0]
        assert isinstance(link, SharedLink)
        made[1].loop.ask(lambda: link._tcp.send(frame))
        error = outcome(lambda: comms[0].barrier(timeout=5))
        assert isinstance(error, PeerLost)
        assert error.peer == 1


def test_abandoned_operations_give_their_slots_back() -> None:
    """A member that never joins leaves data queued; the link serves on."""
    with endpoints(2) as made:
        comms = form(made)
        reduce_once(comms)
        late = comms[0].all_reduce_async(np.ones(COUNT, "f"), tag="late", timeout=0.2)
        assert outcome(late.result) is not None
        outcome(lambda: comms[1].all_reduce(np.ones(COUNT, "f"), tag="late"))
        for _ in range(3):
            reduce_once(comms)


def test_nothing_is_left_behind() -> None:
    def held() -> int:
        names = (
            os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
        )
        return sum("memfd:pcp" in name for name in names)

    before = held()
    with endpoints(3) as made:
        comms = form(made)
        reduce_once(comms)
        assert held() > before
        for comm in comms:
            comm.close()
        eventually(lambda: held() == before)
