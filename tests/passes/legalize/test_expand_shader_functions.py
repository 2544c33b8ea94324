"""Functions that shaders lack, written out: exact, in the reference interpreter."""

import numpy as np
import pytest
from helpers.accuracy.errors import counted
from helpers.accuracy.exact import BINARY
from helpers.accuracy.points import TYPES, operands
from helpers.accuracy.programs import function_name, text
from helpers.servers.interpreter import Interpreter

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.passes.legalize.devices.expand_shader_functions import RULES
from pcp.passes.legalize.functions.accuracy import claims_of

COUNT = 701


@pytest.mark.parametrize("element", ["f32", "f16"])
@pytest.mark.parametrize("op", RULES)
def test_what_is_written_out_is_exact(
    op: str, element: str, interpreter: Interpreter
) -> None:
    """As docs/accuracy.md says of CPUs, over all sizes of operands."""
    op = op.removeprefix("stablehlo.")
    given = operands(TYPES[element], 2 if op in BINARY else 1, COUNT)
    module = parse(text((op,), element, COUNT).replace(function_name(op), "main", 1))
    pipeline("builtin.module(pcp-expand-shader-functions)").run(module)
    (found,) = interpreter.run(str(module), given)
    got = np.asarray(found).view(TYPES[element])
    for row in claims_of(op):
        off = counted(row, given, got)
        worst = int(np.argmax(off))
        assert off[worst] <= row.ulp[element], [x[worst] for x in given]
