"""MLIR as documents show it: a module, or ops whose operands stand elsewhere."""

import re

from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context

ELLIPSIS = "..."
_VALUE = re.compile(r"%\w+")
_DEFINED = re.compile(r"^\s*(%\w+(?::\d+)?(?:, *%\w+)*) *=", re.MULTILINE)
_ARGUMENT = re.compile(r"(%\w+): ")
_OTHER_TYPE = re.compile(
    r"value '(%\w+)' expects different type than prior uses: '(.*?)' vs '(.*?)'(?!')"
)
_OP = re.compile(r"(?<![\w.@#!%])\"?((?:stablehlo|chlo|pcp|func|arith)\.[a-z_0-9]+)\"?")
_ATTRIBUTE = re.compile(r"(pcp\.\w+)\"? =\s")
ROUNDS = 40  # a free value's type is learnt in at most two


def problem(text: str) -> str | None:
    """Why MLIR refuses a fragment, or None: it parses and verifies.

    Values that are used but not defined are put in front, with the types that their
    uses ask for; a function without a body is a private one.
    """
    free = dict.fromkeys(_free(text), "none")
    error = None
    for _ in range(ROUNDS):
        given = "".join(f'{n} = "test.given"() : () -> {t}\n' for n, t in free.items())
        if (error := _refusal(given + text)) is None:
            return None
        if "cannot have public visibility" in error and "func.func @" in text:
            text = text.replace("func.func @", "func.func private @")
            continue
        found = _OTHER_TYPE.search(error)
        if found is None or found[1] not in free:
            return error
        known = free[found[1]]
        free[found[1]] = found[2] if found[3] == known else found[3]
    return error


def _free(text: str) -> list[str]:
    """The values that nothing in the text defines."""
    bare = re.sub(r"//.*", "", text)
    defined = {
        name for group in _DEFINED.findall(bare) for name in _VALUE.findall(group)
    }
    defined |= set(_ARGUMENT.findall(bare))
    return sorted(set(_VALUE.findall(bare)) - defined)


def _refusal(text: str) -> str | None:
    context = make_context()
    context.allow_unregistered_dialects = True
    try:
        with context:
            ir.Module.parse(text)
    except ir.MLIRError as error:
        return " ".join(str(one) for one in error.error_diagnostics) or str(error)
    return None


def unknown_ops(text: str) -> list[str]:
    """Names of ops in a sketch that no dialect has: all that can be said of one."""
    context = make_context()
    names = set(_OP.findall(re.sub(r"//.*", "", text))) - set(_ATTRIBUTE.findall(text))
    return sorted(n for n in names if not context.is_registered_operation(n))
