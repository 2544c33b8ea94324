"""A dataset of the user's own: `file.py:Dataset`."""

import hashlib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from pcp.errors import ConfigError, nearest
from pcp.training.config.experiment_file import (
    python_dataset,
)
from pcp.training.data import digest
from pcp.training.data.dataset import Dataset, Sample, Source
from pcp.training.data.digest import FileDigest, TreeDigest
from pcp.training.data.formats.listed import FileDataset


class PythonDataset(FileDataset):
    """The dataset of a user's file, with a digest that covers the file too."""

    def __init__(self, dataset: Dataset, file: str, said: str) -> None:
        self._dataset = dataset
        code = digest.of_path(file).files[0]
        data = FileDigest("its own digest", 0, hashlib.sha256(said.encode()).digest())
        name = Path(file).name
        named = FileDigest(name, code.size, code.leaves)
        self.tree = TreeDigest((named, data))

    def __len__(self) -> int:
        return len(self._dataset)

    def largest(self, column: str) -> int | None:
        """The largest id of a column, if the user's code says so."""
        said = getattr(self._dataset, "largest", None)
        return None if said is None else said(column)

    def sample(self, index: int) -> Sample:
        """The sample as the user's code makes it."""
        return self._dataset.sample(index)


def open_python(source: Source) -> PythonDataset:
    """The dataset that `file.py:Name` names, or that a function of that name makes."""
    named = python_dataset(source.path)
    if named is None:
        raise source.refuse("is no file.py:Dataset")
    file, name = named
    try:
        found = _attribute(file, name)
        dataset = found() if isinstance(found, type) or _is_maker(found) else found
        said = dataset.digest
        length = len(dataset)
    except ConfigError:
        raise
    except AttributeError as error:
        if getattr(error, "name", None) in ("digest", "sample"):
            raise _lacks(source, str(error.name)) from error
        raise _raised(source, error) from error
    except Exception as error:  # a user's own code may raise anything
        raise _raised(source, error) from error
    if not callable(getattr(dataset, "sample", None)):
        raise _lacks(source, "sample")
    if not isinstance(said, str) or not said or not isinstance(length, int):
        raise _lacks(source, "digest")
    return PythonDataset(dataset, file, said)


def _attribute(file: str, name: str) -> Any:
    spec = spec_from_file_location(f"pcp_dataset_{Path(file).stem}", file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise ConfigError(f"data_path: no file {file!r}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigError(f"data_path: {file} has no {name!r}.{nearest(name, public)}")
    return getattr(module, name)


def _is_maker(found: Any) -> bool:
    """Whether an attribute makes the dataset, and is not a dataset already."""
    return callable(found) and not hasattr(found, "sample")


def _lacks(source: Source, what: str) -> ConfigError:
    return source.refuse(
        f"has no {what!r}: a dataset has __len__, sample(i) with arrays by name, and "
        "digest, a text that other data do not have"
    )


def _raised(source: Source, error: Exception) -> ConfigError:
    return source.refuse(f"raises {type(error).__name__}: {error}")
