"""Arguments that a call consumes: the marks that IREE's calling convention reads."""

from pcp.dialect.bindings import ir

#: Of a result: the argument whose storage it takes.
OUTPUT = "iree.abi.output"
#: Of an argument: the callee may reuse its storage.
CONSUME = "iree.abi.consume"


def is_donated(attributes: dict[str, ir.Attribute]) -> bool:
    """Whether a call consumes the argument that has these attributes."""
    return OUTPUT in attributes or CONSUME in attributes
