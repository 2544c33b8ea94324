"""Names for the results of a gradient function, which tell whose they are."""

from pcp.dialect.bindings import ir
from pcp.passes.core.functions import (
    NAME,
    ROLE,
    argument_attributes,
    function_type,
    result_attributes,
    set_result_attributes,
    string,
)


def name_results(function: ir.Operation) -> None:
    """Name the results that have no name: the loss, then each parameter's gradient.

    Where there is not one result for each parameter, of its type, they get numbers.
    """
    said = result_attributes(function)
    names = _parameters(function) or [f"result{i}" for i in range(1, len(said))]
    has_gradients = _parameters(function) is not None
    for i, attributes in enumerate(said):
        name = "loss" if i == 0 else names[i - 1]
        role = "loss" if i == 0 else "grad"
        attributes.setdefault(NAME, ir.StringAttr.get(name, function.context))
        if has_gradients:
            attributes.setdefault(ROLE, ir.StringAttr.get(role, function.context))
    set_result_attributes(function, said)


def _parameters(function: ir.Operation) -> list[str] | None:
    """The parameters' names, if the results behind the first are their gradients."""
    type_ = function_type(function)
    said = argument_attributes(function)
    found = [
        (string(attributes, NAME) or f"arg{i}", given)
        for i, (attributes, given) in enumerate(zip(said, type_.inputs, strict=True))
        if string(attributes, ROLE) == "param"
    ]
    if not found or [given for _, given in found] != list(type_.results)[1:]:
        return None
    return [name for name, _ in found]
