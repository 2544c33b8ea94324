"""Programs to their derivatives.

`register` adds a derivative rule of one's own to the table; `Vjp` is one of reverse
mode.
"""

from typing import TYPE_CHECKING

from pcp.door import opened

if TYPE_CHECKING:
    from pcp.autodiff.core.kinds import Vjp
    from pcp.autodiff.core.registry import register

__all__ = ["Vjp", "register"]

_HOMES = {
    "Vjp": "pcp.autodiff.core.kinds",
    "register": "pcp.autodiff.core.registry",
}

__getattr__ = opened(__name__, _HOMES)
