"""What the patterns of pcp-simplify may do, seen without the pass that holds them."""

from typing import Protocol


class Options(Protocol):
    """The fields of `Simplify` that a pattern asks for."""

    @property
    def signed_zeros(self) -> bool:
        """Whether -0.0 and +0.0 are kept apart."""
        ...

    @property
    def reassociate(self) -> bool:
        """Whether a sum or product may be taken in another order."""
        ...
