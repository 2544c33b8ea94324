"""A bundle runs on machines that fail.

`Communicator` (a group and its collectives), `ErrorFeedback` (what compression
dropped), `shared_empty` (arrays that members on one machine share), `Endpoint` (a
process out of which groups are formed), `fetch_snapshot` (state outside a group),
`Program` (a bundle's functions).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pcp.runtime.communicator.communicator import Communicator
    from pcp.runtime.compression.error_feedback import ErrorFeedback
    from pcp.runtime.group.endpoint import Endpoint
    from pcp.runtime.group.rendezvous import Rendezvous
    from pcp.runtime.group.state_transfer import fetch_snapshot
    from pcp.runtime.memory.shared_arrays import shared_empty
    from pcp.runtime.program.executor import Program

__all__ = [
    "Communicator",
    "Endpoint",
    "ErrorFeedback",
    "Program",
    "Rendezvous",
    "fetch_snapshot",
    "shared_empty",
]

_HOMES = {
    "Communicator": "pcp.runtime.communicator.communicator",
    "Endpoint": "pcp.runtime.group.endpoint",
    "ErrorFeedback": "pcp.runtime.compression.error_feedback",
    "Program": "pcp.runtime.program.executor",
    "Rendezvous": "pcp.runtime.group.rendezvous",
    "fetch_snapshot": "pcp.runtime.group.state_transfer",
    "shared_empty": "pcp.runtime.memory.shared_arrays",
}


def __getattr__(name: str) -> object:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'pcp.runtime' has no attribute {name!r}")
    return getattr(import_module(home), name)
