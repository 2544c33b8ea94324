"""pcp-protect-arguments: a call leaves what its caller did not give away as it was.

IREE writes an update of a slice, or a scatter, over its operand when nothing reads
that operand afterwards. It does so with a function's arguments too, and forgets about
an argument that is returned as it came, since such a result never enters the program
(IREE 3.13). Its analysis of who reads what, and when, is sound inside of a function.
So the functions say here what IREE does not see: that the caller reads on.

* An argument that is kept is read once more behind everything else. IREE copies it
  where the program updates it, and only there.
* An argument that is given away (`iree.abi.output`, `iree.abi.consume`) is taken out
  of its argument once, in front of everything else. Then each result that holds its
  old value is one more reader that IREE knows of.
"""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import functions, rewriting
from pcp.passes.core.base import Pass
from pcp.passes.core.donation import is_donated
from pcp.passes.core.functions import PARTS
from pcp.passes.core.rewriting import before

BARRIER = "util.optimization_barrier"


@dataclass(frozen=True)
class ProtectArguments(Pass):
    """Keep IREE from writing over arguments that the caller keeps.

    Assumes that `pcp-verify-inplace` has said which arguments are given away, and that
    nothing behind it changes the program's values. Leaves in each public function an
    `util.optimization_barrier` of each argument that is kept in front of its return,
    and one of each other at its start, in generic form: from here on the module is
    IREE's to read. Shape and type of arguments and results stay.

    Before:

        func.func @main(%c: tensor<4xf32>, %u: tensor<1xf32>, %i: tensor<i32>)
            -> (tensor<4xf32>, tensor<4xf32>) {
          %0 = stablehlo.dynamic_update_slice %c, %u, %i : ...
          return %c, %0 : tensor<4xf32>, tensor<4xf32>
        }

    After, in short:

          %0 = stablehlo.dynamic_update_slice %c, %u, %i : ...
          %1 = "util.optimization_barrier"(%c) : (tensor<4xf32>) -> tensor<4xf32>
          %2 = "util.optimization_barrier"(%u) : ...
          return %c, %0 : tensor<4xf32>, tensor<4xf32>
    """

    name = "pcp-protect-arguments"

    def run(self, module: ir.Module) -> None:
        """Protect the arguments of every public function."""
        with module.context:
            module.context.allow_unregistered_dialects = True
            for function in rewriting.functions(module):
                if functions.is_public(function) and PARTS not in function.attributes:
                    protect_arguments(function)


def protect_arguments(function: ir.Operation) -> None:
    """See `ProtectArguments`."""
    block = functions.entry(function)
    first, *_, last = [*block.operations, *block.operations]
    attributes = functions.argument_attributes(function)
    for argument, said in zip(block.arguments, attributes, strict=True):
        if not _has_elements(argument.type):
            continue
        if is_donated(said):
            read, value = _barrier(argument, first.operation)
            argument.replace_all_uses_except(value, read)
        else:
            _barrier(argument, last.operation)


def _has_elements(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and 0 not in type_.shape


def _barrier(value: ir.Value, op: ir.Operation) -> tuple[ir.Operation, ir.Value]:
    """A barrier in front of `op`: what reads the value, and what comes out.

    IREE has no barrier of unsigned integers; their bits go through it.
    """
    with before(op):
        bits = _signless(value)
        made = ir.Operation.create(BARRIER, operands=[bits], results=[bits.type])
        if bits == value:
            return made, made.result
        return bits.owner.operation, hlo.bitcast_convert(made.result, value.type)


def _signless(x: ir.Value) -> ir.Value:
    element = hlo.element_type(x)
    if not isinstance(element, ir.IntegerType) or element.is_signless:
        return x
    signless = ir.IntegerType.get_signless(element.width)
    return hlo.bitcast_convert(x, hlo.like(x, element=signless))
