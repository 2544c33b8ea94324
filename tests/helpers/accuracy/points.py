"""Where elementary functions are measured: special values, and all magnitudes."""

import ml_dtypes
import numpy as np

TYPES: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
#: Seams of implementations: where a result overflows, a branch is taken, a root lies.
SEAMS = (
    *(0, 0.25, 0.4142135, 0.4375, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 9, 10, 16, 17),
    *(20, 22, 34, 50, 64, 87.3, 87.34, 88, 88.5, 88.72, 88.73, 89, 89.41, 89.42),
    *(103.9, 104, 127, 128, 708, 709.7, 709.8, 710, 710.4, 710.5, 745, 746, 1024),
    *(65504, 65536, 2.0**20, 2.0**24, 2.0**31, 2.0**32, 2.0**53, 2.0**63),
    *(np.pi, np.pi / 2, np.pi / 4, np.log(2), 1.4616321449683623, 16367173.0 * 2.0**72),
    6381956970095103.0 * 2.0**797,  # nearest of all f64 to a multiple of π/2
)


def specials(dtype: np.dtype) -> np.ndarray:
    """Both signs of the seams, of the limits of the type, infinity and NaN."""
    info = ml_dtypes.finfo(dtype)
    least, eps = float(info.smallest_normal), float(info.eps)
    limits = (float(info.max), least, 2 * least, eps, 1 + eps, 1 - eps / 2)
    subnormal = (float(info.smallest_subnormal), least / 2)
    with np.errstate(over="ignore"):
        found = np.array([*SEAMS, *limits, *subnormal, np.inf, np.nan]).astype(dtype)
    return np.concatenate([found, -found])


def drawn(dtype: np.dtype, count: int, seed: int) -> np.ndarray:
    """`count` numbers: of all bit patterns, moderate ones, and those around ±1."""
    random = np.random.default_rng(seed)
    info = ml_dtypes.finfo(dtype)
    sixth = count // 6
    word = np.dtype(f"u{dtype.itemsize}")
    near = np.exp(random.uniform(np.log(float(info.eps) / 2), 0, sixth))
    signs = random.choice([-1.0, 1.0], (2, sixth))
    parts = [
        random.integers(0, np.iinfo(word).max, sixth, word, endpoint=True).view(dtype),
        random.uniform(-10, 10, sixth).astype(dtype),
        random.uniform(-100, 100, sixth).astype(dtype),
        (signs[0] * np.exp(random.uniform(-20, 5, sixth))).astype(dtype),
        (signs[0] * (1 + signs[1] * near)).astype(dtype),
        random.uniform(-1, 1, count - 5 * sixth).astype(dtype),
    ]
    return np.concatenate(parts)


def operands(dtype: np.dtype, arity: int, count: int, seed: int = 0) -> list:
    """Arrays of `count`, the special values (pairs of them) at both ends.

    A length that no vector divides measures the loop's last, scalar rounds, too.
    """
    edge = specials(dtype)
    if arity == 1:
        inner = drawn(dtype, count - 2 * edge.size, seed)
        return [np.concatenate([edge, inner, edge])]
    random = np.random.default_rng(seed)
    pairs = [m.reshape(-1) for m in np.meshgrid(edge, edge)]
    chosen = random.permutation(pairs[0].size)[: count // 3]
    rest = count - chosen.size
    x, y = (drawn(dtype, rest, seed + i) for i in (1, 2))
    x, y = random.permutation(x), random.permutation(y)
    x = np.where(np.arange(rest) % 2 == 0, abs(x), x).astype(dtype)
    return [np.concatenate([p[chosen], v]) for p, v in zip(pairs, (x, y), strict=True)]
