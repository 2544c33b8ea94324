"""Memory that processes map together: who may, how much, and when it is gone."""

import os

import numpy as np
import pytest

from pcp.runtime.memory.shared_segment import Segment

SIZE = 300_000


def held() -> int:
    """Descriptors of such memory in this process."""
    folder = "/proc/self/fd"
    names = (os.path.realpath(f"{folder}/{n}") for n in os.listdir(folder))
    return sum("memfd:pcp" in name for name in names)


@pytest.mark.parametrize("ready", [False, True])
def test_what_one_writes_the_other_reads(ready: bool) -> None:
    segment = Segment.create(SIZE, ready=ready)
    reader = Segment.map(segment.offer, SIZE, SIZE)
    assert reader is not None
    values = np.arange(1000, dtype=np.float64)
    segment.flat(1000, values.dtype)[:] = values
    np.testing.assert_array_equal(reader.flat(1000, values.dtype), values)
    with pytest.raises(ValueError, match="read-only"):
        reader.octets[0] = 1


def test_an_offer_is_believed_only_when_all_of_it_is_right() -> None:
    segment = Segment.create(SIZE)
    offer = segment.offer
    plain = os.memfd_create("plain")
    try:
        os.ftruncate(plain, os.fstat(offer["fd"]).st_size)
        for wrong in (
            {"nonce": "00" * 16},
            {"nonce": None},
            {"fd": 10_000},
            {"fd": True},
            {"pid": str(offer["pid"])},
            {"fd": plain},
        ):
            assert Segment.map(offer | wrong, 1, 1 << 40) is None
        assert Segment.map(offer, SIZE + 1, 1 << 40) is None
        assert Segment.map(offer, 1, SIZE - 1) is None
    finally:
        os.close(plain)
    with pytest.raises(PermissionError):
        os.ftruncate(offer["fd"], 4096)


def test_a_reader_keeps_what_a_closed_owner_wrote_and_descriptors_go() -> None:
    before = held()
    segment = Segment.create(SIZE, ready=True)
    segment.octets[:5] = list(b"hello")
    reader = Segment.map(segment.offer, SIZE, SIZE)
    assert reader is not None
    segment.close()
    segment.close()
    assert bytes(reader.octets[:5]) == b"hello"
    view = reader.octets[:5]
    reader.close()
    assert bytes(view) == b"hello", "a view keeps its memory"
    del view, reader, segment
    assert held() == before
