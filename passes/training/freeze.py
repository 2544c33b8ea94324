"""pcp-freeze: parameters that stay as they are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.passes.core import functions
from pcp.passes.core.base import Pass

Value = ir.Value


@dataclass(frozen=True)
class Freeze(Pass):
    """Make `frozen` the parameters that a pattern of `names` matches.

    `names` are patterns separated by |. What is frozen has no gradient and no state,
    keeps its type, and is in no checkpoint: its values come with the model. Assumes
    roles (`pcp-infer-roles`); at least one parameter stays. Before, and after
    pcp-freeze{names=*.embed*}:

        func.func @main(%e: ... {pcp.name = "m.embed", pcp.role = "param"}, ...)

        func.func @main(%e: ... {pcp.name = "m.embed", pcp.role = "frozen"}, ...)
    """

    name = "pcp-freeze"
    names: str
    func: str = "main"

    def run(self, module: ir.Module) -> None:
        """Change the roles."""
        function = functions.find(module, self.func)
        if function is None:
            raise PassError(f"{self.name}: the module has no function @{self.func}")
        with module.context:
            params = [*parameters(function)]
            chosen = matching(params, self.names, self.name)
            if len(chosen) == len(params):
                raise PassError(
                    f"{self.name}: names={self.names} leaves no parameter to train"
                )
            freeze(function, chosen)


@dataclass(frozen=True)
class Parameter:
    """An argument of the function, by its number and name."""

    index: int
    name: str
    value: Value


def parameters(function: ir.Operation) -> Iterator[Parameter]:
    """The arguments that are trained."""
    said = functions.argument_attributes(function)
    for i, argument in enumerate(functions.entry(function).arguments):
        name = functions.string(said[i], functions.NAME)
        if functions.string(said[i], functions.ROLE) == "param" and name:
            yield Parameter(i, name, argument)


def matching(params: Sequence[Parameter], patterns: str, what: str) -> list[Parameter]:
    """The parameters that the patterns name; `PassError` for one that names none."""
    wanted = [p for p in patterns.split("|") if p]
    for pattern in wanted:
        if not any(fnmatchcase(p.name, pattern) for p in params):
            known = ", ".join(p.name for p in params[:8])
            raise PassError(
                f"{what}: the pattern {pattern!r} matches no parameter ({known}"
                f"{', ...' if len(params) > 8 else ''})"
            )
    return [p for p in params if any(fnmatchcase(p.name, w) for w in wanted)]


def freeze(function: ir.Operation, chosen: Sequence[Parameter]) -> None:
    """Give these parameters their new role."""
    said = functions.argument_attributes(function)
    for parameter in chosen:
        said[parameter.index][functions.ROLE] = ir.StringAttr.get("frozen")
        said[parameter.index].pop(functions.INIT, None)
    functions.set_argument_attributes(function, said)
