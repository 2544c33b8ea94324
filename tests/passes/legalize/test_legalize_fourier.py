"""Fourier transforms of any length, rank and precision in IREE, against numpy."""

import numpy as np
import pytest
from helpers.servers.iree_server import Iree

from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.legalize.legalize import Legalize

TYPES = {"f32": (np.float32, np.complex64), "f64": (np.float64, np.complex128)}


def type_of(array: np.ndarray) -> str:
    """The tensor type of an array."""
    part = "f32" if array.dtype in (np.float32, np.complex64) else "f64"
    element = f"complex<{part}>" if np.iscomplexobj(array) else part
    return f"tensor<{''.join(f'{n}x' for n in array.shape)}{element}>"


def program(kind: str, lengths: list[int], name: str, x: np.ndarray, y: np.ndarray):
    """A function that transforms."""
    return f"""
func.func @{name}(%x: {type_of(x)}) -> {type_of(y)} {{
  %0 = stablehlo.fft %x, type = {kind}, length = {lengths}
    : ({type_of(x)}) -> {type_of(y)}
  return %0 : {type_of(y)}
}}"""


def example(kind: str, lengths: list[int], part: str) -> tuple[np.ndarray, np.ndarray]:
    """An argument with a batch of two, and its transform."""
    real, whole = TYPES[part]
    rng = np.random.default_rng(lengths)
    axes = tuple(range(1, 1 + len(lengths)))
    signal = rng.normal(size=(2, *lengths))
    if kind == "RFFT":
        return signal.astype(real), np.fft.rfftn(signal, axes=axes).astype(whole)
    if kind == "IRFFT":
        half = np.fft.rfftn(signal, axes=axes)
        return half.astype(whole), signal.astype(real)
    signal = signal + 1j * rng.normal(size=signal.shape)
    transform = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn}[kind]
    return signal.astype(whole), transform(signal, axes=axes).astype(whole)


SAMPLE = [[6], [3, 4]]
REST = [[1], [2], [5], [8], [4, 8], [3, 2, 5]]


@pytest.mark.parametrize(
    ("part", "sizes"),
    [
        ("f64", SAMPLE),
        pytest.param("f64", REST, marks=pytest.mark.slow),
        pytest.param("f32", SAMPLE + REST, marks=pytest.mark.slow),
    ],
)
def test_any_transform(iree: Iree, part: str, sizes: list[list[int]]) -> None:
    cases = [(k, n) for k in ("FFT", "IFFT", "RFFT", "IRFFT") for n in sizes]
    texts, calls, wants = [], {}, []
    for i, (kind, lengths) in enumerate(cases):
        x, y = example(kind, lengths, part)
        texts.append(program(kind, lengths, f"f{i}", x, y))
        calls[f"f{i}"] = [x]
        wants.append(y)
    module = parse("".join(texts))
    Legalize().run(module)
    once = str(module)
    Legalize().run(module)
    assert str(module) == once
    bound = 2e-6 if part == "f32" else 1e-13
    for case, answer, want in zip(cases, iree.run_all(once, calls), wants, strict=True):
        assert not isinstance(answer, str), f"{case}: {answer}"
        scale = np.abs(want).max()
        np.testing.assert_allclose(
            answer[0], want, rtol=0, atol=bound * scale, err_msg=str(case)
        )


def test_a_long_odd_transform_is_refused() -> None:
    x = np.zeros(5001, np.complex64)
    module = parse(program("FFT", [5001], "main", x, x))
    with pytest.raises(PassError, match=r"3:8: stablehlo.fft: a length of 5001"):
        Legalize().run(module)
