"""Held-out losses: the best round of a run, and when the run ends by them.

A score is the held-out loss of a committed round, a line of the ledger. All decisions
follow from the scores and the experiment, so a shepherd that starts again, and a
resumed run, decide alike.
"""

import math
from collections.abc import Iterable, Mapping

from pcp.training.config.experiment import Experiment

Scores = Mapping[int, float]
"""Held-out losses by round."""


def best(experiment: Experiment, scores: Scores) -> int | None:
    """The last round that was better than all before it; None without scores.

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
    """The best of these rounds."""
    return best(experiment, {r: scores[r] for r in rounds if r in scores})


def stale(experiment: Experiment, scores: Scores) -> int:
    """How many validations since the best round were no better."""
    top = best(experiment, scores) or 0
    return sum(round_ > top for round_ in scores)


def stops(experiment: Experiment, scores: Scores) -> bool:
    """Whether held-out losses end the run now."""
    limit = experiment.stop_after
    return limit is not None and stale(experiment, scores) >= limit


def decides(experiment: Experiment, scores: Scores) -> bool:
    """Whether the next score may end the run, or decide which round is kept."""
    limit = experiment.stop_after
    last = limit is not None and stale(experiment, scores) + 1 >= limit
    return last or experiment.keep_best
