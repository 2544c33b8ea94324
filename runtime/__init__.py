"""The runtime: bundles and collectives on machines that fail.

`Communicator` (a group and its collectives), `ErrorFeedback` (residuals of
compression), `shared_empty` (arrays that members on one machine share), `Endpoint` (a
process on which groups are formed), `Coordinator` (of an elastic group),
`fetch_snapshot` (state outside a group), `Program` (a bundle's functions), `Tls`
(certificates of members), `FaultPlan` (faults on demand).
"""

from typing import TYPE_CHECKING

from pcp.door import opened

if TYPE_CHECKING:
    from pcp.runtime.communicator.communicator import Communicator
    from pcp.runtime.communicator.endpoint import Endpoint
    from pcp.runtime.compression.error_feedback import ErrorFeedback
    from pcp.runtime.group.coordinator import Coordinator
    from pcp.runtime.group.rendezvous import Rendezvous
    from pcp.runtime.group.state_transfer import fetch_snapshot
    from pcp.runtime.memory.shared_arrays import shared_empty
    from pcp.runtime.program.executor import Program
    from pcp.runtime.transport.fault_injection import FaultPlan
    from pcp.runtime.transport.tls import Tls

__all__ = [
    "Communicator",
    "Coordinator",
    "Endpoint",
    "ErrorFeedback",
    "FaultPlan",
    "Program",
    "Rendezvous",
    "Tls",
    "fetch_snapshot",
    "shared_empty",
]

_HOMES = {
    "Communicator": "pcp.runtime.communicator.communicator",
    "Coordinator": "pcp.runtime.group.coordinator",
    "Endpoint": "pcp.runtime.communicator.endpoint",
    "ErrorFeedback": "pcp.runtime.compression.error_feedback",
    "FaultPlan": "pcp.runtime.transport.fault_injection",
    "Program": "pcp.runtime.program.executor",
    "Rendezvous": "pcp.runtime.group.rendezvous",
    "Tls": "pcp.runtime.transport.tls",
    "fetch_snapshot": "pcp.runtime.group.state_transfer",
    "shared_empty": "pcp.runtime.memory.shared_arrays",
}

__getattr__ = opened(__name__, _HOMES)
