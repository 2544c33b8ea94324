"""The table of data formats: how each is detected, read, and what package it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from pcp.errors import ConfigError, MissingPackage, install, nearest
from pcp.training.config.experiment import (
    HUGGING_FACE,
    Experiment,
)
from pcp.training.config.experiment_file import (
    python_dataset,
)
from pcp.training.data.dataset import Dataset, Source
from pcp.training.data.tokens import read_source, tokenize

_HERE = "pcp.training.data.formats"
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")


@dataclass(frozen=True)
class Format:
    """One way to read a `data_path`."""

    name: str
    holds: str
    """The kind of path, for the documentation."""
    detects: Callable[[str], bool]
    """Whether a path is of this format, by its name and by what a folder holds."""
    opens: str
    """`module:callable`: a `Source` to a `Dataset`."""
    package: str = ""
    """The package that it needs besides pcp's core."""
    extra: str = ""
    options: tuple[str, ...] = ()
    """Keys of `data` that only this format takes."""


def _suffix(*wanted: str) -> Callable[[str], bool]:
    """A check for a file with one of these suffixes, or a folder with such files."""

    def detects(path: str) -> bool:
        if not Path(path).is_dir():
            return path.lower().endswith(wanted)
        names = (file.name.lower() for file in Path(path).iterdir())
        return any(name.endswith(wanted) for name in names)

    return detects


def _saved_by_datasets(path: str) -> bool:
    if path.startswith(HUGGING_FACE):
        return True
    files = ("dataset_info.json", "dataset_dict.json")
    return any(Path(path, name).is_file() for name in files)


def _has_images(path: str) -> bool:
    """Whether a folder, or a folder in it, has pictures."""
    files = chain(Path(path).glob("*"), Path(path).glob("*/*"))
    return Path(path).is_dir() and any(f.suffix.lower() in IMAGES for f in files)


FORMATS = (
    Format(
        "python",
        "`file.py:Dataset`: a class or function of one's own",
        lambda path: python_dataset(path) is not None,
        f"{_HERE}.python:open_python",
    ),
    Format(
        "huggingface",
        "a folder of `save_to_disk`, or `huggingface:NAME`",
        _saved_by_datasets,
        f"{_HERE}.huggingface:HuggingFace",
        "datasets",
        "huggingface",
        ("split",),
    ),
    Format(
        "npy",
        "a `.npy` file, or a folder of them",
        _suffix(".npy"),
        f"{_HERE}.arrays:npy",
    ),
    Format("npz", "a `.npz` file", _suffix(".npz"), f"{_HERE}.arrays:npz"),
    Format(
        "parquet",
        "a `.parquet` file, or a folder of them",
        _suffix(".parquet"),
        f"{_HERE}.tables:parquet",
        "pyarrow",
        "arrow",
    ),
    Format(
        "arrow",
        "an Arrow IPC file or stream, `.arrow` or `.feather`, or a folder of them",
        _suffix(".arrow", ".feather"),
        f"{_HERE}.tables:arrow",
        "pyarrow",
        "arrow",
    ),
    Format(
        "webdataset",
        "a `.tar` of WebDataset's, or a folder of them",
        _suffix(".tar"),
        f"{_HERE}.webdataset:WebDataset",
        options=("image_mean", "image_deviation"),
    ),
    Format(
        "images",
        "a folder with a folder of pictures for each class, or with metadata.jsonl",
        _has_images,
        f"{_HERE}.images:ImageFolder",
        "PIL",
        "images",
        ("image_mean", "image_deviation"),
    ),
    Format(
        "tokens",
        "any other file: text, or ids as the key tokenizer says",
        lambda path: True,
        f"{_HERE}.token_files:open_tokens",
        options=("separator", "packing", "mask_path", "tokenizer_path"),
    ),
)
_COMMON = {"format", "columns", "pad", "truncate", "readers", "ahead"}


def format_of(experiment: Experiment, path: str) -> Format:
    """The format of the options, or the first that detects the path.

    With a tokenizer other than `char`, and without a key `data`, it is a token file.
    """
    names = {each.name: each for each in FORMATS}
    wanted = experiment.data_options.format
    if wanted is None and experiment.data is None and experiment.tokenizer != "char":
        wanted = "tokens"
    if wanted is None:
        return next(each for each in FORMATS if each.detects(path))
    if wanted not in names:
        raise ConfigError(
            f"data.format: no format {wanted!r} (there is: {', '.join(names)})."
            f"{nearest(wanted, names)}"
        )
    return names[wanted]


def check_format(experiment: Experiment, path: str) -> Format:
    """The format of a path; `ConfigError` for an option of another format.

    `MissingPackage` where this installation cannot read it.
    """
    found, options = format_of(experiment, path), experiment.data_options
    for option, field in type(options).model_fields.items():
        # A worker gets all keys, with defaults for those that were not given.
        foreign = option not in _COMMON and option not in found.options
        if foreign and getattr(options, option) != field.get_default():
            owners = ", ".join(f.name for f in FORMATS if option in f.options)
            raise ConfigError(
                f"data.{option}: is for the format {owners}, and {path} is read as "
                f"{found.name}; data.format says another"
            )
    if found.package and find_spec(found.package) is None:
        raise MissingPackage(
            f"data_path: {path} needs {found.package} to be read: "
            f"{install(found.extra)}"
        )
    return found


def check_readable(experiment: Experiment) -> None:
    """Refuse data that cannot be read or tokenized, before any slow work."""
    found = check_format(experiment, experiment.data_path)
    if found.name == "tokens":
        content = read_source(experiment.data_path, experiment.tokenizer)
        subwords = experiment.data_options.tokenizer_path
        tokenize(content, experiment.tokenizer, subwords)


def open_dataset(source: Source) -> Dataset:
    """The dataset of a path."""
    module, _, name = check_format(source.experiment, source.path).opens.partition(":")
    return getattr(import_module(module), name)(source)
