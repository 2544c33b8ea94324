"""StableHLO that something else wrote: text, bytecode, portable artifacts."""

from pathlib import Path

from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.context import make_context, parse_bytes
from pcp.errors import IRError
from pcp.frontends.signature import entry

# What `serialize_portable_artifact` puts in front of its bytecode's contents.
_ARTIFACT_PRODUCER = b"StableHLO_v"


def load(path: str | Path, function: str = "main") -> ir.Module:
    """Read a model from a file; `@function` must be in it.

    Text, MLIR bytecode and StableHLO portable artifacts are told apart by their
    content. `IRError` names the file, and the line and column of a syntax error.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise IRError(f"{path}: cannot read the model: {error.strerror}") from error
    if _ARTIFACT_PRODUCER in content[:64]:
        module = _deserialize(content, str(path))
    else:
        module = parse_bytes(content, source=str(path))
    try:
        entry(module, function)
    except IRError as error:
        raise IRError(f"{path}: {error}") from error
    return module


def _deserialize(content: bytes, source: str) -> ir.Module:
    try:
        return stablehlo.deserialize_portable_artifact(make_context(), content)
    except (ir.MLIRError, ValueError) as error:
        raise IRError(
            f"{source}: not a StableHLO portable artifact that this version reads "
            f"(it reads up to {stablehlo.get_current_version()})"
        ) from error
