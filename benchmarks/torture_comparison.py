"""Results of ours against JAX's, for benchmarks/torture.py: what is wrong, in words."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

#: Compares our results with JAX's and gives what is wrong, or "".
Comparison = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], str]

#: Relative to an element, or to the smaller of 1 and the tensor's largest one: JAX's
#: own tolerances, times what two orders of summation differ by.
TOLERANCES = {
    "bfloat16": 2e-2,
    "float16": 2e-3,
    "float32": 1e-5,
    "float64": 1e-12,
    "complex64": 1e-5,
    "complex128": 1e-12,
}


def difference(
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    tolerances: dict[str, float],
    largest: float = 1.0,
) -> str:
    """What is wrong with our results, or ""."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results, not {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {i}: {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        tolerance = (TOLERANCES | tolerances).get(b.dtype.name)
        if wrong := _unequal(a, b, tolerance, largest):
            return f"result {i}: {wrong}"
    return ""


def _unequal(
    a: np.ndarray, b: np.ndarray, tolerance: float | None, largest: float
) -> str:
    if tolerance is None:
        return _listed(a, b, a != b)
    wide = np.complex128 if np.iscomplexobj(b) else np.float64
    x, y = a.astype(wide), b.astype(wide)
    finite = np.isfinite(y)
    scale = float(np.abs(y[finite]).max(initial=0.0))
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(x - y) <= tolerance * (np.abs(y) + min(max(scale, 0.1), largest))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    if np.iscomplexobj(b):  # an infinity of the one part says nothing of the other
        same |= _alike(x.real, y.real) & _alike(x.imag, y.imag)
    return _listed(a, b, ~np.where(finite, near, same))


def _alike(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x == y) | (np.isnan(x) & np.isnan(y)) | np.isclose(x, y, rtol=1e-5)


def _listed(a: np.ndarray, b: np.ndarray, wrong: np.ndarray) -> str:
    """How many elements, and the first of them."""
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = f"{int(wrong.sum())} of {wrong.size}"
    return f"{count} elements; at {at} {a[at]!r}, not {b[at]!r}"


#: Primitives whose results are sums that cancel: relative to the tensor's largest.
SUMS = frozenset(
    "conv_general_dilated cumsum custom_linear_solve dot_general fft lu "
    "reduce_sum reduce_window reduce_window_sum triangular_solve".split()
)

# --- factorizations, which are not unique ---


def _near(a: np.ndarray, b: np.ndarray, what: str) -> str:
    wide = 1e-4 if b.dtype.name in ("float32", "complex64") else 1e-10
    off = float(np.abs(a - b).max(initial=0.0))
    limit = wide * max(1.0, float(np.abs(b).max(initial=0.0)))
    return "" if off <= limit else f"{what}: {off:.1e} off"


def _first(problems: Iterator[str]) -> str:
    return next(filter(None, problems), "")


def _adjoint(x: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(x, -1, -2))


def _unitary(q: np.ndarray) -> str:
    eye = np.broadcast_to(
        np.eye(q.shape[-1], dtype=q.dtype), (*q.shape[:-2],) + (q.shape[-1],) * 2
    )
    return _near(_adjoint(q) @ q, eye, "not unitary")


def _same_qr(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str:
    (q, r), (q_, r_) = ours, theirs
    return _first(iter([_near(q @ r, q_ @ r_, "q r"), _unitary(q)]))


def _same_eigh(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str:
    (v, w), (v_, w_) = ours, theirs
    made, made_ = ((v * w[..., None, :]) @ _adjoint(v) for v, w in ((v, w), (v_, w_)))
    checks = [_near(w, w_, "eigenvalues"), _near(made, made_, "v w vᴴ"), _unitary(v)]
    return _first(iter(checks))


def _same_svd(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str:
    values = _near(ours[0], theirs[0], "singular values")
    if len(ours) == 1 or values:
        return values
    made = [_product(*parts) for parts in (ours, theirs)]
    product = _near(made[0], made[1], "u s vᴴ")
    checks = [product, _unitary(ours[1]), _unitary(_adjoint(ours[2]))]
    return _first(iter(checks))


def _product(s: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    k = s.shape[-1]
    return (u[..., :, :k] * s[..., None, :]) @ v[..., :k, :]


def _same_cholesky(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str:
    """The factor: what stands above its diagonal is anybody's, as StableHLO has it."""
    (a,), (b,) = ours, theirs
    return difference([np.tril(a)], [np.tril(b)], {}, np.inf)


# --- sorts, which may exchange what compares equal ---


def unstable(dimension: int, keys: int) -> Comparison:
    """Equal keys in order; with them the same rows, in any order among equal ones."""

    def rows(results: Sequence[np.ndarray]) -> list[np.ndarray]:
        lines = [np.moveaxis(x, dimension, -1) for x in results]
        order = np.lexsort(lines[::-1], axis=-1)
        return [np.take_along_axis(x, order, axis=-1) for x in lines]

    def compare(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str:
        wrong = difference(ours[:keys], theirs[:keys], {})
        return wrong or difference(rows(ours), rows(theirs), {})

    return compare


FACTORIZED: dict[str, Comparison] = {
    "cholesky": _same_cholesky,
    "qr": _same_qr,
    "eigh": _same_eigh,
    "svd": _same_svd,
}
