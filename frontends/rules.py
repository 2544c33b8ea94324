"""Derivative rules that functions of a frontend's language bring along.

While a program is written its functions carry marks, the names of the functions that
are their rule; `attach` makes ops of them.
"""

from collections.abc import Sequence

from pcp.dialect.bindings import ir

#: Attributes of a function while a frontend writes it: its rule's functions by role.
MARKS = {
    "pcp.custom_jvp": ("jvp",),
    "pcp.custom_vjp": ("forward", "backward"),
}


def attach(module: ir.Module) -> None:
    """Turn the marks on functions into `pcp.custom_jvp` and `pcp.custom_vjp` ops."""
    for view in list(module.body.operations):
        function = view.operation
        for op, roles in MARKS.items():
            if f"{op}.{roles[0]}" in function.attributes:
                _attach(function, op, roles)


def _attach(function: ir.Operation, op: str, roles: Sequence[str]) -> None:
    names = {role: function.attributes[f"{op}.{role}"] for role in roles}
    for role in roles:
        del function.attributes[f"{op}.{role}"]
    primal = ir.StringAttr(function.attributes["sym_name"]).value
    with function.context, ir.InsertionPoint.after(function):
        ir.Operation.create(
            op,
            attributes={"primal": ir.FlatSymbolRefAttr.get(primal), **names},
            loc=function.location,
        )
