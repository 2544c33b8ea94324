"""From a rank's death to the round without its island, and to the one with it again."""

import math
import statistics
import time
from collections.abc import Sequence

from faults_run import Run

from pcp.training.observe import metrics

WITHOUT_SECONDS, RETURN_SECONDS = 3.0, 10.0
"""What the medians are at most."""


class Returns:
    """The deaths of a run's ranks, and what was committed after each."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._deaths: list[tuple[float, int]] = []
        """When an island lost a rank, and the island's index."""
        self._elsewhere = 0

    def struck(self, index: int | None) -> None:
        """A rank of the island of this index died; None: it was in no island."""
        if index is None:
            self._elsewhere += 1
        else:
            self._deaths.append((time.time(), index))

    def tell(self) -> list[str]:
        """Print the times; those that are too long, in words."""
        rounds = self._run.rounds()
        print(f"{len(self._deaths)} ranks of islands died, {self._elsewhere} others")
        back = [_back(rounds, *death, self._run.wanted) for death in self._deaths]
        alone = [_without(rounds, *death) for death in self._deaths]
        # An island may be back before any round was committed without it.
        without = [a for a, b in zip(alone, back, strict=True) if a < b]
        failed: list[str] = []
        for what, found, limit in (
            ("the next round without its island", without, WITHOUT_SECONDS),
            ("a round with it again", back, RETURN_SECONDS),
        ):
            known = [seconds for seconds in found if math.isfinite(seconds)]
            median = statistics.median(known or [math.inf])
            last = statistics.quantiles(known, n=20)[-1] if len(known) > 1 else median
            print(f"  {what}: median {median:.2f} s, 95 % {last:.2f} s, n {len(known)}")
            if median > limit:
                failed.append(f"{what} came after {median:.2f} s, not {limit:.0f} s")
        return failed


def _without(rounds: Sequence[metrics.Round], died: float, index: int) -> float:
    """Seconds to the first commit of a round in which the island is not."""
    later = [r.time for r in rounds if r.time > died and not _has(r, index)]
    return min(later, default=math.inf) - died


def _back(
    rounds: Sequence[metrics.Round], died: float, index: int, wanted: int
) -> float:
    """Seconds to the first commit of a round with it that began after the death.

    An island that lost all its ranks comes back under another name: then a round of
    as many islands as there are to be counts.
    """
    later = [
        made.time
        for made in rounds
        if made.time - made.seconds > died
        and (_has(made, index) or made.workers == wanted)
    ]
    return min(later, default=math.inf) - died


def _has(made: metrics.Round, index: int) -> bool:
    return index in {member.worker for member in made.members}
