"""Which orders a message of the shepherd ends, also where a rank waits for others.

A rank's own thread looks for messages between its steps. In a formation or an exchange
it waits for members that may never come, so the thread that reads messages frees it.
"""

from pcp.training.wire.message import Message
from pcp.training.wire.messages import Restore, RoundStart, Shutdown


def first_valid(message: Message, newest: int) -> int:
    """The epoch before which a rank's orders are over by this message.

    `newest` is the epoch of its newest order; -1: it had none. A `Restore` ends that
    one too, as no order of an epoch begins before it and goes on behind it, and so does
    a `Shutdown`.
    """
    if isinstance(message, RoundStart):
        return message.epoch
    return newest + 1 if isinstance(message, Restore | Shutdown) else 0
