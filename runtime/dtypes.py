"""MLIR's element types as numpy's.

Types that numpy does not have come from the optional package `ml_dtypes`;
without it, their bits are handled as unsigned integers of the same width.
"""

import numpy as np

from pcp.errors import BundleError

_NUMPY = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "i1": "bool",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
_ML_DTYPES = {
    "bf16": ("bfloat16", "uint16"),
    "f8E4M3FN": ("float8_e4m3fn", "uint8"),
    "f8E5M2": ("float8_e5m2", "uint8"),
    "f8E4M3FNUZ": ("float8_e4m3fnuz", "uint8"),
    "f8E5M2FNUZ": ("float8_e5m2fnuz", "uint8"),
}


def numpy_dtype(name: str) -> np.dtype:
    """The numpy type of an MLIR element type such as `bf16` or `i32`."""
    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    if name not in _ML_DTYPES:
        raise BundleError(f"this runtime has no arrays of {name}")
    foreign, bits = _ML_DTYPES[name]
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(bits)
    return np.dtype(getattr(ml_dtypes, foreign))


def bits_dtype(name: str) -> np.dtype:
    """A type numpy itself has, as wide as `name`'s, for moving bytes."""
    if name in _ML_DTYPES:
        return np.dtype(_ML_DTYPES[name][1])
    return numpy_dtype(name)
