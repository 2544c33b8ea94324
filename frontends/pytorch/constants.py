"""Constants of a traced PyTorch program, kept from torch-mlir.

It folds what is computed from them, and wrongly: an integer beside a constant of floats
is read as the bits of a float (`torch.ones(3) * -1` was 1.8e19, `torch.sign` of a
constant -2. was 1.). So it does not get to see one.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pcp.dialect.bindings import ir


def raw(tensor: Any) -> np.ndarray:
    """The bytes of a tensor; bfloat16, which numpy lacks, as int16."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return copied(tensor)


def to_numpy(tensor: Any) -> np.ndarray:
    """A C-contiguous copy on the host; bfloat16, which numpy lacks, as float32."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return copied(tensor)


def copied(tensor: Any) -> np.ndarray:
    """The numbers of a tensor on the CPU, in memory of their own."""
    # After `tensor.numpy()` torch would never let its storage be resized again.
    return np.array(np.from_dlpack(tensor.resolve_conj().resolve_neg()), order="C")


def constants(program: Any) -> Iterator[tuple[Any, Any]]:
    """Nodes that are constants, and their values: an array, or a number for all of it.

    Those that were lifted out of the graph stop being inputs of the program.
    """
    import torch
    from torch.export.graph_signature import InputKind

    aten, signature = torch.ops.aten, program.graph_signature
    lifted = {s.arg.name: s.target for s in _of(signature, InputKind.CONSTANT_TENSOR)}
    numbers = {
        aten.full.default: 1,
        aten.full_like.default: 1,
        aten.scalar_tensor.default: 0,
    }
    for node in list(program.graph.nodes):
        if node.op == "placeholder" and node.name in lifted:
            yield node, raw(program.constants[lifted[node.name]])
        elif node.target in numbers:
            number = node.args[numbers[node.target]]
            if isinstance(number, int | float):
                yield node, number
    signature.input_specs = [
        s for s in signature.input_specs if s.kind is not InputKind.CONSTANT_TENSOR
    ]


def _of(signature: Any, kind: Any) -> Iterator[Any]:
    return (spec for spec in signature.input_specs if spec.kind is kind)


def literal_hooks(torch: Any, fx: Any) -> Any:
    """What torch-mlir's importer writes out itself (the indices of `as_strided`)
    becomes dense constants: no pass of ours reads resource blobs."""

    class DenseLiterals(fx.FxImporterHooks):
        def resolve_literal(self, gni: Any, literal: Any, info: Any) -> Any:
            if not isinstance(literal, torch.Tensor) or literal.numel() < 2:
                return None
            name = str(literal.dtype).removeprefix("torch.")
            if not hasattr(np, name):  # bool_ arrives as uint8, bfloat16 not at all
                return None
            # Under export the tensor is fake to numpy, but its list is real.
            array = np.array(literal.tolist(), name)
            return _dense_literal(array, gni._cc.tensor_to_vtensor_type(literal))

    return DenseLiterals()


def _dense_literal(array: np.ndarray, type_: ir.Type) -> ir.Value:
    kinds = {"f": "f", "i": "si", "u": "ui"}
    context = type_.context
    spelling = f"{kinds[array.dtype.kind]}{array.dtype.itemsize * 8}"
    element = ir.Type.parse(spelling, context)
    with context:
        value = ir.DenseElementsAttr.get(array, type=element, shape=array.shape)
        return ir.Operation.create(
            "torch.vtensor.literal", results=[type_], attributes={"value": value}
        ).result
