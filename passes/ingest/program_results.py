"""What each result of a training program is: the loss, a metric, or new state.

The first is the loss. One that is named as an argument of the role `state` is its new
value, of its type; every such argument has one. Other scalars are metrics. What is
neither is a `result`, which a gradient may have beside it and training may not.
"""

from collections import Counter

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.dialect.roles import NAME, RESULTS, ROLE
from pcp.errors import PassError, nearest
from pcp.passes.core import functions


def annotate(main: ir.Operation) -> None:
    """Write name and role on each result; one result alone is left as it is."""
    types = list(functions.function_type(main).results)
    states = _states(main)
    if len(types) == 1 and not states:
        return
    found = functions.result_attributes(main)
    for i, (said, type_) in enumerate(zip(found, types, strict=True)):
        role = _role(main, i, said, type_, states)
        fallback = "loss" if role == "loss" else f"{role}{i}"
        said[ROLE] = ir.StringAttr.get(role)
        said[NAME] = ir.StringAttr.get(functions.string(said, NAME) or fallback)
    _check(main, found, types, states)
    functions.set_result_attributes(main, found)


def _states(main: ir.Operation) -> dict[str, ir.Type]:
    """The type of each tensor of state, by name."""
    types = functions.function_type(main).inputs
    return {
        functions.string(said, NAME) or "": type_
        for said, type_ in zip(functions.argument_attributes(main), types, strict=True)
        if functions.string(said, ROLE) == "state"
    }


def _role(
    main: ir.Operation,
    i: int,
    said: dict[str, ir.Attribute],
    type_: ir.Type,
    states: dict[str, ir.Type],
) -> str:
    role, name = functions.string(said, ROLE), functions.string(said, NAME)
    if role is not None and role not in RESULTS:
        raise PassError(
            f"{_result(main, i)} has no role {role!r} (roles: {', '.join(RESULTS)})."
            + nearest(role, RESULTS)
        )
    if i == 0 and isinstance(hlo.element_type(type_), ir.FloatType):
        return role if hlo.shape_of(type_) and role else "loss"
    if role is not None:
        return role
    if name in states:
        return "state"
    return "result" if hlo.shape_of(type_) else "metric"


def _check(
    main: ir.Operation,
    found: list[dict[str, ir.Attribute]],
    types: list[ir.Type],
    states: dict[str, ir.Type],
) -> None:
    names = [functions.string(said, NAME) or "" for said in found]
    roles = [functions.string(said, ROLE) for said in found]
    for i, (name, role, type_) in enumerate(zip(names, roles, types, strict=True)):
        if role == "state" and name not in states:
            raise PassError(
                f"{_result(main, i)} is new state {name!r}, and no argument of the "
                f"role state has that name.{nearest(name, states)}"
            )
        if role == "state" and type_ != states[name]:
            raise PassError(
                f"{_result(main, i)} is new state {name!r} of {type_}; the argument is "
                f"{states[name]}"
            )
        if role == "metric" and hlo.shape_of(type_):
            raise PassError(
                f"{_result(main, i)} is {type_}; a metric {name!r} is one scalar"
            )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        i = len(names) - 1 - names[::-1].index(twice[0])
        raise PassError(f"{_result(main, i)}: two results are named {twice[0]!r}")
    if lacking := [name for name in states if name not in names]:
        raise PassError(
            f"{location_string(main.location)}: state {lacking[0]!r} of "
            f"@{functions.symbol_name(main)} has no result of that name and type, its "
            'new value; what the step only reads has the role "frozen"'
        )


def _result(main: ir.Operation, i: int) -> str:
    where = location_string(main.location)
    return f"{where}: result {i} of @{functions.symbol_name(main)}"
