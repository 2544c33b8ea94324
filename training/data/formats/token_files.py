"""Text and token files: windows of tokens, or whole documents packed together.

A sample of T tokens has

    ids, targets              T tokens, and each one's successor
    documents, positions      with a separator: each token's document, from 0, and its
                              index in it; a document of -1 is padding
    loss_mask                 1 where the target counts: it belongs to the same document
                              and is not taken out by data.mask_path
    input_ids, labels,        the same for models of Hugging Face, which shift labels
    attention_mask            themselves: those whose loss does not count are -100
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from pcp.errors import ConfigError
from pcp.training.data import digest
from pcp.training.data.dataset import Sample, Source, tokens_of_sample
from pcp.training.data.formats.listed import FileDataset
from pcp.training.data.order import DataOrder, sample_order
from pcp.training.data.tokens import (
    Content,
    Tokens,
    read_source,
    sampled_digest,
    tokenize,
)
from pcp.training.data.window_order import WindowOrder

_IGNORED = -100  # the label that torch's cross entropy ignores
_NAMES = (
    *("ids", "targets", "documents", "positions", "loss_mask"),
    *("input_ids", "labels", "attention_mask"),
)
_SCANNED = 1 << 24  # tokens searched at once


class TokenFile(FileDataset):
    """All windows of T+1 tokens of a file; sample i begins at token i."""

    by_position = ("ids", "targets")
    """The arrays for a program with two inputs of one shape and other names."""

    def __init__(self, source: Source) -> None:
        experiment = source.experiment
        self._source, self._options = source, experiment.data_options
        self._content = read_source(source.path, experiment.tokenizer)
        self.tokens: Tokens = tokenize(
            self._content, experiment.tokenizer, self._options.tokenizer_path
        )
        self.block = _block(source)
        self._bare = _takes_ids_alone(source)
        self._mask = _read_mask(source, len(self.tokens.ids))
        trees = {"": self._content.tree} | self.tokens.sources
        if self._mask is not None:
            trees["mask"] = self._mask.tree
        self.tree = digest.joined(trees)

    def __len__(self) -> int:
        return max(0, len(self.tokens.ids) - self.block)

    def had_digest(self, older: str) -> bool:
        """Whether an older version of pcp had this digest of the same file."""
        return len(self.tree.files) == 1 and older == sampled_digest(self._content.data)

    def largest(self, column: str) -> int | None:
        """The largest id of a column of ids."""
        if column not in ("ids", "targets", "input_ids"):
            return None
        return max(self.tokens.largest, self._options.separator or 0)

    def order(self) -> DataOrder:
        """The order of windows, a block apart."""
        tokens, batch = self.tokens, self._source.batch
        sizes = (len(tokens.ids), tokens.token_bytes, batch, self.block)
        order = WindowOrder(self._source.experiment, *sizes)
        if not order.samples:
            raise ConfigError(
                f"data_path: {order.trained} tokens for training are less than one "
                f"batch of {batch} samples of {self.block} tokens"
            )
        return order

    def sample(self, index: int) -> Sample:
        """The window that begins at token `index`."""
        window = self._ids(index, self.block + 1)
        if self._bare:
            return {"ids": window[:-1], "targets": window[1:]}
        documents = self._documents(window)
        counts = (documents[1:] == documents[:-1]) & self._counted(index, self.block)
        return _named(window[:-1], window[1:], documents[:-1], counts)

    def _ids(self, start: int, count: int) -> np.ndarray:
        self.tokens.check(start, start + count)
        return self.tokens.ids[start : start + count].astype(np.int64)

    def _documents(self, window: np.ndarray) -> np.ndarray:
        """Each token's document; a separator belongs to the document that it ends."""
        if self._options.separator is None:
            return np.zeros(len(window), np.int64)
        ends = window[:-1] == self._options.separator
        return np.concatenate([[0], np.cumsum(ends)])

    def _counted(self, start: int, count: int) -> np.ndarray:
        """Whether the loss of each target of a window counts."""
        if self._mask is None:
            return np.ones(count, bool)
        self._mask.check(start + 1, start + 1 + count)
        return self._mask.data[start + 1 : start + 1 + count] != 0


