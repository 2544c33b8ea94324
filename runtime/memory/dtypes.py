"""The numpy types of element types by name: MLIR's, and those in descriptors.

Types that numpy does not have come from the optional package `ml_dtypes`;
without it, their bits are unsigned integers of the same width.
"""

from functools import cache

import numpy as np

from pcp.errors import BundleError, ProtocolError

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


@cache
def name_of(dtype: np.dtype) -> str:
    """`dtype.name`, from a cache: numpy builds the text anew each time."""
    return dtype.name


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
    """A type of numpy itself, as wide as `name`'s, for moving bytes."""
    if name in _ML_DTYPES:
        return np.dtype(_ML_DTYPES[name][1])
    return numpy_dtype(name)


def sent_dtype(name: object) -> np.dtype:
    """The numpy type of a name in a peer's descriptor; ProtocolError if it is none.

    Arrays of objects have no such name.
    """
    try:
        found = np.dtype(name) if isinstance(name, str) else None
    except TypeError:
        found = _ml_dtype(str(name))
    if found is None or found.hasobject:
        raise ProtocolError(f"a peer has arrays of {name!r}, which are none here")
    return found


def _ml_dtype(name: str) -> np.dtype | None:
    try:
        import ml_dtypes
    except ImportError:
        raise ProtocolError(
            f"arrays of {name} need the package ml_dtypes on this machine"
        ) from None
    kind = getattr(ml_dtypes, name, None)
    is_type = isinstance(kind, type) and issubclass(kind, np.generic)
    return np.dtype(kind) if is_type else None
