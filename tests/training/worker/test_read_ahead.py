"""Batches read in the background: in order, so many at once, errors in their place."""

import threading

import numpy as np
import pytest
from helpers.worlds.communicators import eventually

from pcp.errors import ConfigError
from pcp.training.data.dataset import Batch
from pcp.training.worker.read_ahead import ReadAhead

POSITIONS = [np.array([n]) for n in range(9)]


class Reader:
    """Counts what it read; waits for `gate` where there is one."""

    def __init__(self, bad: int = -1) -> None:
        self.read: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self._bad = bad

    def __call__(self, positions: np.ndarray) -> Batch:
        self.gate.wait(10)
        number = int(positions[0])
        self.read.append(number)
        if number == self._bad:
            raise ConfigError(f"sample {number}")
        return Batch({"x": positions}, positions)


@pytest.fixture
def made():
    """Makes readers ahead, and closes them."""
    all_: list[ReadAhead] = []

    def make(reader: Reader, ahead: int = 3, readers: int = 1) -> ReadAhead:
        all_.append(ReadAhead(reader, ahead=ahead, readers=readers))
        return all_[-1]

    yield make
    for each in all_:
        each.close()


def _numbers(batches: ReadAhead, count: int) -> list[int]:
    return [int(batches.take().positions[0]) for _ in range(count)]


@pytest.mark.parametrize("readers", [1, 4])
def test_batches_come_in_their_order(made, readers):
    batches = made(Reader(), readers=readers)
    batches.begin(POSITIONS)
    assert _numbers(batches, 9) == list(range(9))
    with pytest.raises(IndexError):
        batches.take()


def test_only_so_many_are_read_ahead(made):
    reader = Reader()
    batches = made(reader, ahead=2)
    batches.begin(POSITIONS)
    eventually(lambda: reader.read == [0, 1], 10)
    assert _numbers(batches, 1) == [0]
    eventually(lambda: reader.read == [0, 1, 2], 10)


def test_another_list_takes_the_place_of_the_first(made):
    reader = Reader()
    reader.gate.clear()
    batches = made(reader)
    batches.begin(POSITIONS)
    batches.begin(POSITIONS[5:])
    reader.gate.set()
    assert _numbers(batches, 4) == [5, 6, 7, 8]
    assert set(reader.read) <= {0, 5, 6, 7, 8}


def test_an_error_is_raised_where_its_batch_is_taken(made):
    batches = made(Reader(bad=2))
    batches.begin(POSITIONS)
    assert _numbers(batches, 2) == [0, 1]
    with pytest.raises(ConfigError, match="sample 2"):
        batches.take()


def test_time_is_counted_while_a_batch_is_not_there(made):
    reader = Reader()
    reader.gate.clear()
    batches = made(reader)
    batches.begin(POSITIONS)
    threading.Timer(0.05, reader.gate.set).start()
    _numbers(batches, 1)
    assert batches.waited > 0.01
    batches.begin(POSITIONS)
    assert batches.waited == 0