class PackedDocuments(TokenFile):
    """Whole documents, as many as fit into T tokens, in the order of the file.

    The target of a document's last token does not count, and the rest of a sample is
    padded with separators. A document of more than T tokens is cut; each part begins
    with the last token of the part before.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        if self._options.separator is None:
            raise ConfigError(
                "data.packing: documents: say the id that ends one, as data.separator"
            )
        self._end = self._options.separator
        # The bounds of documents depend on the whole file, so all of it is checked.
        self._content.check(0, len(self._content.data))

    def __len__(self) -> int:
        return len(self._first) - 1

    def order(self) -> DataOrder:
        """The order of samples, each of which is one packed sample."""
        return sample_order(self._source, len(self))

    def sample(self, index: int) -> Sample:
        """The documents of one sample, and its padding."""
        end = self._end
        ids = np.full(self.block, end, np.int64)
        documents = np.full(self.block, -1, np.int64)
        counts, at = np.zeros(self.block, bool), 0
        pieces = self._pieces[self._first[index] : self._first[index + 1]]
        for number, (start, count) in enumerate(pieces.tolist()):
            ids[at : at + count] = self._ids(start, count)
            documents[at : at + count] = number
            counts[at : at + count - 1] = self._counted(start, count - 1)
            at += count
        return _named(ids, np.append(ids[1:], end), documents, counts)

    @cached_property
    def _pieces(self) -> np.ndarray:
        """The first token and the number of tokens of each piece, `[n, 2]`."""
        return np.array([*self._cut()], np.int64).reshape(-1, 2)

    @cached_property
    def _first(self) -> np.ndarray:
        """The first piece of each sample, and the number of pieces at the end."""
        firsts, room = [], 0
        for piece, count in enumerate(self._pieces[:, 1].tolist()):
            if count > room:
                firsts.append(piece)
                room = self.block
            room -= count
        return np.array([*firsts, len(self._pieces)], np.int64)

    def _cut(self) -> Iterator[tuple[int, int]]:
        """Pieces of 2 to T tokens, document by document."""
        begin = 0
        for end in self._ends():
            for start in range(begin, end - 1, self.block - 1):
                yield start, min(self.block, end - start)
            begin = end

    def _ends(self) -> Iterator[int]:
        """The index behind each document's last token."""
        ids, last = self.tokens.ids, 0
        for at in range(0, len(ids), _SCANNED):
            found = np.flatnonzero(ids[at : at + _SCANNED] == self._end)
            for end in (found + at + 1).tolist():
                last = end
                yield end
        if last < len(ids):
            yield len(ids)


def open_tokens(source: Source) -> TokenFile:
    """The dataset of a token file, by the key `packing` of `data`."""
    packed = source.experiment.data_options.packing == "documents"
    return PackedDocuments(source) if packed else TokenFile(source)


def _named(
    ids: np.ndarray, targets: np.ndarray, documents: np.ndarray, counts: np.ndarray
) -> Sample:
    """The arrays of a sample of T tokens, of which a program takes some."""
    labels = ids.copy()
    labels[1:][~counts[:-1]] = _IGNORED
    places = np.arange(len(ids))
    begins = np.concatenate([[True], documents[1:] != documents[:-1]])
    positions = places - np.maximum.accumulate(np.where(begins, places, 0))
    arrays = (ids, targets, documents, positions, counts, ids, labels, documents >= 0)
    return dict(zip(_NAMES, arrays, strict=True))


def _takes_ids_alone(source: Source) -> bool:
    """Whether a program takes only ids and targets, by name or by position."""
    columns = source.experiment.data_options.columns
    wanted = {columns.get(t.name, t.name) for t in source.inputs}
    shapes = {t.shape for t in source.inputs}
    unnamed = not columns and wanted.isdisjoint(_NAMES) and len(shapes) == 1
    return wanted <= {*TokenFile.by_position} or (unnamed and len(wanted) == 2)


def _block(source: Source) -> int:
    """T of the program."""
    block = tokens_of_sample(source.inputs)
    if block > 1:
        return block
    found = ", ".join(f"{t.name}: {list(t.shape)} {t.dtype}" for t in source.inputs)
    raise source.refuse(
        f"holds tokens, and the program takes none: its data are {found or 'none'}, "
        "and ids are integers [batch, tokens]"
    )


def _read_mask(source: Source, tokens: int) -> Content | None:
    path = source.experiment.data_options.mask_path
    if path is None:
        return None
    mask = read_source(path)
    if len(mask.data) != tokens:
        raise ConfigError(
            f"data.mask_path: {path} has {len(mask.data)} bytes, and the data "
            f"{tokens} tokens"
        )
    return mask
