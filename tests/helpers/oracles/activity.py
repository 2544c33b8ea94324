"""Which ops of a program a derivative flows through."""

from pcp.autodiff.core.activity import propagate
from pcp.autodiff.core.functions import body, functions, inline_calls
from pcp.dialect import hlo
from pcp.dialect.context import parse


def differentiated(text: str, inline: bool = True) -> set[str]:
    """The names of the ops of `@main` whose results depend on a real argument."""
    module = parse(text)
    main = functions(module)["main"]
    if inline:
        with module.context:
            inline_calls(module, main)
    found: set[str] = set()
    block = body(main)
    floats = {a: "" for a in block.arguments if hlo.is_differentiable(a)}
    ops = [op.operation for op in block.operations]
    active = propagate(ops, floats)
    for op in ops:
        if any(r in active for r in op.results):
            found.add(op.name)
    return found
