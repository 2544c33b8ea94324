"""pcp-declare-grad: a `pcp.grad` for the gradient that training is to have."""

from dataclasses import dataclass

from pcp.autodiff.core import functions
from pcp.autodiff.passes.derivatives import declared, has_value
from pcp.dialect.base import symbol, text
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import refuse


@dataclass(frozen=True)
class DeclareGrad(Pass):
    """Declare the gradient of a function, for `pcp-grad` to expand.

    Assumes that `@func` is there. A `pcp.grad` of this name that the program declares
    itself stays, with its `wrt`; it is an error if it is for another function, or
    leaves the value out. With `pcp-declare-grad{func=main name=grad}`

        func.func @main(%w: tensor<f32>) -> tensor<f32>

    becomes the same and

        "pcp.grad"() {fn = @main, sym_name = "grad", wrt = []} : () -> ()
    """

    name = "pcp-declare-grad"
    func: str = "main"
    name_: str = ""

    def run(self, module: ir.Module) -> None:
        """Add the op behind `@func`, unless it is there."""
        name = self.name_ or f"{self.func}_grad"
        for op in declared(module):
            if text(op, "sym_name") == name:
                return _check(op, self.func)
        source = functions.find(module, self.func)
        if name in functions.functions(module):
            raise PassError(
                f"{location_string(source.location)}: @{name} is already in the "
                f"module, and is to be the gradient of @{self.func}; rename it"
            )
        with ir.InsertionPoint.after(source), source.location:
            attributes = {
                "sym_name": ir.StringAttr.get(name),
                "fn": ir.FlatSymbolRefAttr.get(self.func),
                "wrt": ir.ArrayAttr.get([]),
            }
            ir.Operation.create("pcp.grad", attributes=attributes)


def _check(op: ir.Operation, func: str) -> None:
    """`PassError` unless the program's own declaration is what was asked for."""
    if symbol(op, "fn") != func or not has_value(op):
        refuse(op, f"training needs the value and the gradient of @{func} here")
