"""Programs to programs: one file a pass.

`Pass` is the base of all, `Pipeline` what runs them in order.
"""

from typing import TYPE_CHECKING

from pcp.door import opened

if TYPE_CHECKING:
    from pcp.passes.core.base import Pass, Pipeline

__all__ = ["Pass", "Pipeline"]

_HOMES = {
    "Pass": "pcp.passes.core.base",
    "Pipeline": "pcp.passes.core.base",
}

__getattr__ = opened(__name__, _HOMES)
