"""Arguments and results of a decoder's functions, and how a function is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pcp.dialect import function_body, hlo
from pcp.dialect.bindings import ir
from pcp.dialect.roles import NAME, ROLE, STAGE

Value = ir.Value


@dataclass(frozen=True)
class Port:
    """An argument or a result of a function."""

    name: str
    role: str
    type: ir.Type
    stage: int | None = None

    def attributes(self) -> ir.Attribute:
        """Its name and role, and the stage of a pipeline that gets it."""
        texts = {NAME: self.name, ROLE: self.role}
        said: dict[str, ir.Attribute] = {
            k: ir.StringAttr.get(v) for k, v in texts.items()
        }
        if self.stage is not None:
            said[STAGE] = hlo.i64(self.stage)
        return ir.DictAttr.get(said)


def write(
    name: str,
    inputs: Sequence[Port],
    results: Sequence[Port],
    body: Callable[[list[Value]], list[Value]],
) -> None:
    """A function at the insertion point."""
    attributes = function_body.named(name) | {
        "arg_attrs": ir.ArrayAttr.get([p.attributes() for p in inputs]),
        "res_attrs": ir.ArrayAttr.get([p.attributes() for p in results]),
    }
    made, block = function_body.begin(attributes, [p.type for p in inputs])
    with ir.InsertionPoint(block):
        returned = body(list(block.arguments))
    function_body.finish(made, returned)
