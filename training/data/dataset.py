"""The interface of a dataset: samples by number, each with arrays by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pcp.errors import BundleError, ConfigError
from pcp.manifest import TensorSpec
from pcp.training.config.experiment import Experiment

Sample = Mapping[str, np.ndarray]
"""The arrays of one sample, without a dimension for the batch."""


class Dataset(Protocol):
    """Samples that can be read in any order, by several threads at once.

    The same number gives the same bytes, always and on every machine.
    """

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def sample(self, index: int) -> Sample:
        """The sample with this number, below `len`."""
        ...

    @property
    def digest(self) -> str:
        """64 hexadecimal digits: a SHA-256 of all data."""
        ...


@dataclass(frozen=True)
class Batch:
    """Samples of one call of the program."""

    tensors: dict[str, np.ndarray]
    """Arrays by the names of the program's data, `[B, ...]`."""
    positions: np.ndarray
    """The positions of the samples, int64 `[B]`; below 0 for held-out ones."""


@dataclass(frozen=True)
class Source:
    """The path, the options and the program's inputs of a dataset."""

    path: str
    experiment: Experiment
    inputs: tuple[TensorSpec, ...]
    """The program's data, with the batch in front."""

    @property
    def batch(self) -> int:
        """Samples of one call of the program."""
        return batch_of(self.inputs)

    def wanted(self, name: str) -> TensorSpec | None:
        """The program's input that takes a sample's `name`, if there is one."""
        columns = self.experiment.data_options.columns
        takes = (t for t in self.inputs if columns.get(t.name, t.name) == name)
        return next(takes, None)

    def refuse(self, why: str) -> ConfigError:
        """An error that names the data."""
        return ConfigError(f"data_path: {self.path} {why}")


def batch_of(inputs: Sequence[TensorSpec]) -> int:
    """B of a program's data; `BundleError` where the inputs have no B in common."""
    sizes = {t.shape[:1] for t in inputs}
    if len(sizes) != 1 or sizes == {()}:
        found = ", ".join(f"{t.name}: {list(t.shape)}" for t in inputs) or "none"
        raise BundleError(
            "training needs a program whose data have samples as their first "
            f"dimension, all as many; this one has {found}"
        )
    return inputs[0].shape[0]


def tokens_of_sample(inputs: Sequence[TensorSpec]) -> int:
    """The weight of a sample: T tokens where the program takes ids `[B, T]`, else 1."""
    ids = (t for t in inputs if len(t.shape) == 2 and "i" in t.dtype)
    return next((t.shape[1] for t in ids), 1)


def token_inputs(
    batch: int, block: int, names: Sequence[str] = ("ids", "targets")
) -> tuple[TensorSpec, ...]:
    """The data of a language model: ids and targets, int64 `[batch, block]`."""
    shape = (batch, block)
    return tuple(
        TensorSpec(name=name, role="data", shape=shape, dtype="i64") for name in names
    )
