"""The binding of a dataset's arrays to the data of a program, by name.

A program's input takes the sample's array of its own name, or of the name in the key
`columns` of `data`. The first sample is checked before a program is compiled; every
later sample is checked too.
"""

import traceback
from collections.abc import Mapping, Sequence

import numpy as np

from pcp.errors import ConfigError, PcpError, nearest
from pcp.manifest import TensorSpec
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.training.config.data_options import DataOptions
from pcp.training.data.dataset import Dataset, Sample, Source

_NUMBERS = {"b": "b", "i": "bui", "u": "bui", "f": "buif"}
"""The numpy kinds of arrays that an input of a kind can take."""


class Binding:
    """Reads batches of a dataset for a program's inputs."""

    def __init__(self, dataset: Dataset, source: Source) -> None:
        """`ConfigError` where the first sample does not fit the program."""
        self._dataset, self._source = dataset, source
        self._rows: dict[str, int] = {}
        self._options: DataOptions = source.experiment.data_options
        first = self._sample(0)
        self.columns = _columns(source, first, getattr(dataset, "by_position", ()))
        """The sample's array for each of the program's inputs."""
        self._fit(first, 0)

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """A batch of these samples, by the program's names."""
        rows = [self._fit(self._sample(int(i)), int(i)) for i in indices]
        names = [t.name for t in self._source.inputs]
        batch = {name: np.stack([row[name] for row in rows]) for name in names}
        for name, count in self._rows.items():
            if (found := int(batch[name].max(initial=0))) >= count:
                at = int(batch[name].reshape(len(rows), -1).max(1).argmax())
                where = f"in {self.columns[name]} of sample {indices[at]}"
                raise beyond(self._source, found, where, name, count)
        return batch

    def limit(self, rows: Mapping[str, int]) -> None:
        """Check ids against the rows of the program's tables, by its names."""
        self._rows = dict(rows)

    def _sample(self, index: int) -> Sample:
        """One sample; an error of the dataset names the sample's number."""
        try:
            return self._dataset.sample(index)
        except PcpError:
            raise
        except Exception as error:  # a user's own code may raise anything
            raise self._source.refuse(
                f"sample {index} raises {type(error).__name__}: "
                f"{' '.join(str(error).split())} ({_place(error)})"
            ) from error

    def _fit(self, sample: Sample, index: int) -> dict[str, np.ndarray]:
        """The sample by the program's names, in its shapes."""
        made = {}
        for spec in self._source.inputs:
            name = self.columns[spec.name]
            where = f"sample {index}: {name}"
            if name not in sample:
                raise self._source.refuse(f"sample {index} has no {name!r}")
            array = np.asarray(sample[name])
            _check_type(self._source, where, array, spec)
            made[spec.name] = self._shaped(where, array, spec)
        return made

    def _shaped(self, where: str, array: np.ndarray, spec: TensorSpec) -> np.ndarray:
        """The array in the program's shape: padded or cut where the options say so."""
        wanted = spec.shape[1:]
        if array.shape == wanted:
            return array
        if array.ndim == len(wanted):
            if self._options.truncate:
                array = array[tuple(map(slice, wanted))]
            shorter = all(a <= b for a, b in zip(array.shape, wanted, strict=True))
            if spec.name in self._options.pad and shorter:
                filled = np.full(wanted, self._options.pad[spec.name], array.dtype)
                filled[tuple(map(slice, array.shape))] = array
                return filled
        if array.shape == wanted:
            return array
        raise self._source.refuse(
            f"{where} has the shape {list(array.shape)}, and the program's "
            f"{spec.name} takes {list(wanted)} of each sample"
        )


def beyond(source: Source, found: int, where: str, name: str, rows: int) -> ConfigError:
    """The error text for an id beyond the rows of the program's table."""
    return source.refuse(
        f"has the id {found} {where}, and the table that the program's {name} looks up "
        f"has {rows} rows"
    )


def _columns(
    source: Source, sample: Sample, by_position: Sequence[str]
) -> Mapping[str, str]:
    """The sample's array for each input; `ConfigError` names missing ones.

    A dataset's arrays are taken `by_position` where the program has other names, as
    many inputs, and one shape of all.
    """
    said = source.experiment.data_options.columns
    inputs = [t.name for t in source.inputs]
    for name in said:
        if name not in inputs:
            raise ConfigError(
                f"data.columns: the program takes no {name!r} (it takes: "
                f"{', '.join(inputs)}).{nearest(name, inputs)}"
            )
    columns = {name: said.get(name, name) for name in inputs}
    alike = len({t.shape for t in source.inputs}) == 1
    if len(inputs) == len(by_position) and alike and not set(inputs) & {*sample, *said}:
        return dict(zip(inputs, by_position, strict=True))
    for name, column in columns.items():
        if column not in sample:
            raise source.refuse(
                f"has no {column!r} for the program's {name!r} (its samples have: "
                f"{', '.join(sample)}); say in data.columns which it is."
                f"{nearest(column, sample)}"
            )
    return columns


def _check_type(
    source: Source, where: str, array: np.ndarray, spec: TensorSpec
) -> None:
    wanted = numpy_dtype(spec.dtype)
    kind = wanted.kind if wanted.kind in _NUMBERS else "f"
    if array.dtype.kind not in _NUMBERS[kind]:
        raise source.refuse(
            f"{where} holds {array.dtype}, and the program's {spec.name} takes "
            f"{spec.dtype}"
        )


def _place(error: BaseException) -> str:
    """File and line of the frame that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}"
