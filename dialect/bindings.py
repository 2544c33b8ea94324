"""The only file that imports the MLIR bindings.

They come from the torch-mlir wheel (which needs no torch). The `mlir` package
can take its place here one day; everything else says
`from pcp.dialect.bindings import ir`.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from pcp.errors import MissingPackage, install

try:
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _stablehlo as stablehlo
    from torch_mlir.dialects import ext
    from torch_mlir.passmanager import PassManager
except ImportError as error:  # a worker has none; or another version's
    raise MissingPackage(
        f"this needs pcp's compiler ({error}): {install('compiler')}"
    ) from error

__all__ = ["PassManager", "ext", "ir", "stablehlo", "torch_importer"]


def _stand_in(dialect: str) -> None:
    """An empty module where the wheel has no Python classes for a dialect's ops.

    The bindings import that module whenever they meet such an op, and a failing
    import is tried again each time: four fifths of the time of a derivative.
    """
    name = f"torch_mlir.dialects.{dialect}"
    if name not in sys.modules and find_spec(name) is None:
        sys.modules[name] = ModuleType(name)


for _dialect in ("chlo", "pcp", "stablehlo"):
    _stand_in(_dialect)


def torch_importer() -> ModuleType:
    """`torch_mlir.fx`, which needs torch: for the PyTorch frontend alone."""
    return import_module("torch_mlir.fx")
