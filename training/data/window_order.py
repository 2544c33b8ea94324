"""The order of windows of tokens: T apart, shifted and permuted in each epoch.

A *sample* is a window of T+1 consecutive tokens: T inputs and, shifted by one,
T targets. Windows start T tokens apart, so inside a chunk every token is the
target of exactly one sample of an epoch. With `random` sampling each epoch
shifts all windows by another offset below T and visits them in another
permutation; with `fifo` they come in the order of the file.
"""

from typing import Any

import numpy as np

from pcp import outside
from pcp.errors import ConfigError
from pcp.training.config.experiment import Experiment
from pcp.training.data.order import key, permute


class WindowOrder:
    """Windows of `block` + 1 tokens among `tokens`, by their first token.

    `token_bytes` is the width of a token in the file, 0 where it is not fixed.
    """

    def __init__(
        self,
        experiment: Experiment,
        tokens: int,
        token_bytes: int,
        batch: int,
        block: int,
    ) -> None:
        self._experiment = experiment
        self._batch, self._block = batch, block
        self._random = experiment.sampling == "random"
        self._seed = experiment.seed
        self._shuffle = experiment.chunk_shuffle and not self._random
        self._tokens, self._token_bytes = tokens, token_bytes
        self.trained = tokens - int(tokens * experiment.validation_fraction)
        """The tokens of the training part, which comes first."""
        self._chunks = self._cut()
        self._firsts = np.cumsum([0, *(self._windows(n) for _, n in self._chunks)])
        self.samples = int(self._firsts[-1]) // batch * batch
        """The samples of one epoch, in whole batches."""
        held_out = max(0, tokens - self.trained - 1) // block
        self.held_out = held_out // batch * batch

    def indices(self, positions: np.ndarray) -> np.ndarray:
        """The first token of the sample at each position."""
        positions = np.asarray(positions, np.int64)
        starts = np.empty_like(positions)
        epochs = positions // self.samples
        for epoch in np.unique(epochs):
            here = epochs == epoch
            starts[here] = self._starts(positions[here] % self.samples, int(epoch))
        return starts

    def validation(self, numbers: np.ndarray) -> np.ndarray:
        """The first tokens of held-out windows, which follow each other in the text."""
        return self.trained + self._block * np.asarray(numbers, np.int64)

    def _starts(self, samples: np.ndarray, epoch: int) -> np.ndarray:
        total = int(self._firsts[-1])
        offset = 0
        if self._random:
            offset = int(key(self._seed, epoch, 1)[0] % np.uint64(self._block))
            samples = permute(samples, total, self._seed, epoch, 2)
        order = np.arange(len(self._chunks))
        firsts = self._firsts
        if self._shuffle and len(order) > 1:
            order = permute(order, len(order), self._seed, epoch, 3)
            firsts = np.cumsum([0, *(self._windows(self._chunks[c][1]) for c in order)])
        slot = np.searchsorted(firsts, samples, side="right") - 1
        begins = np.array([self._chunks[c][0] for c in order], np.int64)
        return begins[slot] + offset + (samples - firsts[slot]) * self._block

    def _windows(self, tokens: int) -> int:
        spare = self._block - 1 if self._random else 0  # room for the epoch's offset
        return max(0, (tokens - 1 - spare) // self._block)

    def _cut(self) -> list[tuple[int, int]]:
        """Chunks of the training part, as (first token, number of tokens)."""
        ranges = [(0, self.trained)]
        if self._experiment.chunk_manifest_path:
            ranges = self._manifest(self._experiment.chunk_manifest_path)
        size = self._chunk_tokens()
        if size is None:
            return ranges
        return [
            (at, min(size, start + length - at))
            for start, length in ranges
            for at in range(start, start + length, size)
        ]

    def _chunk_tokens(self) -> int | None:
        experiment = self._experiment
        if experiment.chunk_size_mode == "whole":
            return None
        if experiment.chunk_size_mode == "diloco_slices":
            steps = experiment.tau * (
                (experiment.effective_batch_size or self._batch) // self._batch
            )
            return steps * self._batch * self._block + 1
        self._need_fixed_width("chunk_size_mode 'fixed_bytes'")
        return max(1, experiment.chunk_size_bytes // self._token_bytes)

    def _need_fixed_width(self, what: str) -> None:
        if not self._token_bytes:
            raise ConfigError(
                f"{what} counts bytes, but this text has characters of several "
                "bytes; use the tokenizer 'byte'"
            )

    def _manifest(self, path: str) -> list[tuple[int, int]]:
        """Shards in the order of the manifest, cut off where validation begins."""
        self._need_fixed_width("chunk_manifest_path")
        width, total = self._token_bytes, self._tokens
        ranges = []
        for start, length in read_manifest(path):
            if start % width or length % width:
                raise ConfigError(f"{path}: a shard cuts a token of {width} bytes")
            first, count = start // width, length // width
            if first + count > total:
                raise ConfigError(f"{path}: a shard ends beyond the data")
            if (kept := min(count, self.trained - first)) > 0:
                ranges.append((first, kept))
        return ranges


def read_manifest(path: str) -> list[tuple[int, int]]:
    """The (byte offset, byte length) of each shard of a chunk manifest."""
    try:
        raw = outside.read_json(path)
        shards = raw["shards"] if isinstance(raw, dict) else raw
        return [_shard(shard) for shard in shards]
    except OSError as error:
        raise ConfigError(
            f"chunk_manifest_path: cannot read {path}: {error.strerror}"
        ) from error
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise ConfigError(
            f"{path}: not a chunk manifest (a list of objects with byte_offset and "
            f"byte_length): {error}"
        ) from error


def _shard(shard: dict[str, Any]) -> tuple[int, int]:
    def first(*names: str) -> int:
        value = int(next(shard[name] for name in names if name in shard))
        if value < 0:
            raise ValueError(f"{names[0]} is negative")
        return value

    return (
        first("byte_offset", "start_offset_bytes"),
        first("byte_length", "bytes_written"),
    )
