"""pcp-first-values: @init as data, which no compiler needs to see."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.initializer import FROM_PARAMETERS, Init
from pcp.passes.core import functions
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import INIT, NAME, ROLE

FUNCTION = "init"
STREAM = "pcp.stream"
"""On a result of @init: the number of its random numbers' stream."""
TABLE, TYPE = "pcp.first_values", "type"
"""On a module: what @init gives, row by row; a row's tensor type."""

Said = Init | str | None


@dataclass(frozen=True)
class FirstValues(Pass):
    """Take @init out of a training program whose first values are known as data.

    Assumes what `pcp-expand-training` leaves: each result of @init has `pcp.init`, an
    initializer or `@inner_init`, and one that is drawn its `pcp.stream`. Leaves no
    @init, and in its place these facts with the results' types as `pcp.first_values` of
    the module; the manifest takes them from there, and the runtime computes them. The
    private functions that @init called are left to `symbol-dce`. An @init of which a
    result says nothing stays, and is compiled.
    Before, and after:

        func.func @init(%seed: tensor<i64>) -> (
            tensor<4xf32> {pcp.name = "w", pcp.role = "param",
                           pcp.init = "normal(0.02)", pcp.stream = 0 : i32}) {...}

        module attributes {pcp.first_values = [
            {pcp.init = "normal(0.02)", pcp.name = "w", pcp.role = "param",
             pcp.stream = 0 : i32, type = tensor<4xf32>}]}
    """

    name = "pcp-first-values"

    def run(self, module: ir.Module) -> None:
        """Replace @init by its table."""
        function = functions.find(module, FUNCTION)
        if function is None:
            return
        said = functions.result_attributes(function)
        if not all({INIT, NAME, ROLE} <= attributes.keys() for attributes in said):
            return
        with module.context:
            types = functions.function_type(function).results
            rows = [
                ir.DictAttr.get(attributes | {TYPE: ir.TypeAttr.get(type_)})
                for attributes, type_ in zip(said, types, strict=True)
            ]
            module.operation.attributes[TABLE] = ir.ArrayAttr.get(rows)
        function.erase()


def say(function: ir.Operation, values: Sequence[Said]) -> None:
    """Write on @init's results how they begin; nothing for one that no data says."""
    word = ir.IntegerType.get_signless(32)
    said = functions.result_attributes(function)
    for stream, (attributes, value) in enumerate(zip(said, values, strict=True)):
        if value is not None:
            attributes[INIT] = ir.StringAttr.get(str(value))
        if isinstance(value, Init) and value.random:
            attributes[STREAM] = ir.IntegerAttr.get(word, stream)
    functions.set_result_attributes(function, said)


def filled(number: float | None) -> Said:
    """What begins as a number everywhere, or with the parameters (None)."""
    if number is None:
        return FROM_PARAMETERS
    if not math.isfinite(number):
        return None
    return Init("constant", (float(number),)) if number else Init("zeros")
