"""Parquet and Arrow: sample i is row i, each column an array of the sample.

Rows are read by row groups (Parquet) or record batches (Arrow); the newest ones stay in
memory. A cell with a list is an array, a list of lists an array of two dimensions, a
fixed shape tensor an array of its shape.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pcp.errors import ConfigError
from pcp.training.data import digest
from pcp.training.data.dataset import Sample, Source
from pcp.training.data.digest import TreeDigest
from pcp.training.data.formats.listed import FileDataset, largest_of
from pcp.training.data.verified_file import VerifiedFile

KEPT_BYTES = 256 << 20
"""The most bytes of groups in memory; at least one group is kept."""

Group = tuple[int, Callable[[], Any]]
"""The rows of a group, and a function that reads it as a `pyarrow.Table`."""


class Table(FileDataset):
    """The rows of groups, with the columns that the program takes."""

    def __init__(
        self, source: Source, tree: TreeDigest, groups: Iterable[Group]
    ) -> None:
        self._source, self.tree = source, tree
        self._groups = [group for group in groups if group[0]]
        self._firsts = np.cumsum([0, *(rows for rows, _ in self._groups)]).tolist()
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._firsts[-1]

    def sample(self, index: int) -> Sample:
        """Row `index`, by the columns' names."""
        number = bisect_right(self._firsts, index) - 1
        table, row = self._group(number), index - self._firsts[number]
        return {name: _value(table.column(name), row) for name in table.column_names}

    def largest(self, column: str) -> int | None:
        """The largest number of a column of integers; the column is read once."""
        groups = map(self._group, range(len(self._groups)))
        chunks = (
            chunk
            for table in groups
            if column in table.column_names
            for chunk in table.column(column).chunks
        )
        return largest_of(map(_flat, chunks))

    def _group(self, number: int) -> Any:
        """A group; it is read unless it is in memory."""
        with self._lock:
            if number not in self._kept:
                self._kept[number] = self._chosen(self._groups[number][1]())
            self._kept.move_to_end(number)
            size = sum(table.nbytes for table in self._kept.values())
            while size > KEPT_BYTES and len(self._kept) > 1:
                size -= self._kept.popitem(last=False)[1].nbytes
            return self._kept[number]

    def _chosen(self, table: Any) -> Any:
        """The columns that the program takes; all, if one of these is missing."""
        wanted = [name for name in table.column_names if self._source.wanted(name)]
        return (
            table.select(wanted) if len(wanted) == len(self._source.inputs) else table
        )


def parquet(source: Source) -> Table:
    """A `.parquet` file, or all of a folder in the order of their names."""
    from pyarrow import parquet

    def groups(verified: VerifiedFile) -> Iterable[Group]:
        file = parquet.ParquetFile(verified.open())
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            yield rows, lambda n=number: file.read_row_group(n)

    return _table(source, (".parquet",), groups)


def arrow(source: Source) -> Table:
    """An Arrow IPC file or stream, or all of a folder in the order of their names."""
    import pyarrow
    from pyarrow import ipc

    def groups(verified: VerifiedFile) -> Iterable[Group]:
        try:
            file = ipc.open_file(verified.open())
        except pyarrow.ArrowInvalid:
            batches = list(ipc.open_stream(verified.open()))
            return [(b.num_rows, lambda b=b: _whole(b)) for b in batches]
        numbers = range(file.num_record_batches)
        return [
            (file.get_batch(n).num_rows, lambda n=n: _whole(file.get_batch(n)))
            for n in numbers
        ]

    def _whole(batch: Any) -> Any:
        return pyarrow.Table.from_batches([batch])

    return _table(source, (".arrow", ".feather"), groups)


def _table(
    source: Source,
    suffixes: tuple[str, ...],
    groups: Callable[[VerifiedFile], Iterable[Group]],
) -> Table:
    import pyarrow

    tree, found = digest.of_path(source.path), []
    for file in tree.files:
        path = Path(source.path, file.name)
        if path.suffix in suffixes:
            try:
                found += groups(VerifiedFile(path, file))
            except pyarrow.ArrowException as error:
                raise ConfigError(f"data_path: cannot read {path}: {error}") from error
    return Table(source, tree, found)


def _value(column: Any, row: int) -> np.ndarray:
    """One cell as an array."""
    import pyarrow

    cell = column[row]
    if not cell.is_valid:
        raise ValueError(f"row {row} of its group has a null")
    if isinstance(cell, pyarrow.ListScalar):
        return _numbers(cell.values)
    if isinstance(cell, pyarrow.ExtensionScalar):
        shape = getattr(cell.type, "shape", None)
        flat = _numbers(cell.value.values)
        return flat if shape is None else flat.reshape(shape)
    if pyarrow.types.is_binary(cell.type) or pyarrow.types.is_large_binary(cell.type):
        return np.frombuffer(cell.as_buffer(), np.uint8)
    return column.slice(row, 1).to_numpy().reshape(())


def _flat(array: Any) -> np.ndarray:
    """All numbers of an Arrow array that are not null, those in lists too."""
    if hasattr(array, "storage"):  # the storage of an extension type
        array = array.storage
    while hasattr(array, "flatten") and hasattr(array.type, "value_type"):
        array = array.flatten()
    return array.drop_null().to_numpy(zero_copy_only=False)


def _numbers(array: Any) -> np.ndarray:
    """An Arrow array as numpy's; lists of one length are a dimension."""
    import pyarrow

    if array.null_count:
        raise ValueError("a list has a null")
    types = pyarrow.types
    if types.is_fixed_size_list(array.type) or types.is_list(array.type):
        return np.stack([_numbers(cell.values) for cell in array])
    return array.to_numpy(zero_copy_only=False)
