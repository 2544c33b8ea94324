"""The only file that imports the MLIR bindings.

They come from the torch-mlir wheel (which needs no torch). The `mlir` package
can take its place here one day; everything else says
`from pcp.dialect.bindings import ir`.
"""

from importlib import import_module
from types import ModuleType

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo as stablehlo
from torch_mlir.dialects import ext
from torch_mlir.passmanager import PassManager

__all__ = ["PassManager", "ext", "ir", "stablehlo", "torch_importer"]


def torch_importer() -> ModuleType:
    """`torch_mlir.fx`, which needs torch: for the PyTorch frontend alone."""
    return import_module("torch_mlir.fx")
