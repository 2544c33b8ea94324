"""The loop of a shepherd among several: stand by, lead, stand by again."""

import functools
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from pcp.errors import PcpError
from pcp.training.coordinator.completion import Outcome
from pcp.training.shepherd.artifacts import CompileFor
from pcp.training.shepherd.elector import Elector, NoLeader
from pcp.training.shepherd.shepherd import Shepherd


def led(
    make: Callable[[CompileFor, Elector], Shepherd],
    elector: Elector,
    compile_for: CompileFor,
    log: Callable[[str], None],
    lead: Callable[[Shepherd], Outcome],
) -> tuple[Shepherd, Outcome] | None:
    """Stand by and lead in turn; how the run ended, None: under another shepherd.

    `make` makes the `Shepherd` when this process is elected, `lead` runs it. The
    elector is closed at the end.
    """
    compiled = functools.cache(compile_for)
    with closing(elector):
        ready = _Ready(compiled, elector)
        while True:
            if (why := elector.stand_by(ready.look)) is not None:
                log(f"another shepherd has ended this: {why}")
                return None
            try:
                shepherd = make(compiled, elector)
                outcome = lead(shepherd)
            except NoLeader as error:
                log(f"standing by again: {error}")
                continue
            how = "cancelled" if outcome.cancelled else "complete"
            elector.end(f"the run is {how}")
            return shepherd, outcome


class _Ready:
    """Bundles for the targets of workers that joined, made before they are wanted."""

    def __init__(self, compile_for: CompileFor, elector: Elector) -> None:
        self._compile_for, self._copy = compile_for, elector.copy
        self._seen, self._asked = 0, set[str]()

    def look(self) -> None:
        """Begin to make the bundles for the workers of the newest lines."""
        count = self._copy.count
        start, self._seen = min(self._seen, count), count
        for target in self._copy.targets(start) - self._asked:
            self._asked.add(target)
            threading.Thread(target=self._make, args=(target,), daemon=True).start()

    def _make(self, target: str) -> None:
        with suppress(PcpError):  # the leader reports the error
            self._compile_for(target)
