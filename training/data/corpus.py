"""Text to tokens, tokens to samples, samples to an order everyone agrees on.

A *sample* is a window of T+1 consecutive tokens: T inputs and, shifted by one,
T targets. Windows start T tokens apart, so inside a chunk every token is the
target of exactly one sample of an epoch. With `random` sampling each epoch
shifts all windows by another offset below T and visits them in another
permutation; with `fifo` they come in the order of the file.

Samples are numbered through all epochs: *position* p is sample `p % n` of epoch
`p // n`, where n is the number of samples of an epoch, cut to whole batches (the
up to B-1 samples left over differ from epoch to epoch when sampling is random).
Which window a position means follows from the seed alone; so a lease is a range
of positions, and no worker needs to be told more.

The permutation is a Feistel network with cycle walking: any element is computed
on its own, in any order, without a table, and with no dependence on a library's
random generator.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from pcp.errors import ConfigError, nearest
from pcp.training.config.experiment import BUILTIN, Experiment

_ROUNDS = 4  # of the Feistel network: enough for a pseudorandom permutation
_DIGEST_BLOCKS = 64
_DIGEST_BLOCK = 1 << 20


# Text ----------------------------------------------------------------------


def python_docs() -> bytes:
    """The reference manual in `pydoc_data.topics`, topics in sorted order."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


_SOURCES = {"python-docs": python_docs}


