"""A shepherd among several: it stands by, and leads while it is elected."""

import functools
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from pcp.errors import PcpError
from pcp.runtime.transport.credentials import Protection
from pcp.training.coordinator.completion import Outcome
from pcp.training.shepherd.artifacts import CompileFor
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.shepherd.voters import NoLeader, Voters
from pcp.training.storage.run_folder import RunFolder


def led(
    make: Callable[[CompileFor, Voters], Shepherd],
    folder: RunFolder,
    where: list[str],
    me: int,
    protected: Protection,
    compile_for: CompileFor,
    log: Callable[[str], None],
    lead: Callable[[Shepherd], Outcome],
) -> tuple[Shepherd, Outcome] | None:
    """Stand by and lead in turn; how the run ended here, None: another led to its end.

    `make` makes the shepherd when this one is elected, `lead` runs it.
    """
    compiled = functools.cache(compile_for)
    with closing(Voters(folder.ledger, where, me, protected, log)) as voters:
        ready = _Ready(compiled, voters)
        while True:
            if (why := voters.stand_by(ready.look)) is not None:
                log(f"another shepherd has ended this: {why}")
                return None
            try:
                shepherd = make(compiled, voters)
                outcome = lead(shepherd)
            except NoLeader as error:
                log(f"standing by again: {error}")
                continue
            how = "cancelled" if outcome.cancelled else "complete"
            voters.end(f"the run is {how}")
            return shepherd, outcome


class _Ready:
    """Bundles for the targets of workers that joined, made before they are wanted."""

    def __init__(self, compile_for: CompileFor, voters: Voters) -> None:
        self._compile_for, self._voters = compile_for, voters
        self._seen, self._asked = 0, set[str]()

    def look(self) -> None:
        """Begin with what the newest lines ask for."""
        count = self._voters.copy.count
        start, self._seen = min(self._seen, count), count
        for target in self._voters.copy.targets(start) - self._asked:
            self._asked.add(target)
            threading.Thread(target=self._make, args=(target,), daemon=True).start()

    def _make(self, target: str) -> None:
        with suppress(PcpError):  # who leads says what is wrong with it
            self._compile_for(target)
