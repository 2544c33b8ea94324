"""A warning in the log while a dialled peer does not answer."""

import logging
import time

QUIET_SECONDS = 3.0
"""Programs of one group start at different times: that long is no warning."""
_log = logging.getLogger("pcp.runtime")


class ConnectWarning:
    """Warns, once, that `whom` is still dialled, why, and for how much longer."""

    def __init__(self, whom: str) -> None:
        self._whom = whom
        self._until = time.monotonic() + QUIET_SECONDS
        self._said = False

    def failed(self, error: Exception, deadline: float) -> None:
        """Note a failed attempt; others follow until this monotonic time."""
        now = time.monotonic()
        if self._said or now < self._until:
            return
        self._said = True
        left = max(0.0, deadline - now)
        _log.warning("no %s yet: %s; trying for %.0f s more", self._whom, error, left)
