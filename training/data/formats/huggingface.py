"""Datasets of Hugging Face's library: saved with `save_to_disk`, or by their name."""

from pathlib import Path
from typing import Any

import numpy as np

from pcp.errors import nearest
from pcp.training.config.experiment import HUGGING_FACE
from pcp.training.data import digest
from pcp.training.data.dataset import Sample, Source
from pcp.training.data.formats.listed import FileDataset, largest_of

_AT_ONCE = 1000
"""Rows that are searched at once."""


class HuggingFace(FileDataset):
    """The rows of one split, as numpy's arrays.

    The library maps its files itself, so the files are hashed when the dataset is
    opened, and not again when a sample is read.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._rows = _opened(source).with_format("numpy")
        files = [Path(each["filename"]) for each in self._rows.cache_files]
        if not files:
            raise source.refuse(
                "lies in memory alone, and has no digest; save it with save_to_disk"
            )
        trees = {f"{n:06}": digest.of_path(path) for n, path in enumerate(files)}
        self.tree = digest.joined(trees)

    def __len__(self) -> int:
        return len(self._rows)

    def largest(self, column: str) -> int | None:
        """The largest number of a column of integers; the column is read once."""
        if column not in self._rows.column_names:
            return None
        batches = self._rows.select_columns([column]).iter(_AT_ONCE)
        cells = (np.asarray(cell) for batch in batches for cell in batch[column])
        return largest_of(cells)

    def sample(self, index: int) -> Sample:
        """Row `index`, by the columns' names."""
        return {name: np.asarray(cell) for name, cell in self._rows[index].items()}


def _opened(source: Source) -> Any:
    """The split of the options, or the only one."""
    import datasets  # pyright: ignore[reportMissingImports]

    name = source.path.removeprefix(HUGGING_FACE)
    try:
        if name == source.path:
            found = datasets.load_from_disk(name)
        else:
            found = datasets.load_dataset(name)
    except (OSError, ValueError) as error:
        raise source.refuse(f"cannot be read: {error}") from error
    if not isinstance(found, dict):
        return found
    split = source.experiment.data_options.split
    if split is None and len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        raise source.refuse(
            f"has the splits {', '.join(found)}: say one as data.split."
            f"{nearest(str(split), found)}"
        )
    return found[split]
