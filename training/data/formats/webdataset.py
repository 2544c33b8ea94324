"""WebDataset archives: files of one name in a `.tar` are a sample.

    0001.jpg 0001.cls 0001.caption.npy      ->      jpg, cls, caption.npy

The offsets of the members are read from their headers when the dataset is opened; the
members are read with their sample, from the mapped archive.
"""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pcp import strict_json
from pcp.errors import ConfigError
from pcp.training.data import digest
from pcp.training.data.dataset import Sample, Source
from pcp.training.data.formats.images import decoded
from pcp.training.data.formats.listed import ListedDataset, largest_of
from pcp.training.data.formats.table import IMAGES
from pcp.training.data.verified_file import VerifiedFile

_NUMBERS = ("cls", "id", "index", "count")

Member = tuple[int, int, int]
"""First byte of a member's header, first of its content, and the byte behind."""


class WebDataset(ListedDataset):
    """A `.tar`, or all archives of a folder in the order of their names."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.tree = digest.of_path(source.path)
        samples: list[tuple[VerifiedFile, dict[str, Member]]] = []
        for file in self.tree.files:
            path = Path(source.path, file.name)
            if path.suffix == ".tar":
                verified = VerifiedFile(path, file)
                samples += [(verified, each) for each in _index(path)]
        self._samples = samples

    def largest(self, column: str) -> int | None:
        """The largest number in the members with a suffix; they are read once."""
        if column.rpartition(".")[2].lower() not in (*_NUMBERS, "npy", "json"):
            return None
        held = ((file, m[column]) for file, m in self._samples if column in m)
        return largest_of(
            self._decoded(column, file.view(begin, end))
            for file, (_, begin, end) in held
        )

    def sample(self, index: int) -> Sample:
        """The members of a sample that the program takes, by their suffixes."""
        file, members = self._samples[index]
        wanted = {k: m for k, m in members.items() if self._source.wanted(k)}
        chosen = wanted if len(wanted) == len(self._source.inputs) else members
        found = {}
        for name, (header, begin, end) in chosen.items():
            file.check(header, begin)  # its name and its offsets
            found[name] = self._decoded(name, file.view(begin, end))
        return found

    def _decoded(self, name: str, content: memoryview) -> np.ndarray:
        kind = name.rpartition(".")[2].lower()
        if f".{kind}" in IMAGES:
            wanted = self._source.wanted(name)
            options = self._source.experiment.data_options
            return decoded(io.BytesIO(content), wanted, options)
        if kind == "npy":
            return np.load(io.BytesIO(content), allow_pickle=False)
        if kind in _NUMBERS:
            return np.asarray(int(bytes(content)))
        if kind == "json":
            return np.asarray(strict_json.parse(bytes(content)))
        if kind in ("txt", "text"):
            return np.asarray(bytes(content).decode())
        return np.frombuffer(content, np.uint8)


def _index(path: Path) -> Iterator[dict[str, Member]]:
    """The offsets of the members of each sample of an archive."""
    key, members = None, {}
    try:
        with tarfile.open(path, "r:") as archive:
            for entry in archive:
                folder, slash, base = entry.name.rpartition("/")
                stem, dot, kind = base.partition(".")
                if not entry.isfile() or not stem or not dot:
                    continue
                if (name := folder + slash + stem) != key and members:
                    yield members
                    members = {}
                key, begin = name, entry.offset_data
                members[kind] = (entry.offset, begin, begin + entry.size)
    except tarfile.TarError as error:
        raise ConfigError(
            f"data_path: {path} is no uncompressed .tar: {error}"
        ) from error
    if members:
        yield members
