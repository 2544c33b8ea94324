"""An ATen program becomes StableHLO by torch-mlir's passes, whose diagnostics are kept.

`torch_mlir.fx.export_and_import` has them printed to stderr and raises without them.
Here the passes run one pipeline after the other; a failure is an `IRError` that names
the op and the innermost line of Python outside of torch that the op comes from.
"""

import re
from collections.abc import Iterable
from typing import Any

from pcp.dialect.bindings import PassManager, ir, torch_importer
from pcp.errors import IRError
from pcp.frontends.pytorch.constants import literal_hooks
from pcp.frontends.pytorch.places import innermost

#: What `export_and_import` runs for StableHLO, in its order.
PIPELINES = (
    "builtin.module(torchdynamo-export-to-torch-backend-pipeline)",
    "builtin.module(torch-backend-to-stablehlo-backend-pipeline)",
)

_FRAME = re.compile(r'"([^"]+)":(\d+):')
# An op that torch-mlir has no class for is a `torch.operator` with its name as text.
_NAMED = re.compile(
    r'torch\.operator"?\s*\(?"torch\.([\w.]+)"|name = "torch\.([\w.]+)"'
)
_OP = re.compile(r"'torch\.([\w.]+)'")


def lower(torch: Any, program: Any) -> str:
    """StableHLO text with locations of an exported program without mutation."""
    fx = torch_importer()
    with ir.Context() as context:
        fx.torch_d.register_dialect(context)
        context.enable_multithreading(False)  # one function: threads would only wait
        importer = fx.FxImporter(context=context, hooks=literal_hooks(torch, fx))
        importer.import_frozen_program(program, func_name="main")
        for pipeline in PIPELINES:
            run(importer.module, pipeline)
        return importer.module.operation.get_asm(enable_debug_info=True)


def run(module: ir.Module, pipeline: str) -> None:
    """Run one pipeline; `IRError` with what its passes say."""
    try:
        PassManager.parse(pipeline).run(module.operation)
    except ir.MLIRError as error:
        raise IRError(_told(error.error_diagnostics)) from error


def _told(diagnostics: Iterable[Any]) -> str:
    """One line of the first diagnostic: place, op, reason."""
    first = next(iter(diagnostics), None)
    if first is None:
        return "torch-mlir stops, and says nothing"
    where = innermost(_FRAME.findall(str(first.location)))
    prefix = f"{where}: " if where else ""
    reason = first.message.partition("\n")[0].partition(" that was explicitly")[0]
    return f"{prefix}torch-mlir stops at {_op_of(first) or 'this line'}: {reason}"


def _op_of(diagnostic: Any) -> str | None:
    """The op as torch names it, `aten.histc`."""
    texts = [diagnostic.message, *(note.message for note in diagnostic.notes)]
    for pattern in (_NAMED, _OP):
        for found in filter(None, map(pattern.search, texts)):
            name = next(filter(None, found.groups()))
            if name != "operator":
                return name
    return None
