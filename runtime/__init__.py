"""A bundle runs on machines that fail.

`Communicator` (a group and its collectives), `ErrorFeedback` (what compression
dropped), `shared_empty` (arrays that members on one machine share), `Endpoint` (a
process out of which groups are formed), `fetch_snapshot` (state outside a group),
`Program` (a bundle's functions).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pcp.runtime.communicator import Communicator
    from pcp.runtime.endpoint import Endpoint
    from pcp.runtime.executor import Program
    from pcp.runtime.feedback import ErrorFeedback
    from pcp.runtime.rendezvous import Rendezvous
    from pcp.runtime.shared_arrays import shared_empty
    from pcp.runtime.snapshot import fetch_snapshot

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
    "Communicator": "pcp.runtime.communicator",
    "Endpoint": "pcp.runtime.endpoint",
    "ErrorFeedback": "pcp.runtime.feedback",
    "Program": "pcp.runtime.executor",
    "Rendezvous": "pcp.runtime.rendezvous",
    "fetch_snapshot": "pcp.runtime.snapshot",
    "shared_empty": "pcp.runtime.shared_arrays",
}


def __getattr__(name: str) -> object:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'pcp.runtime' has no attribute {name!r}")
    return getattr(import_module(home), name)
