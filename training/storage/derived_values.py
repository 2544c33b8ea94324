"""First values of parameters that follow from frozen tensors, as DoRA's magnitudes."""

from collections.abc import Iterable, Mapping

import numpy as np

from pcp.errors import ConfigError
from pcp.initializer import parse
from pcp.manifest import Parameter
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.runtime.program.drawing import of_frozen


def derived(
    parameters: Iterable[Parameter], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """First values of the parameters that follow from frozen tensors in `arrays`.

    Parameters among `arrays` are left out. The frozen tensors have the program's types.
    `ConfigError` for a vector of zeros: DoRA divides by its length.
    """
    found: dict[str, np.ndarray] = {}
    for p in parameters:
        init = parse(p.init)
        if p.name in arrays or init.of not in arrays:
            continue
        made = of_frozen(init, arrays[init.of])
        if not made.all():
            raise ConfigError(
                f"{p.name} begins as the lengths of the vectors of {init.of} along "
                f"dimension {init.dimension}, and number {int(made.argmin())} is zero; "
                "leave the matrix out of what is adapted"
            )
        found[p.name] = made.astype(numpy_dtype(p.dtype))
    return found
