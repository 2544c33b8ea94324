"""The table of all rules: op name to rule, merged from the chapters.

Chapters are imported when the first rule is asked for. `register` adds or
replaces one from outside, for an op of another dialect or a custom call.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from pcp.autodiff.core.kinds import NoGradient, Refusal, Rule
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import MissingRule, nearest

#: Files of `autodiff/rules/`, named as the chapters of the specification are.
CHAPTERS = (
    "elementwise",
    "data_movement",
    "indexing",
    "scatters",
    "reductions",
    "windows",
    "contractions",
    "convolutions",
    "linear_algebra",
    "control_flow",
    "calls",
    "collectives",
    "replicas",
    "composed",
    "chlo",
)

GUIDE = "docs/adding-a-rule.md"

_registered: dict[str, Rule] = {}


@cache
def _tables() -> Mapping[str, Rule]:
    merged: dict[str, Rule] = {}
    for chapter in CHAPTERS:
        rules = import_module(f"pcp.autodiff.rules.{chapter}").RULES
        for short, rule in rules.items():
            merged[short if "." in short else f"stablehlo.{short}"] = rule
    return merged


def rules() -> dict[str, Rule]:
    """Every rule by qualified op name."""
    return {**_tables(), **_registered}


def register(name: str, rule: Rule) -> None:
    """Use `rule` for the op `name` (qualified: "mine.op") from now on."""
    _registered[name] = rule


def unregister(name: str) -> None:
    """Forget what `register` added under `name`."""
    _registered.pop(name, None)


def find(name: str) -> Rule | None:
    """The rule of an op, or None."""
    return _registered.get(name) or _tables().get(name)


def is_no_gradient(name: str) -> bool:
    """Whether the table declares that no derivative flows through the op."""
    return isinstance(find(name), NoGradient)


def is_boundary(name: str) -> bool:
    """Whether values enter or leave the program at such an op (see `Refusal`)."""
    rule = find(name)
    return isinstance(rule, Refusal) and rule.boundary


def missing(op: ir.Operation, reached_from: str) -> MissingRule:
    """The error for an op on the active path that the table does not have."""
    where = location_string(op.location)
    return MissingRule(
        f"{where}: {op.name}: no derivative rule, and a derivative flows through it "
        f"(reached from {reached_from}).{nearest(op.name, rules())} {GUIDE} shows how "
        "to add one; pcp.stop_gradient on its operand declares the derivative zero"
    )


def missing_function(call: ir.Operation, name: str, reached_from: str) -> MissingRule:
    """The error for a call or composite of a function that has no body and no rule."""
    where = location_string(call.location)
    register = (
        ', register "composite:<its name>" with pcp.autodiff.register'
        if call.name == "stablehlo.composite"
        else ""
    )
    return MissingRule(
        f"{where}: {call.name}: no derivative rule for @{name}, which has no body to "
        f"differentiate, and a derivative flows through it (reached from "
        f"{reached_from}); give it a body, attach a rule to the symbol with "
        f"pcp.custom_vjp or pcp.custom_jvp {{primal = @{name}}}{register} ({GUIDE}), "
        "or declare the derivative zero with pcp.stop_gradient on its operand"
    )
