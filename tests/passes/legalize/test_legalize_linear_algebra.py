"""cholesky and triangular_solve as IREE runs them, against numpy and JAX.

What must not be read is NaN in every argument here.
"""

from dataclasses import dataclass
from itertools import product

import jax
import numpy as np
import pytest
from helpers.oracles.legalized import legalized
from helpers.sampled import sampled
from helpers.servers.iree_server import Iree

from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations
from pcp.passes.legalize.legalize import Legalize

ELEMENTS = {
    "f32": np.float32,
    "f64": np.float64,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
}
SAMPLE = [
    "f32",
    "complex<f64>",
    *(pytest.param(x, marks=pytest.mark.slow) for x in ("f64", "complex<f32>")),
]
TRANSPOSES = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")


def numbers(element: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, complex ones in both parts."""
    rng = np.random.default_rng([seed, *shape])
    values = rng.normal(size=shape)
    if "complex" in element:
        values = values + 1j * rng.normal(size=shape)
    return values.astype(ELEMENTS[element])


def tolerance(element: str) -> float:
    """For matrices of condition ten or so."""
    return 1e-5 if "f32" in element else 1e-13


def type_of(element: str, shape: tuple[int, ...]) -> str:
    """`tensor<2x3xf32>`."""
    return f"tensor<{'x'.join(map(str, shape))}x{element}>"


def unread(a: np.ndarray, *, lower: bool, diagonal: bool = False) -> np.ndarray:
    """`a` with NaN in the triangle (and on the diagonal) that must not be read."""
    n = a.shape[-1]
    hidden = np.tri(n, k=0 if diagonal else -1, dtype=bool)
    return np.where(hidden.T if lower else hidden, np.nan, a).astype(a.dtype)


def agree(got: np.ndarray, want: np.ndarray, element: str, what: object) -> None:
    """Relative to the largest entry."""
    bound = tolerance(element) * np.abs(want).max(initial=1e-30)
    np.testing.assert_allclose(got, want, rtol=0, atol=bound, err_msg=str(what))


# --- cholesky ---


def cholesky_text(element: str, shape: tuple[int, ...], lower: bool, name: str) -> str:
    """A function that factors its argument."""
    type_ = type_of(element, shape)
    return f"""
func.func @{name}(%a: {type_}) -> {type_} {{
  %l = stablehlo.cholesky %a, lower = {str(lower).lower()} : {type_}
  return %l : {type_}
}}"""


def positive_definite(element: str, shape: tuple[int, ...]) -> np.ndarray:
    """A Hermitian matrix with eigenvalues in about [n, 4n]."""
    root = numbers(element, *shape)
    n = shape[-1]
    whole = root @ root.conj().swapaxes(-1, -2) + n * np.eye(n)
    return whole.astype(ELEMENTS[element])


SHAPES = [(1, 1), (2, 3, 5, 5), (37, 37)]


@sampled("element", SAMPLE, ["f32"])
def test_cholesky(iree: Iree, element: str) -> None:
    cases = list(product(SHAPES, (True, False)))
    texts, calls, wants = [], {}, []
    for i, (shape, lower) in enumerate(cases):
        a = positive_definite(element, shape)
        factor = np.linalg.cholesky(a)
        texts.append(cholesky_text(element, shape, lower, f"f{i}"))
        calls[f"f{i}"] = [unread(a, lower=lower)]
        wants.append(factor if lower else factor.conj().swapaxes(-1, -2))
    answers = iree.run_all(legalized("".join(texts)), calls)
    for case, answer, want in zip(cases, answers, wants, strict=True):
        assert not isinstance(answer, str), f"{case}: {answer}"
        agree(answer[0], want, element, case)


@pytest.mark.parametrize("n", [0, 3])
def test_no_matrices_and_no_rows(iree: Iree, n: int) -> None:
    shape = (0, n, n)
    empty = np.zeros(shape, np.float32)
    text = legalized(cholesky_text("f32", shape, True, "main"))
    (got,) = iree.run(text, [empty])
    assert got.shape == shape


def _hard() -> dict[str, np.ndarray]:
    good = positive_definite("f32", (3, 3))
    indefinite, singular, late = good.copy(), np.ones((3, 3), np.float32), good.copy()
    indefinite[0, 0] = -1
    late[2, 2] = 0.1
    with_nan, infinite = good.copy(), good.copy()
    with_nan[1, 0] = np.nan
    infinite[1, 1] = np.inf
    return {
        "good": good,
        "indefinite": indefinite,
        "singular": singular,
        "late": late,
        "nan": with_nan,
        "infinite": infinite,
    }


# Slow: the upper triangle is turned, which test_cholesky has, and a program more.
@sampled("lower", [True, False], 1)
def test_what_is_not_positive_definite_is_nan_as_in_jax(
    iree: Iree, lower: bool
) -> None:
    """One bad matrix does not spoil the others of its batch.

    For NaN in the input, JAX leaves some finite numbers; here none is.
    """
    batch = np.stack(list(_hard().values()))
    swapped = batch if lower else batch.swapaxes(-1, -2)
    text = legalized(cholesky_text("f32", batch.shape, lower, "main"))
    (got,) = iree.run(text, [unread(swapped, lower=lower)])
    want = np.asarray(
        jax.lax.linalg.cholesky(jax.numpy.asarray(batch), symmetrize_input=False)
    )
    got = got if lower else got.swapaxes(-1, -2)
    for name, a, b in zip(_hard(), got, want, strict=True):
        if name == "nan":
            assert np.isnan(b).any()
            b = np.where(np.tri(3, dtype=bool), np.nan, 0)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)


def test_half_precision_is_computed_in_f32() -> None:
    text = legalized(cholesky_text("bf16", (3, 3), True, "main"))
    assert "stablehlo.sqrt" in text
    assert "xbf16>" in text
    for line in text.splitlines():
        if "stablehlo.sqrt" in line or "stablehlo.divide" in line:
            assert "f32" in line


# --- triangular_solve ---


@dataclass(frozen=True)
class Flags:
    """The attributes of a triangular_solve."""

    left: bool
    lower: bool
    unit: bool
    transpose: str

    def text(self, a: str, b: str, name: str) -> str:
        """A function that solves."""
        left, lower, unit = (str(f).lower() for f in (self.left, self.lower, self.unit))
        return f"""
func.func @{name}(%a: {a}, %b: {b}) -> {b} {{
  %x = "stablehlo.triangular_solve"(%a, %b) <{{left_side = {left},
    lower = {lower}, unit_diagonal = {unit},
    transpose_a = #stablehlo<transpose {self.transpose}>}}> : ({a}, {b}) -> {b}
  return %x : {b}
}}"""

    def matrix(self, a: np.ndarray) -> np.ndarray:
        """What is solved with: the triangle of `a` that is read, transposed."""
        part = np.tril(a) if self.lower else np.triu(a)
        if self.unit:
            eye = np.eye(a.shape[-1], dtype=a.dtype)
            part = np.where(eye != 0, eye, part)
        if self.transpose == "NO_TRANSPOSE":
            return part
        part = part.swapaxes(-1, -2)
        return part.conj() if self.transpose == "ADJOINT" else part

    def solution(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """By a general solver, which knows nothing of triangles."""
        matrix = self.matrix(a)
        if self.left:
            return np.linalg.solve(matrix, b)
        flipped = np.linalg.solve(matrix.swapaxes(-1, -2), b.swapaxes(-1, -2))
        return flipped.swapaxes(-1, -2)


EVERY = [
    Flags(left, lower, unit, transpose)
    for left, lower, unit in product((True, False), repeat=3)
    for transpose in TRANSPOSES
]  # 24 of them


def check_solve(
    iree: Iree, element: str, flags: list[Flags], batch: tuple[int, ...], n: int, m: int
) -> None:
    """All of `flags` in one module."""
    texts, calls, wants = [], {}, []
    for i, flag in enumerate(flags):
        a = numbers(element, *batch, n, n, seed=i) / n
        a = (a + 2 * np.eye(n)).astype(a.dtype)
        b = numbers(element, *batch, *((n, m) if flag.left else (m, n)), seed=i)
        types = type_of(element, a.shape), type_of(element, b.shape)
        texts.append(flag.text(*types, f"f{i}"))
        calls[f"f{i}"] = [unread(a, lower=flag.lower, diagonal=flag.unit), b]
        wants.append(flag.solution(a, b))
    answers = iree.run_all(legalized("".join(texts)), calls)
    for flag, answer, want in zip(flags, answers, wants, strict=True):
        assert not isinstance(answer, str), f"{flag}: {answer}"
        agree(answer[0], want, element, flag)


def test_every_flag_of_triangular_solve(iree: Iree) -> None:
    check_solve(iree, "f32", EVERY, (2,), 4, 3)


@pytest.mark.slow  # 37 rows are several blocks in the tests above
@pytest.mark.parametrize("element", SAMPLE)
def test_several_blocks(iree: Iree, element: str) -> None:
    check_solve(iree, element, EVERY[::5], (2,), 70, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 2), (32, 1), (33, 4), (128, 7)])
@pytest.mark.parametrize("element", ELEMENTS)
def test_every_flag_element_and_size(iree: Iree, element: str, n: int, m: int) -> None:
    check_solve(iree, element, EVERY, (2,), n, m)


@pytest.mark.parametrize("n", [4, 70])
def test_a_zero_pivot_spoils_what_depends_on_it_only(iree: Iree, n: int) -> None:
    """JAX's rows before the pivot are ours; at it and behind, nothing is finite."""
    bad = n - 2
    a = np.tri(n, dtype=np.float32) / n + np.eye(n, dtype=np.float32)
    a[bad, bad] = 0
    b = numbers("f32", n, 2)
    flags = Flags(True, True, False, "NO_TRANSPOSE")
    text = flags.text(type_of("f32", a.shape), type_of("f32", b.shape), "main")
    (got,) = iree.run(legalized(text), [a, b])
    want = jax.lax.linalg.triangular_solve(a, b, left_side=True, lower=True)
    agree(got[:bad], np.asarray(want)[:bad], "f32", "rows before")
    assert not np.isfinite(want[bad:]).any()
    assert not np.isfinite(got[bad:]).any()


@pytest.mark.parametrize("empty", [(0, 3, 2), (2, 0, 2), (2, 3, 0)])
def test_nothing_to_solve(iree: Iree, empty: tuple[int, int, int]) -> None:
    batch, n, m = empty
    a, b = np.zeros((batch, n, n), np.float32), np.zeros(empty, np.float32)
    flags = Flags(True, True, False, "NO_TRANSPOSE")
    text = flags.text(type_of("f32", a.shape), type_of("f32", b.shape), "main")
    (got,) = iree.run(legalized(text), [a, b])
    assert got.shape == (batch, n, m)


def test_the_size_of_the_ir_does_not_depend_on_n() -> None:
    def count(n: int) -> int:
        square = type_of("f32", (n, n))
        flags = Flags(True, True, False, "NO_TRANSPOSE")
        text = cholesky_text("f32", (n, n), True, "f") + flags.text(square, square, "g")
        module = parse(text)
        Legalize().run(module)
        return len(operations(module))

    assert count(64) == count(1024)
    assert count(50) == count(1000)
