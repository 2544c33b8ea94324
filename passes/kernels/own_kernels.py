"""pcp-kernels: our own kernels in place of the ops that they are faster than."""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.errors import PassError, nearest
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before, operations, replace, sweep
from pcp.passes.kernels import objects, own_attention
from pcp.passes.kernels.cuda_products import product_call
from pcp.passes.kernels.own_dispatch import Executables
from pcp.passes.kernels.own_ptx import PtxExecutables
from pcp.passes.kernels.own_table import ENTRIES, Place

CUDA = "sm_80"
"""The set of NVIDIA's GPUs from this on."""


@dataclass(frozen=True)
class OwnKernels(Pass):
    """Call kernels of `passes/kernels/native` where the table has an entry.

    Assumes what pcp-legalize leaves; `set` is the instruction set of the processor that
    the program is for. Everything else stays as it is. A kernel adds in another order
    than IREE's code. Before and after `pcp-kernels{set=x86-64-v4}`:

        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
            : (tensor<1x512xf32>, tensor<1376x512xf32>) -> tensor<1x1376xf32>

        "stream.executable"() <{sym_name = "pcp_kernels_product"}> ({ ... })
            {hal.executable.objects = #hal.executable.objects<...>}
        %0 = "flow.dispatch"(%x, %w)
            <{entry_points = [@pcp_kernels_product::@pcp_product_f32_96_1_1376_512_15]}>
    """

    name = "pcp-kernels"
    set: str

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        if self.set not in objects.FORMATS:
            raise PassError(
                f"pcp-kernels: unknown instruction set {self.set!r} (known: "
                f"{', '.join(objects.FORMATS)}).{nearest(self.set, objects.FORMATS)}"
            )
        context = module.context
        unregistered = context.allow_unregistered_dialects
        context.allow_unregistered_dialects = True  # flow, stream and hal are IREE's
        try:
            with context:
                if self.set == CUDA:
                    _on_cuda(module)
                else:
                    self._on_processor(module)
        finally:
            context.allow_unregistered_dialects = unregistered

    def _on_processor(self, module: ir.Module) -> None:
        executables = Executables(self.set)
        if objects.best(own_attention.SOURCE, self.set):
            roots = [o for o in operations(module) if o.name == own_attention.ROOT]
            if any([own_attention.attend(op, executables) for op in roots]):
                sweep(module.operation)
        for op in operations(module):
            if (found := self._find(op)) is not None:
                _call(op, found, executables)
        executables.write(module)

    def _find(self, op: ir.Operation) -> Place | None:
        for entry in ENTRIES:
            if op.name == entry.root and entry.serves(self.set):
                if (found := entry.find(op)) is not None:
                    return found
        return None


def _on_cuda(module: ir.Module) -> None:
    executables = PtxExecutables()
    for op in operations(module):
        if op.name != "stablehlo.dot_general":
            continue
        if (found := product_call(op)) is None:
            continue
        with before(op):
            type_ = hlo.tensor(found.shape, ir.F32Type.get())
            value = executables.dispatch(found.call, list(op.operands), type_)
            if found.parts > 1:
                value = hlo.reduce_sum(value, [0])
            replace(op, [_shaped(value, op)])
    executables.write(module)


def _shaped(value: ir.Value, op: ir.Operation) -> ir.Value:
    shape = list(hlo.shape_of(op.result))
    same = shape == list(hlo.shape_of(value))
    return value if same else hlo.reshape(value, shape)


def _call(op: ir.Operation, found: Place, executables: Executables) -> None:
    with before(op):
        type_ = hlo.tensor(found.shape, ir.F32Type.get())
        (value,) = executables.dispatch(found.call, found.operands, [type_])
        replace(op, [_shaped(value, op)])
