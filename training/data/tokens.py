"""Text to tokens: the content of a `data_path` as ids."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from pcp.errors import ConfigError, MissingPackage, install, nearest
from pcp.training.config.experiment import BUILTIN
from pcp.training.data import digest
from pcp.training.data.digest import TreeDigest
from pcp.training.data.verified_file import VerifiedFile

WIDTHS = {"byte": "u1", "u16": "<u2", "u32": "<u4"}
"""Tokenizers of files that hold ids, and the type of these."""
_LINES = 512  # bytes of text tokenized at once: no token spans two pieces


def python_docs() -> bytes:
    """The reference manual in `pydoc_data.topics`, topics in sorted order."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


_SOURCES = {"python-docs": python_docs}


@dataclass(frozen=True)
class Content:
    """The bytes of a `data_path`, mapped where there is a file.

    `check(start, stop)` checks these bytes against the digest `tree`.
    """

    data: np.ndarray
    tree: TreeDigest
    check: Callable[[int, int], None]


def read_source(path: str, tokenizer: str = "byte") -> Content:
    """The bytes of a `data_path`; `ConfigError` where there are none."""
    if path.startswith(BUILTIN):
        return _built_in(path.removeprefix(BUILTIN))
    tree = digest.of_path(path, WIDTHS.get(tokenizer))
    (file, *more) = tree.files or (None,)
    if file is None or more or file.name:
        raise ConfigError(f"data_path: {path} is a folder, and no file of tokens")
    if not file.size:
        raise ConfigError(f"data_path: {path} is empty")
    verified = VerifiedFile(path, file)
    return Content(verified.content, tree, verified.check)


def _built_in(name: str) -> Content:
    if name not in _SOURCES:
        raise ConfigError(
            f"data_path: no built-in data {name!r} (there is: "
            f"{', '.join(_SOURCES)}).{nearest(name, _SOURCES)}"
        )
    content = _SOURCES[name]()
    tree = digest.of_bytes(content)
    return Content(np.frombuffer(content, np.uint8), tree, _unchecked)


def _unchecked(start: int, stop: int) -> None:
    """The check of bytes that are in no file."""


def sampled_digest(content: np.ndarray) -> str:
    """The digest of older runs: of 64 blocks of 1 MiB, so of all bytes up to 64 MiB.

    A ledger that began with this digest keeps it.
    """
    blocks, block = 64, 1 << 20
    made = hashlib.sha256(str(len(content)).encode())
    last = max(0, len(content) - block)
    if len(content) <= blocks * block:
        made.update(content.data)
        return made.hexdigest()
    for start in sorted({last * i // (blocks - 1) for i in range(blocks)}):
        made.update(content[start : start + block].data)
    return made.hexdigest()


@dataclass(frozen=True)
class Tokens:
    """Token ids of the whole data, and how to read them."""

    ids: np.ndarray
    """Unsigned integers, one a token."""
    vocabulary: int
    """Every id is below it."""
    largest: int
    """The largest id of the data, or of the tokenizer."""
    tokenizer: dict[str, Any]
    """Keys of a checkpoint, to decode with: the kind, and the characters of `char`."""
    token_bytes: int
    """Bytes of the file per token, for `char` 0: a character has no fixed width."""
    check: Callable[[int, int], None] = _unchecked
    """Checks the bytes of the tokens from one up to another."""
    sources: dict[str, TreeDigest] = field(default_factory=dict)
    """The digests of other files that decide the ids, by kind."""


def tokenize(content: Content, kind: str, subwords: str | None = None) -> Tokens:
    """Tokens of `content` under the tokenizer `kind`, or the one in a file."""
    if subwords is not None:
        content.check(0, len(content.data))
        return _subwords(content.data, subwords)
    if kind == "char":
        content.check(0, len(content.data))
        return _characters(content.data)
    if kind == "byte":  # the vocabulary is 256, whatever bytes a text has
        largest = _largest(content, content.data)
        return Tokens(content.data, 256, largest, {"kind": "byte"}, 1, content.check)
    width = np.dtype(WIDTHS[kind]).itemsize
    if len(content.data) % width:
        raise ConfigError(
            f"data_path: {len(content.data)} bytes are no whole number of {kind} tokens"
        )
    ids = content.data.view(WIDTHS[kind])

    def check(start: int, stop: int) -> None:
        content.check(width * start, width * stop)

    largest = _largest(content, ids)
    return Tokens(ids, largest + 1, largest, {"kind": kind}, width, check)


def _largest(content: Content, ids: np.ndarray) -> int:
    """The largest id, from the digest's pass over the file."""
    found = content.tree.files[0].range
    return int(ids.max(initial=0)) if found is None else found[2]


def _subwords(content: np.ndarray, path: str) -> Tokens:
    """The ids by a `tokenizer.json` of Hugging Face's, some lines at a time."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingPackage(
            f"data.tokenizer_path needs tokenizers: {install('huggingface')}"
        ) from error
    file = digest.of_path(path)
    tokenizer = Tokenizer.from_file(path)
    lines = _text(content).splitlines(keepends=True)
    pieces = ["".join(lines[at : at + _LINES]) for at in range(0, len(lines), _LINES)]
    found = tokenizer.encode_batch(pieces, add_special_tokens=False)
    ids = np.concatenate([np.array(each.ids, np.uint32) for each in found])
    kind = {"kind": "huggingface", "file": path.rpartition("/")[2]}
    size = tokenizer.get_vocab_size()
    return Tokens(ids, size, size - 1, kind, 0, sources={"tokenizer": file})


def _text(content: np.ndarray) -> str:
    try:
        return bytes(content).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"data_path: not UTF-8 text at byte {error.start}; "
            "use the tokenizer 'byte' for other files"
        ) from error


def _characters(content: np.ndarray) -> Tokens:
    text = _text(content)
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    alphabet, ids = np.unique(points, return_inverse=True)
    characters = "".join(map(chr, alphabet.tolist()))
    narrow = np.uint8 if len(alphabet) <= 256 else np.uint32
    tokenizer = {"kind": "char", "characters": characters}
    width = 1 if len(text) == len(content) else 0
    count = len(alphabet)
    return Tokens(ids.astype(narrow), count, count - 1, tokenizer, width)


def check_vocabulary(
    vocabulary: int, kind: str, sizes: Sequence[Sequence[int]], declared: int | None
) -> None:
    """Refuse tokens that no embedding of the model can hold.

    `sizes` are the shapes of the parameters. A table that embeds V ids has a
    dimension of V, so a model without a dimension that large cannot take them.
    """
    largest = declared or max((max(shape, default=0) for shape in sizes), default=0)
    if vocabulary > largest:
        raise ConfigError(
            f"the data has {vocabulary} different tokens ({kind}), the model "
            f"takes at most {largest}; use another tokenizer or a larger vocabulary"
        )
