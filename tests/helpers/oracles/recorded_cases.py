"""Recorded derivative cases: programs, arguments and what JAX said of them.

An archive is a zip of three LZMA streams: `index.jsonl` (one case a line),
`modules.mlir` (the programs, one after the other) and `arrays.bin` (every array,
equal ones once). Cotangents and tangents are not stored: they are drawn from the
case's seed. `tests/harvest/record.py` writes archives, `tests/harvest` reads them.
"""

import json
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name bfloat16)
import numpy as np

Arrays = tuple[np.ndarray, ...]

#: The streams of arrays in a case, in the order of the file.
STREAMS = ("args", "results", "gradients", "tangents", "second")


@dataclass(frozen=True)
class Recorded:
    """One program with JAX's answers.

    `gradients` belong to the floating-point arguments, `tangents` to such results.
    `second` are the gradients of the VJP, as a function of the floating-point
    arguments and the cotangents; empty where the order was 1.
    """

    name: str
    text: str
    args: Arrays
    results: Arrays
    gradients: Arrays
    tangents: Arrays
    second: Arrays

    def __str__(self) -> str:
        return self.name

    @property
    def seed(self) -> int:
        """Where the random cotangents and tangents come from."""
        return seed_of(self.text)

    @property
    def wrt(self) -> list[int]:
        """The arguments to differentiate for."""
        return [i for i, x in enumerate(self.args) if is_float(x)]


def seed_of(text: str) -> int:
    """A seed that depends on the program alone."""
    return zlib.adler32(text.encode())


def is_float(x: Any) -> bool:
    """Whether a value has a cotangent: bfloat16 and complex have."""
    return not (np.issubdtype(x.dtype, np.integer) or x.dtype == np.bool_)


def draw(values: Sequence[Any], seed: int) -> list[np.ndarray]:
    """A standard normal array of the shape and dtype of each floating-point value."""
    rng = np.random.default_rng(seed)
    drawn = []
    for v in values:
        if not is_float(v):
            continue
        x = rng.standard_normal(v.shape)
        if v.dtype == np.complex64:
            x = x + 1j * rng.standard_normal(v.shape)
        drawn.append(np.asarray(x).astype(v.dtype))
    return drawn


def _packed(cases: Iterable[Recorded]) -> tuple[list[str], str, bytes]:
    """(index lines, all texts, all bytes)."""
    lines, texts, blob = [], [], bytearray()
    places: dict[bytes, int] = {}
    at = 0
    for case in cases:
        entry: dict[str, Any] = {"name": case.name, "text": [at, len(case.text)]}
        at += len(case.text)
        texts.append(case.text)
        for stream in STREAMS:
            entry[stream] = []
            for x in getattr(case, stream):
                data = x.tobytes()
                if data not in places:
                    places[data] = len(blob)
                    blob += data
                entry[stream].append([str(x.dtype), list(x.shape), places[data]])
        lines.append(json.dumps(entry, separators=(",", ":")))
    return lines, "".join(texts), bytes(blob)


def save(path: Path, cases: Iterable[Recorded]) -> None:
    """Write an archive; the same cases give the same bytes."""
    lines, texts, blob = _packed(cases)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, data in (
            ("index.jsonl", "\n".join(lines)),
            ("modules.mlir", texts),
            ("arrays.bin", blob),
        ):
            info = zipfile.ZipInfo(name)  # the epoch of zip, not of the clock
            info.compress_type = zipfile.ZIP_LZMA
            archive.writestr(info, data)


def load(path: Path) -> list[Recorded]:
    """The cases of an archive."""
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("index.jsonl").decode().splitlines()
        texts = archive.read("modules.mlir").decode()
        blob = archive.read("arrays.bin")

    def array(dtype: str, shape: list[int], at: int) -> np.ndarray:
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        if not count:
            return np.zeros(shape, kind)
        return np.frombuffer(blob, kind, count, at).reshape(shape)

    cases = []
    for line in lines:
        entry = json.loads(line)
        start, length = entry["text"]
        streams = {s: tuple(array(*a) for a in entry[s]) for s in STREAMS}
        text = texts[start : start + length]
        cases.append(Recorded(entry["name"], text, **streams))
    return cases
