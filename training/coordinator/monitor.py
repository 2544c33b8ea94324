"""What held-out losses say of a run: its best round, and whether it is to end.

A score is the held-out loss of a committed round, a line of the ledger. All here
follows from the scores and the experiment, so that a shepherd that starts again, and a
run that is resumed, decide alike.
"""

import math
from collections.abc import Iterable, Mapping

from pcp.training.config.experiment import Experiment

Scores = Mapping[int, float]
"""Held-out losses by round."""


def best(experiment: Experiment, scores: Scores) -> int | None:
    """The last round that was better than all before it; None where there is none.

    Better is less by more than `least_improvement`. A loss that is not finite is never
    better.
    """
    found = None
    for round_, loss in sorted(scores.items()):
        if not math.isfinite(loss):
            continue
        if found is None or loss < scores[found] - experiment.least_improvement:
            found = round_
    return found


def best_of(
    experiment: Experiment, scores: Scores, rounds: Iterable[int]
) -> int | None:
    """The best one among these rounds."""
    return best(experiment, {r: scores[r] for r in rounds if r in scores})


def stale(experiment: Experiment, scores: Scores) -> int:
    """How many validations in a row, up to now, were no better."""
    top = best(experiment, scores) or 0
    return sum(round_ > top for round_ in scores)


def stops(experiment: Experiment, scores: Scores) -> bool:
    """Whether the run ends here."""
    limit = experiment.stop_after
    return limit is not None and stale(experiment, scores) >= limit


def decides(experiment: Experiment, scores: Scores) -> bool:
    """Whether the next score may end the run, or make its round the one to keep."""
    limit = experiment.stop_after
    last = limit is not None and stale(experiment, scores) + 1 >= limit
    return last or experiment.keep_best
