"""One function an op, as the compiler leaves them for a target."""

from collections.abc import Sequence

from helpers.accuracy.exact import BINARY

from pcp.compiler.catalog import pipeline
from pcp.compiler.emission import target_text
from pcp.compiler.targets import find
from pcp.dialect.context import parse

FRONT = "pcp-import,pcp-simplify,pcp-legalize,cse,canonicalize,symbol-dce"


def function_name(op: str) -> str:
    """A symbol for `chlo.erf`."""
    return op.replace(".", "_")


def text(ops: Sequence[str], element: str, count: int) -> str:
    """A module of functions on tensors of `count` elements."""
    return "".join(_function(op, f"tensor<{count}x{element}>") for op in ops)


def _function(op: str, type_: str) -> str:
    full = op if "." in op else f"stablehlo.{op}"
    names = ["%x", "%y"] if op in BINARY else ["%x"]
    arguments = ", ".join(f"{name}: {type_}" for name in names)
    types = ", ".join(type_ for _ in names)
    return f"""
func.func @{function_name(op)}({arguments}) -> {type_} {{
  %0 = "{full}"({", ".join(names)}) : ({types}) -> {type_}
  return %0 : {type_}
}}"""


def lowered(program: str, target: str) -> str:
    """What IREE is given for `target`."""
    module = parse(program)
    pipeline(f"builtin.module({FRONT})").run(module)
    return target_text(module, find(target)).plain
