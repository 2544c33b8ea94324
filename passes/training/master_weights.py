"""pcp-master-weights: training keeps f32 of what a model has in fewer bits."""

from collections.abc import Sequence
from dataclasses import dataclass

from pcp.dialect import function_body, hlo
from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.passes.core import functions
from pcp.passes.core.base import Pass
from pcp.passes.core.narrow_floats import MOVES, is_narrow
from pcp.passes.core.rewriting import attributes, before, defining


@dataclass(frozen=True)
class MasterWeights(Pass):
    """Make f32 the parameters of a training program; round them where they are used.

    An update is often smaller than half of a parameter's last place: of 1.0 that is
    0.002 in bf16, and a step of AdamW at 1e-3 would leave it as it is for ever. So
    what is initialised, updated, averaged and saved is a master copy in f32
    (Micikevicius et al., arXiv:1710.03740), and the model rounds it once a step.

    Assumes roles (`pcp-infer-roles`); runs in front of the derivative, so that
    gradients come in f32 too (pcp-expand-training gives those as they were summed).
    Parameters of f32 and more stay as they are. The loss becomes f32, for means of it.
    What was widened says in `pcp.compute` from what. Before and after:

        func.func @main(%w: tensor<4xbf16> {pcp.role = "param"}, ...) -> tensor<bf16> {
          %0 = stablehlo.multiply %w, %x : tensor<4xbf16>

        func.func @main(%w: tensor<4xf32> {pcp.compute = bf16, pcp.role = "param"}, ...)
            -> (tensor<f32> {pcp.compute = bf16}) {
          %0 = stablehlo.convert %w : (tensor<4xf32>) -> tensor<4xbf16>
          %1 = stablehlo.multiply %0, %x : tensor<4xbf16>
    """

    name = "pcp-master-weights"
    func: str = "main"

    def run(self, module: ir.Module) -> None:
        """Rewrite the function's border."""
        function = functions.find(module, self.func)
        if function is None:
            raise PassError(f"{self.name}: the module has no function @{self.func}")
        with module.context, function.location:
            master_weights(function)


def master_weights(function: ir.Operation) -> None:
    """See `MasterWeights`."""
    entry = functions.entry(function)
    end = entry.operations[len(entry.operations) - 1].operation
    taken = functions.argument_attributes(function)
    given = functions.result_attributes(function)
    for argument, said in zip(entry.arguments, taken, strict=True):
        element = _narrow_element(argument)
        if element is not None and functions.string(said, functions.ROLE) == "param":
            said[functions.COMPUTE] = ir.TypeAttr.get(element)
            _widen(argument, element)
    if (element := _narrow_loss(end)) is not None:
        given[0][functions.COMPUTE] = ir.TypeAttr.get(element)
        with before(end):
            end.operands[0] = hlo.convert(end.operands[0], ir.F32Type.get())
    function_body.retype(function)
    functions.set_argument_attributes(function, taken)
    functions.set_result_attributes(function, given)


def _narrow_element(value: ir.Value) -> ir.Type | None:
    """The element type of a tensor of narrow floats, else None."""
    if not isinstance(value.type, ir.RankedTensorType):
        return None
    element = hlo.element_type(value)
    return element if is_narrow(element) else None


def _widen(argument: ir.Value, element: ir.Type) -> None:
    """Make it f32, and round it in front of the first op that uses it.

    Not at the top: a pipeline stage has what its own ops use.
    """
    uses = [(use.owner.operation, use.operand_number) for use in argument.uses]
    argument.set_type(hlo.like(argument, element=ir.F32Type.get()))
    if not uses:
        return
    with before(first_use([op for op, _ in uses], argument.owner)):
        rounded = hlo.convert(argument, element)
    for op, i in uses:
        op.operands[i] = rounded


def first_use(ops: list[ir.Operation], block: ir.Block) -> ir.Operation:
    """The first op of the block that is one of these, or has one in its regions."""
    users = {_ancestor(op, block) for op in ops}
    return next(op.operation for op in block.operations if op.operation in users)


def _ancestor(op: ir.Operation, block: ir.Block) -> ir.Operation:
    while op.block != block:
        op = op.parent.operation
    return op


def _narrow_loss(end: ir.Operation) -> ir.Type | None:
    """The element type of what a model returns first, if it is a narrow scalar."""
    losses = list(end.operands)
    if not losses or hlo.shape_of(losses[0]):
        return None
    return _narrow_element(losses[0])


# --- gradients ---------------------------------------------------------------


def unrounded_gradients(
    gradient: ir.Operation, masters: Sequence[bool], first: int = 1
) -> None:
    """Give the f32 sums that gradients of masters are made of, not those rounded.

    A derivative adds up in f32 (`autodiff.core.values`) and rounds to the type of the
    parameter, which the master's takes back to f32: both conversions go. So digits
    stay, and partial sums of a mesh's members may be scattered where they arise.
    `gradient` returns one gradient a parameter from result `first` on; `masters` says
    which of these are to be looked at.
    """
    entry = functions.entry(gradient)
    end = entry.operations[len(entry.operations) - 1].operation
    for i, master in enumerate(masters, first):
        if master and (wide := _before_rounding(end.operands[i])) is not None:
            end.operands[i] = wide


def _before_rounding(value: ir.Value) -> ir.Value | None:
    """The f32 value that was narrowed, moved about, and widened to this one."""
    op = defining(value, "convert")
    if op is None:
        return None
    moves = []
    inner = defining(op.operands[0])
    while inner is not None and inner.name in MOVES:
        moves.append(inner)
        inner = defining(inner.operands[0])
    if inner is None or inner.name != "stablehlo.convert":
        return None
    wide = inner.operands[0]
    if hlo.element_type(wide) != hlo.element_type(value):
        return None
    with before(op):
        for move in reversed(moves):
            type_ = hlo.like(move.result, element=hlo.element_type(wide))
            wide = hlo.op(move.name, [wide], [type_], **attributes(move)).result
    return wide
