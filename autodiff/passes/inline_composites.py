"""pcp-inline-composites: the end of derivatives, of composites, rules and stops."""

from dataclasses import dataclass

from pcp.autodiff.core import functions
from pcp.dialect.bindings import PassManager, ir
from pcp.passes.core.base import Pass
from pcp.passes.core.stops import forget_derivatives


@dataclass(frozen=True)
class InlineComposites(Pass):
    """Put decompositions in the place of composites; drop derivative rules and stops.

    Assumes that every derivative that is wanted has been made: what is derived from
    the result later knows nothing of the program's own rules, nor of its stops. Leaves
    no composite, no `pcp.stop_gradient` and none of `pcp.custom_jvp`, `pcp.custom_vjp`
    and `pcp.without_derivative`, nor private functions that only these named, so that
    later passes see through. Calls stay. A composite whose decomposition has no body
    stays too; one that holds itself is an error.

        func.func private @relu(%a: tensor<4xf32>) -> tensor<4xf32> {
          %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
          %0 = stablehlo.maximum %a, %zero : tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        %y = stablehlo.composite "jax.relu" %x {decomposition = @relu}
            : (tensor<4xf32>) -> tensor<4xf32>
        %z = "pcp.stop_gradient"(%y) : (tensor<4xf32>) -> tensor<4xf32>
        %w = stablehlo.multiply %z, %x : tensor<4xf32>
    becomes
        %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
        %y = stablehlo.maximum %x, %zero : tensor<4xf32>
        %w = stablehlo.multiply %y, %x : tensor<4xf32>
    """

    name = "pcp-inline-composites"

    def run(self, module: ir.Module) -> None:
        """Rewrite in place, or raise `PassError` at a composite of itself."""
        for function in functions.functions(module).values():
            functions.inline_calls(module, function, keeps=_is_call)
        forget_derivatives(module)
        with module.context:
            PassManager.parse("builtin.module(symbol-dce)").run(module.operation)


def _is_call(op: ir.Operation) -> bool:
    return op.name == "func.call"
