"""What is said when somebody whom we dial does not answer for a while."""

import logging
import time

QUIET_SECONDS = 3.0
"""Programs that are started together need not come in order."""
_log = logging.getLogger("pcp.runtime")


class ConnectWarning:
    """Warns, once, that `whom` is still dialled, why, and for how much longer."""

    def __init__(self, whom: str) -> None:
        self._whom = whom
        self._until = time.monotonic() + QUIET_SECONDS
        self._said = False

    def failed(self, error: Exception, deadline: float) -> None:
        """An attempt failed; there will be others until this monotonic time."""
        now = time.monotonic()
        if self._said or now < self._until:
            return
        self._said = True
        left = max(0.0, deadline - now)
        _log.warning("no %s yet: %s; trying for %.0f s more", self._whom, error, left)
