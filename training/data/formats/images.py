"""Pictures: the dataset of a folder, and a picture as the array of a program."""

from pathlib import Path
from typing import Any

import numpy as np

from pcp import strict_json
from pcp.errors import ConfigError, MissingPackage, install
from pcp.manifest import TensorSpec
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.training.config.data_options import DataOptions
from pcp.training.data import digest
from pcp.training.data.dataset import Sample, Source
from pcp.training.data.digest import FileDigest
from pcp.training.data.formats.listed import ListedDataset, largest_of
from pcp.training.data.formats.table import IMAGES
from pcp.training.data.verified_file import VerifiedFile

METADATA = "metadata.jsonl"
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class ImageFolder(ListedDataset):
    """`CLASS/*.png`, with the index of the class among the names as `label`.

    With a `metadata.jsonl` each line is a sample: the picture of `file_name`, and the
    numbers of the other keys.
    """

    def __init__(self, source: Source) -> None:
        self._source, self._folder = source, Path(source.path)
        self.tree = digest.of_path(source.path)
        self._files = {file.name: file for file in self.tree.files}
        given = self._files.get(METADATA)
        self._samples = self._classes() if given is None else self._lines(given)

    def largest(self, column: str) -> int | None:
        """The largest class, or the largest number of a key of the lines."""
        held = [more[column] for _, more in self._samples if column in more]
        return largest_of(held)

    def sample(self, index: int) -> Sample:
        """One picture, as `image`, with its label or the numbers of its line."""
        name, more = self._samples[index]
        file = VerifiedFile(self._folder / name, self._files[name])
        wanted, options = self._source.wanted("image"), self._options
        return {"image": decoded(file.open(), wanted, options), **more}

    @property
    def _options(self) -> DataOptions:
        return self._source.experiment.data_options

    def _classes(self) -> list[tuple[str, Sample]]:
        names = [n for n in self._files if n.lower().endswith(IMAGES)]
        classes = sorted({n.rpartition("/")[0] for n in names})
        labels = {name: np.int64(number) for number, name in enumerate(classes)}
        return [(n, {"label": np.asarray(labels[n.rpartition("/")[0]])}) for n in names]

    def _lines(self, file: FileDigest) -> list[tuple[str, Sample]]:
        text = VerifiedFile(self._folder / METADATA, file).open().read().decode()
        return [
            self._line(number, line)
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]

    def _line(self, number: int, line: str) -> tuple[str, Sample]:
        where = f"{self._folder / METADATA}, line {number}"
        try:
            values: dict[str, Any] = strict_json.parse(line)
            name = values.pop("file_name")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"data_path: {where}: no JSON object with file_name: {error}"
            ) from error
        if name not in self._files:
            raise ConfigError(f"data_path: {where}: there is no file {name!r}")
        return name, {key: np.asarray(value) for key, value in values.items()}


def decoded(file: Any, wanted: TensorSpec | None, options: DataOptions) -> np.ndarray:
    """A picture in the program's shape: resized, channels first or last.

    Floats are 0 to 1, minus `image_mean`, divided by `image_deviation`; integers are 0
    to 255.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackage(f"pictures need Pillow: {install('images')}") from error
    with Image.open(file) as picture:
        if wanted is None:
            return np.asarray(picture.convert("RGB"))
        height, width, channels, first = _layout(wanted)
        picture = picture.convert(_MODES[channels])
        if picture.size != (width, height):
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture)
    pixels = pixels.reshape(height, width, channels)
    kind = numpy_dtype(wanted.dtype).kind
    if kind not in "bui":
        pixels = _normal(pixels, channels, options)
    pixels = np.moveaxis(pixels, -1, 0) if first else pixels
    return pixels.reshape(wanted.shape[1:])


def _layout(wanted: TensorSpec) -> tuple[int, int, int, bool]:
    """Height, width, channels of a program's pictures; whether channels come first."""
    shape = wanted.shape[1:]
    if len(shape) == 2:
        return *shape, 1, False
    if len(shape) == 3 and shape[0] in _MODES:
        return shape[1], shape[2], shape[0], True
    if len(shape) == 3 and shape[2] in _MODES:
        return shape[0], shape[1], shape[2], False
    raise ConfigError(
        f"data_path: the program's {wanted.name} takes {list(shape)} of each sample, "
        "and a picture is [height, width], or has 1, 3 or 4 channels first or last"
    )


def _normal(pixels: np.ndarray, channels: int, options: DataOptions) -> np.ndarray:
    made = pixels.astype(np.float32) / np.float32(255)
    for name in ("image_mean", "image_deviation"):
        given = getattr(options, name)
        if given and len(given) != channels:
            raise ConfigError(
                f"data.{name}: {len(given)} numbers for pictures of {channels} channels"
            )
    if options.image_mean:
        made -= np.array(options.image_mean, np.float32)
    if options.image_deviation:
        made /= np.array(options.image_deviation, np.float32)
    return made
