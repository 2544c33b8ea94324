"""The order of samples, which all processes of a run compute alike.

Samples are numbered through all epochs: *position* p is sample `p % n` of epoch `p //
n`, where n is the number of samples of an epoch, cut to whole batches (the up to B-1
samples left over differ from epoch to epoch when sampling is random). The seed alone
decides which sample of the dataset a position means; so a lease is a range of
positions, and says all that a worker needs.

The permutation is a Feistel network with cycle walking: any element is computed
on its own, in any order, without a table, and with no dependence on a library's
random generator.
"""

from typing import Protocol

import numpy as np

from pcp.errors import counted
from pcp.training.data.dataset import Source

_ROUNDS = 4  # of the Feistel network: enough for a pseudorandom permutation
_EPOCH, _HELD_OUT = 2, 4  # purposes of keys; 1 and 3 are those of windows


class DataOrder(Protocol):
    """The samples of a dataset at the positions of a run."""

    samples: int
    """The samples of one epoch, in whole batches."""
    held_out: int
    """Samples for validation, in whole batches."""

    def indices(self, positions: np.ndarray) -> np.ndarray:
        """The sample at each position."""
        ...

    def validation(self, numbers: np.ndarray) -> np.ndarray:
        """The held-out samples of these numbers, from 0."""
        ...


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele et al. 2014): 64 bits to 64 mixed bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def key(*parts: int) -> np.ndarray:
    """A key of 64 bits from these numbers, in an array of one."""
    made = np.zeros(1, np.uint64)
    for part in parts:
        made = _mix(made + np.uint64(part) + np.uint64(0x9E3779B97F4A7C15))
    return made


def permute(index: np.ndarray, count: int, *named: int) -> np.ndarray:
    """The image of each index under the permutation of `range(count)` with this key."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    keys = [key(*named, number) for number in range(_ROUNDS)]

    def once(values: np.ndarray) -> np.ndarray:
        left, right = values >> shift, values & mask
        for round_key in keys:
            left, right = right, left ^ (_mix(right + round_key) & mask)
        return left << shift | right

    result = once(np.asarray(index, np.uint64))
    # The network permutes a power of four: apply it again until inside the range.
    while (outside := result >= count).any():
        result[outside] = once(result[outside])
    return result.astype(np.int64)


class SampleOrder:
    """Samples one by one: permuted anew in each epoch, or in the dataset's order.

    The last samples of the dataset are held out, or with a random order as many of a
    permutation: so both parts of a dataset that is sorted by classes have all classes.
    """

    def __init__(
        self, count: int, batch: int, fraction: float, seed: int, random: bool
    ) -> None:
        self._count, self._seed, self._random = count, seed, random
        self._trained = count - int(count * fraction)
        self.samples = self._trained // batch * batch
        self.held_out = (count - self._trained) // batch * batch

    def indices(self, positions: np.ndarray) -> np.ndarray:
        """The sample at each position."""
        positions = np.asarray(positions, np.int64)
        if not self._random:
            return positions % self.samples
        found = np.empty_like(positions)
        epochs = positions // self.samples
        for epoch in np.unique(epochs):
            here = epochs == epoch
            at = positions[here] % self.samples
            found[here] = permute(at, self._trained, self._seed, int(epoch), _EPOCH)
        return self._split(found)

    def validation(self, numbers: np.ndarray) -> np.ndarray:
        """The held-out samples of these numbers, from 0."""
        return self._split(self._trained + np.asarray(numbers, np.int64))

    def _split(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers, of which the first are for training, as samples of the dataset."""
        if not self._random:
            return numbers
        return permute(numbers, self._count, self._seed, 0, _HELD_OUT)


def sample_order(source: Source, count: int) -> SampleOrder:
    """The order of a dataset's samples; `ConfigError` where they are not one batch."""
    if not count:
        raise source.refuse("is empty")
    given, batch = source.experiment, source.batch
    random = given.sampling == "random"
    order = SampleOrder(count, batch, given.validation_fraction, given.seed, random)
    if not order.samples:
        raise source.refuse(
            f"has {counted(count, 'sample')}: those for training are less than one "
            f"batch of {batch}"
        )
    return order
