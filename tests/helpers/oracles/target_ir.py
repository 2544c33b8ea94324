"""What IREE is given for a target, as a program of the reference interpreter."""

import re

from pcp.compiler import driver
from pcp.compiler.emission import target_text
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import find
from pcp.dialect.context import parse

# IREE's own ops at the border say what these ops of StableHLO do.
_BARRIER = re.compile(r'"util\.optimization_barrier"\((%\S+)\) : \(\S+\) -> (\S+)')
_BITCAST = re.compile(r'"flow\.tensor\.bitcast"\((%\S+)\) <\{[^}]*\}>')
_HEADER = re.compile(r"^module .*\{$", re.MULTILINE)


def for_interpreter(text: str, target: str) -> str:
    """A model after all passes for `target`, the last before IREE's included."""
    options = CompileOptions(targets=(target,), mode="forward")
    module = driver.lower(parse(text), options).module
    plain = target_text(module, find(target)).plain
    plain = _BARRIER.sub(r"stablehlo.optimization_barrier \1 : \2", plain)
    plain = _BITCAST.sub(r"stablehlo.bitcast_convert \1", plain)
    return _HEADER.sub("module {", plain)
