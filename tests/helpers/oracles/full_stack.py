"""Gradient programs through the whole stack, many in one compiled module.

Each case's VJP goes through the passes alone, its symbols get a prefix, and a
group of them becomes one module, since starting iree-compile costs more than a
case. When the module is refused or crashes, the cases are tried one by one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
from helpers.oracles.jax_gradients import (
    Case,
    as_given,
    lowered,
    reference_vjp,
    transformed,
    wrt_option,
)
from helpers.servers.iree_server import Iree

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse

LEGAL = "pcp-import,pcp-simplify,pcp-legalize,cse,canonicalize,symbol-dce"


def chapters() -> dict[str, list[Case]]:
    """Every chapter's cases, each with the chapter before its name, which is unique."""
    found = {}
    for path in sorted((Path(__file__).parents[1] / "cases").glob("*.py")):
        chapter = path.stem
        named: dict[str, Case] = {}
        for case in _cases_of(import_module(f"helpers.cases.{path.stem}")):
            name = f"{chapter}-{case.name}"
            name = f"{name}-{len(named)}" if name in named else name
            named[name] = replace(case, name=name)
        if named:
            found[chapter] = list(named.values())
    return found


def _cases_of(module: ModuleType) -> list[Case]:
    """Every case in a list of the module, once."""
    lists = [value for value in vars(module).values() if isinstance(value, list)]
    every = [case for values in lists for case in values if isinstance(case, Case)]
    return list({id(case): case for case in every}.values())


@dataclass
class Program:
    """A case on its way: what IREE gets, and what should come out."""

    case: Case
    text: str
    arguments: list[np.ndarray]
    wanted: list[np.ndarray]


def program(case: Case, prefix: str) -> Program:
    """The VJP of a case, legal, as functions named `<prefix>main` and so on."""
    results, seeds, gradients = reference_vjp(case)
    derived = transformed(lowered(case), f"pcp-vjp{{{wrt_option(case)}}}")
    module = parse(derived)
    pipeline(f"builtin.module({LEGAL})").run(module)
    arguments = [as_given(x) for x in case.args]
    text = renamed(module, prefix)
    return Program(case, text, [*arguments, *seeds], [*results, *gradients])


def renamed(module: ir.Module, prefix: str) -> str:
    """The module's functions as text, each symbol with `prefix` before its name."""
    ops = [op.operation for op in module.body.operations]
    names = {ir.StringAttr(op.attributes["sym_name"]).value for op in ops}
    text = "\n".join(op.get_asm() for op in ops)

    def name(match: re.Match[str]) -> str:
        symbol = match.group(1)
        return f"@{prefix}{symbol}" if symbol in names else match.group(0)

    return re.sub(r"@([A-Za-z_][\w$.]*)", name, text)


@dataclass
class Group:
    """Cases that are compiled together when the first of them is asked for."""

    cases: Sequence[Case]
    programs: dict[str, Program] = field(default_factory=dict)
    results: dict[str, list[np.ndarray] | str] = field(default_factory=dict)

    def check(self, case: Case, iree: Iree) -> None:
        """This case's results and gradients, from IREE, agree with jax's."""
        if not self.results:
            self._run(iree)
        ours = self.results[case.name]
        assert not isinstance(ours, str), f"{case.name}: {ours}"
        wanted = self.programs[case.name].wanted
        assert len(ours) == len(wanted)
        for i, (a, b) in enumerate(zip(ours, wanted, strict=True)):
            case.compare(a, b, 2 * case.tolerance, f"value {i}")

    def _run(self, iree: Iree) -> None:
        for i, case in enumerate(self.cases):
            try:
                self.programs[case.name] = program(case, f"c{i}_")
            except Exception as error:
                self.results[case.name] = f"{type(error).__name__}: {error}"
        whole = self._answers(iree, list(self.programs.values()))
        for name, answer in whole.items():
            if isinstance(answer, str):
                answer = self._answers(iree, [self.programs[name]])[name]
            self.results[name] = answer

    def _answers(
        self, iree: Iree, programs: Sequence[Program]
    ) -> dict[str, list[np.ndarray] | str]:
        place = {case.name: i for i, case in enumerate(self.cases)}
        entries = {p.case.name: f"c{place[p.case.name]}_main" for p in programs}
        calls = {entries[p.case.name]: p.arguments for p in programs}
        answers = iree.run_all("\n".join(p.text for p in programs), calls)
        return dict(zip(entries, answers, strict=True))