def read_source(path: str) -> np.ndarray:
    """The bytes behind a `data_path`, mapped from the file where there is one."""
    if path.startswith(BUILTIN):
        name = path.removeprefix(BUILTIN)
        if name not in _SOURCES:
            raise ConfigError(
                f"data_path: no built-in data {name!r} (there is: "
                f"{', '.join(_SOURCES)}).{nearest(name, _SOURCES)}"
            )
        return np.frombuffer(_SOURCES[name](), np.uint8)
    try:
        return np.memmap(path, np.uint8, mode="r")
    except OSError as error:
        raise ConfigError(f"data_path: cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"data_path: {path} is empty") from error


def data_digest(content: np.ndarray) -> str:
    """SHA-256 of the length and of 64 blocks of 1 MiB spread over the content.

    Everything is covered up to 64 MiB; beyond that it tells files apart without
    reading terabytes on each worker.
    """
    digest = hashlib.sha256(str(len(content)).encode())
    last = max(0, len(content) - _DIGEST_BLOCK)
    starts = sorted({last * i // (_DIGEST_BLOCKS - 1) for i in range(_DIGEST_BLOCKS)})
    if len(content) <= _DIGEST_BLOCKS * _DIGEST_BLOCK:
        digest.update(content.data)
    else:
        for start in starts:
            digest.update(content[start : start + _DIGEST_BLOCK].tobytes())
    return digest.hexdigest()


# Tokens --------------------------------------------------------------------


@dataclass(frozen=True)
class Tokens:
    """Token ids of the whole data, and how to read them."""

    ids: np.ndarray
    """Unsigned integers, one a token."""
    vocabulary: int
    """Every id is below it."""
    tokenizer: dict[str, Any]
    """A checkpoint's keys to decode with: kind, and the characters of `char`."""
    token_bytes: int
    """Bytes of the file per token, for `char` 0: a character has no fixed width."""


def tokenize(content: np.ndarray, kind: str) -> Tokens:
    """Tokens of `content` under the tokenizer `kind`."""
    if kind == "byte":
        return Tokens(content, 256, {"kind": "byte"}, 1)
    if kind == "char":
        return _characters(content)
    if len(content) % 2:
        raise ConfigError(
            f"data_path: {len(content)} bytes are no whole number of u16 tokens"
        )
    ids = content.view("<u2")
    return Tokens(ids, int(ids.max(initial=0)) + 1, {"kind": "u16"}, 2)


def check_readable(experiment: Experiment) -> None:
    """Refuse data that cannot be read or tokenized, before anything slow begins."""
    tokenize(read_source(experiment.data_path), experiment.tokenizer)


def _characters(content: np.ndarray) -> Tokens:
    try:
        text = bytes(content).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"data_path: not UTF-8 text at byte {error.start}; "
            "use the tokenizer 'byte' for other files"
        ) from error
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    alphabet, ids = np.unique(points, return_inverse=True)
    characters = "".join(map(chr, alphabet.tolist()))
    narrow = np.uint8 if len(alphabet) <= 256 else np.uint32
    tokenizer = {"kind": "char", "characters": characters}
    width = 1 if len(text) == len(content) else 0
    return Tokens(ids.astype(narrow), len(alphabet), tokenizer, width)


def check_vocabulary(
    tokens: Tokens, sizes: Sequence[Sequence[int]], declared: int | None
) -> None:
    """Refuse tokens that no embedding of the model can hold.

    `sizes` are the shapes of the parameters. A table that embeds V ids has a
    dimension of V, so a model without a dimension that large cannot take them.
    """
    largest = declared or max((max(shape, default=0) for shape in sizes), default=0)
    if tokens.vocabulary > largest:
        kind = tokens.tokenizer["kind"]
        raise ConfigError(
            f"the data has {tokens.vocabulary} different tokens ({kind}), the model "
            f"takes at most {largest}; use another tokenizer or a larger vocabulary"
        )


# Order ---------------------------------------------------------------------


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele et al. 2014): 64 bits to 64 mixed bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _key(*parts: int) -> np.ndarray:
    key = np.zeros(1, np.uint64)
    for part in parts:
        key = _mix(key + np.uint64(part) + np.uint64(0x9E3779B97F4A7C15))
    return key


def permute(index: np.ndarray, count: int, *key: int) -> np.ndarray:
    """Where the permutation of `range(count)` named by `key` sends each index."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    keys = [_key(*key, number) for number in range(_ROUNDS)]

    def once(values: np.ndarray) -> np.ndarray:
        left, right = values >> shift, values & mask
        for round_key in keys:
            left, right = right, left ^ (_mix(right + round_key) & mask)
        return left << shift | right

    result = once(np.asarray(index, np.uint64))
    # The network permutes a power of four; walk on until inside the range.
    while (outside := result >= count).any():
        result[outside] = once(result[outside])
    return result.astype(np.int64)


@dataclass(frozen=True)
class Batch:
    """Inputs and targets, int64 `[samples, T]`."""

    inputs: np.ndarray
    targets: np.ndarray


class Corpus:
    """The samples of one experiment: training positions and validation batches.

    `batch` and `block` are B and T of the model's data inputs.
    """

    def __init__(
        self, experiment: Experiment, batch: int, block: int, path: str | None = None
    ) -> None:
        self.batch, self.block = batch, block
        self._random = experiment.sampling == "random"
        self._seed = experiment.seed
        self._shuffle = experiment.chunk_shuffle and not self._random
        content = read_source(path or experiment.data_path)
        self.digest = data_digest(content)
        self.tokens = tokenize(content, experiment.tokenizer)
        held_out = int(len(self.tokens.ids) * experiment.validation_fraction)
        self._train_end = len(self.tokens.ids) - held_out
        self._chunks = self._cut(experiment)
        self._firsts = np.cumsum([0, *(self._windows(n) for _, n in self._chunks)])
        self.samples = int(self._firsts[-1]) // batch * batch
        """Samples of one epoch, in whole batches."""
        if not self.samples:
            raise ConfigError(
                f"data_path: {self._train_end} tokens for training are less than one "
                f"batch of {batch} samples of {block} tokens"
            )

    def windows(self, positions: np.ndarray) -> np.ndarray:
        """The first token of the sample at each position."""
        positions = np.asarray(positions, np.int64)
        starts = np.empty_like(positions)
        epochs = positions // self.samples
        for epoch in np.unique(epochs):
            here = epochs == epoch
            starts[here] = self._starts(positions[here] % self.samples, int(epoch))
        return starts

    def read(self, positions: np.ndarray) -> Batch:
        """The samples at `positions`."""
        return self._batch(self.windows(positions))

    @property
    def validation_batches(self) -> int:
        """Whole batches in the held-out part."""
        tokens = len(self.tokens.ids) - self._train_end
        return max(0, tokens - 1) // self.block // self.batch

    def validation(self, number: int) -> Batch:
        """Held-out batch `number`: its windows follow each other in the text."""
        first = number * self.batch
        starts = self._train_end + self.block * np.arange(first, first + self.batch)
        return self._batch(starts)

    def _batch(self, starts: np.ndarray) -> Batch:
        offsets = np.arange(self.block + 1)
        ids = self.tokens.ids[starts[:, None] + offsets].astype(np.int64)
        return Batch(ids[:, :-1], ids[:, 1:])

    def _starts(self, samples: np.ndarray, epoch: int) -> np.ndarray:
        total = int(self._firsts[-1])
        offset = 0
        if self._random:
            offset = int(_key(self._seed, epoch, 1)[0] % np.uint64(self.block))
            samples = permute(samples, total, self._seed, epoch, 2)
        order = np.arange(len(self._chunks))
        firsts = self._firsts
        if self._shuffle and len(order) > 1:
            order = permute(order, len(order), self._seed, epoch, 3)
            firsts = np.cumsum([0, *(self._windows(self._chunks[c][1]) for c in order)])
        slot = np.searchsorted(firsts, samples, side="right") - 1
        begins = np.array([self._chunks[c][0] for c in order], np.int64)
        return begins[slot] + offset + (samples - firsts[slot]) * self.block

    def _windows(self, tokens: int) -> int:
        spare = self.block - 1 if self._random else 0  # room for the epoch's offset
        return max(0, (tokens - 1 - spare) // self.block)

    def _cut(self, experiment: Experiment) -> list[tuple[int, int]]:
        """Chunks of the training part, as (first token, number of tokens)."""
        ranges = [(0, self._train_end)]
        if experiment.chunk_manifest_path:
            ranges = self._manifest(experiment.chunk_manifest_path)
        size = self._chunk_tokens(experiment)
        if size is None:
            return ranges
        return [
            (at, min(size, start + length - at))
            for start, length in ranges
            for at in range(start, start + length, size)
        ]

    def _chunk_tokens(self, experiment: Experiment) -> int | None:
        if experiment.chunk_size_mode == "whole":
            return None
        if experiment.chunk_size_mode == "diloco_slices":
            steps = experiment.tau * (
                (experiment.effective_batch_size or self.batch) // self.batch
            )
            return steps * self.batch * self.block + 1
        self._need_fixed_width("chunk_size_mode 'fixed_bytes'")
        return max(1, experiment.chunk_size_bytes // self.tokens.token_bytes)

    def _need_fixed_width(self, what: str) -> None:
        if not self.tokens.token_bytes:
            raise ConfigError(
                f"{what} counts bytes, but this text has characters of several "
                "bytes; use the tokenizer 'byte'"
            )

    def _manifest(self, path: str) -> list[tuple[int, int]]:
        """Shards in the order of the manifest, cut off where validation begins."""
        self._need_fixed_width("chunk_manifest_path")
        width, total = self.tokens.token_bytes, len(self.tokens.ids)
        ranges = []
        for start, length in read_manifest(path):
            if start % width or length % width:
                raise ConfigError(f"{path}: a shard cuts a token of {width} bytes")
            first, count = start // width, length // width
            if first + count > total:
                raise ConfigError(f"{path}: a shard ends beyond the data")
            if (kept := min(count, self._train_end - first)) > 0:
                ranges.append((first, kept))
        return ranges


def read_manifest(path: str) -> list[tuple[int, int]]:
    """The (byte offset, byte length) of each shard of a chunk manifest."""
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
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
