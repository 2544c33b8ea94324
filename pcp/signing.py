"""Signatures of files: what is signed, and how a signature is written down.

A file is signed by its digest: an Ed25519 signature (RFC 8032) of the file's kind and
of a SHA-256 that stands for all of it. A signature carries the public key, and where
its identity has a certificate, that too. Making and checking them is
`pcp.runtime.transport.signatures`.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pcp import strict_json

BUNDLE = "bundle"
CHECKPOINT = "checkpoint"
LEDGER = "ledger"
MEMBER = "signatures.json"
"""The file in a bundle, and in a checkpoint, that holds its signatures."""
MAX_BYTES = 1 << 20
"""Of that file."""

_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]+$")]


class Signature(BaseModel, frozen=True):
    """A signature, the public key that it is checked with, and whose key that is."""

    model_config = ConfigDict(extra="forbid")

    key: Annotated[_Hex, Field(min_length=64, max_length=64)]
    signature: Annotated[_Hex, Field(min_length=128, max_length=128)]
    certificate: Annotated[str, Field(max_length=64 << 10)] = ""
    """PEM; empty: the key stands for itself."""


_ADAPTER = TypeAdapter(Annotated[tuple[Signature, ...], Field(max_length=64)])


def statement(kind: str, digest: str) -> bytes:
    """What is signed of a file of this kind, whose SHA-256 is `digest` (hex)."""
    return f"pcp {kind} 1\0{digest}".encode()


def dump(signatures: Sequence[Signature]) -> bytes:
    """The contents of `MEMBER`."""
    values = [signature.model_dump() for signature in signatures]
    return strict_json.dumps(values, indent=1).encode() + b"\n"


def parse(content: bytes) -> tuple[Signature, ...]:
    """The signatures in a `MEMBER`; `ValueError` where they are none."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"{len(content)} bytes of signatures")
    try:
        return _ADAPTER.validate_python(
            tuple(strict_json.parse(content))  # a list in JSON
        )
    except (ValidationError, TypeError) as error:
        raise ValueError("damaged signatures") from error
