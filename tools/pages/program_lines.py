"""Which lines of a bundle's program read a tensor, and which call a collective.

The program is the text `ir/program.mlir` (`pcp inspect FILE.pcp --ir program`); no
compiler is needed to find a line of it.
"""

import re

from pcp.bundle import Bundle

PROGRAM = "ir/program.mlir"
_ARGUMENT = re.compile(r"(%arg\d+): ")
_NAME = re.compile(r'pcp\.name = "((?:[^"\\]|\\.)*)"')
_ROLE = re.compile(r'pcp\.role = "(\w+)"')
_READ = re.compile(r"%arg\d+\b")
_FUNCTION = re.compile(r"\s*func\.func (?:\w+ )?@(\w+)\(")
_MODULE = re.compile(r"\s+module @(\w+)")
_OP = re.compile(r'(?:= )?"?([a-z_]\w*(?:\.\w+)+)')
_CALL = re.compile(r"@pcp_rt\.(\w+)\(|callee = @pcp_rt\.(\w+)")
_STEPS = ("grad", "main")
"""The functions whose lines are told, the first that there is."""


Tensor = tuple[str, str]
"""Role and name."""


def reads(bundle: Bundle, device: str | None = None) -> dict[Tensor, str]:
    """For each named tensor the first line that reads it, with its op: `77 add`.

    Of the module of a `device`, or of a program for all workers.
    """
    found: dict[str, dict[Tensor, str]] = {}
    module, function = None, None
    names: dict[str, Tensor] = {}
    for number, line in enumerate(_lines(bundle), 1):
        if inner := _MODULE.match(line):
            module = inner[1]
        elif head := _FUNCTION.match(line):
            function, names = head[1], _named(line)
        elif module == device and function is not None:
            told = found.setdefault(function, {})
            for argument in _READ.findall(line):
                if argument in names:
                    told.setdefault(names[argument], f"{number} {_op(line)}".strip())
    step = next((name for name in _STEPS if name in found), None)
    return found[step] if step else {}


def calls(bundle: Bundle) -> dict[str, list[int]]:
    """The lines that call each collective, by its name in the manifest."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate(_lines(bundle), 1):
        for called in _CALL.finditer(line):
            found.setdefault(called[1] or called[2], []).append(number)
    return found


def _lines(bundle: Bundle) -> list[str]:
    content = bundle.members.get(PROGRAM, b"")
    return content.decode(errors="replace").splitlines()


def _named(line: str) -> dict[str, Tensor]:
    """The arguments of a function that have names."""
    found = list(_ARGUMENT.finditer(line))
    ends = [each.start() for each in found[1:]] + [len(line)]
    named = {}
    for each, end in zip(found, ends, strict=True):
        if name := _NAME.search(line, each.end(), end):
            role = _ROLE.search(line, each.end(), end)
            named[each[1]] = role[1] if role else "data", name[1]
    return named


def _op(line: str) -> str:
    """The name of a line's op, without its dialect."""
    op = _OP.search(line)
    return op[1].rpartition(".")[2] if op else ""
