"""The corpus of a run: samples in the run's order, in the program's shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pcp.manifest import TensorSpec
from pcp.training.config.experiment import Experiment
from pcp.training.data import digest
from pcp.training.data.binding import Binding, beyond
from pcp.training.data.dataset import Batch, Dataset, Source, batch_of
from pcp.training.data.digest import Parts
from pcp.training.data.formats.table import open_dataset
from pcp.training.data.formats.token_files import TokenFile
from pcp.training.data.order import DataOrder, sample_order
from pcp.training.data.tokens import check_vocabulary


class Corpus:
    """Training positions and validation batches of one experiment.

    `inputs` are the program's data, `path` is the dataset's in place of the
    experiment's. `ConfigError` names data of the program that the dataset lacks.
    """

    def __init__(
        self,
        experiment: Experiment,
        inputs: Sequence[TensorSpec],
        path: str | None = None,
    ) -> None:
        source = Source(path or experiment.data_path, experiment, tuple(inputs))
        self.source, self.batch = source, batch_of(source.inputs)
        self.dataset = open_dataset(source)
        self.order = _order(self.dataset, source)
        self._binding = Binding(self.dataset, source)

    @property
    def ahead(self) -> int:
        """The batches that a worker reads ahead of its steps."""
        return self.source.experiment.data_options.ahead

    @property
    def readers(self) -> int:
        """The threads of a worker that read samples."""
        return self.source.experiment.data_options.readers

    @property
    def digest(self) -> str:
        """The digest of all of the data."""
        return self.dataset.digest

    @property
    def samples(self) -> int:
        """The samples of one epoch, in whole batches."""
        return self.order.samples

    @property
    def tokenizer(self) -> dict[str, Any]:
        """A checkpoint's keys to decode with; kind `none` where there are no tokens."""
        if isinstance(self.dataset, TokenFile):
            return self.dataset.tokens.tokenizer
        return {"kind": "none"}

    def read(self, positions: np.ndarray) -> Batch:
        """The samples at `positions`."""
        indices = self.order.indices(positions)
        return Batch(self._binding.read(indices), np.asarray(positions, np.int64))

    @property
    def validation_batches(self) -> int:
        """Whole batches in the held-out part."""
        return self.order.held_out // self.batch

    def validation(self, number: int) -> Batch:
        """Held-out batch `number`."""
        numbers = np.arange(number * self.batch, (number + 1) * self.batch)
        tensors = self._binding.read(self.order.validation(numbers))
        return Batch(tensors, -1 - numbers)

    def check_vocabulary(self, shapes: Sequence[Sequence[int]]) -> None:
        """Refuse token ids that no parameter of these shapes can embed."""
        if not isinstance(self.dataset, TokenFile):
            return
        tokens, declared = self.dataset.tokens, self.source.experiment.vocabulary_size
        kind = tokens.tokenizer["kind"]
        check_vocabulary(tokens.vocabulary, kind, shapes, declared)

    def limit_rows(self, rows: Mapping[str, int]) -> None:
        """Refuse any sample with an id beyond such a table, when it is read."""
        self._binding.limit(rows)

    def check_rows(self, rows: Mapping[str, int]) -> None:
        """Refuse ids beyond the tables that the program's inputs index.

        `rows` are those of the smallest table, by input. Formats that know their
        largest number are checked now, and every sample when it is read.
        """
        self.limit_rows(rows)
        largest = getattr(self.dataset, "largest", lambda column: None)
        for name, count in rows.items():
            column = self._binding.columns[name]
            found = largest(column)
            if found is not None and found >= count:
                raise beyond(self.source, found, f"in {column}", name, count)

    @property
    def parts(self) -> Parts:
        """Digests of parts of the data, to find where another copy differs."""
        tree = getattr(self.dataset, "tree", None)
        return [] if tree is None else tree.parts()

    def is_of(self, recorded: str) -> bool:
        """Whether a recorded digest is this data's, by this pcp or an older one."""
        if recorded == self.digest:
            return True
        return isinstance(self.dataset, TokenFile) and self.dataset.had_digest(recorded)

    def difference(self, there: Parts) -> str:
        """The place where a copy of the data with these parts differs from this one."""
        return digest.difference(self.parts, there)


def _order(dataset: Dataset, source: Source) -> DataOrder:
    if isinstance(dataset, TokenFile):
        return dataset.order()
    return sample_order(source, len(dataset))
