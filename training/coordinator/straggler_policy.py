"""The straggler policy of a round: quorum, grace, deadline."""

import math

from pcp.training.config.experiment import Experiment
from pcp.training.coordinator.attempt import Attempt


def slow_members(
    attempt: Attempt, experiment: Experiment, inner_exchanges: bool, now: float
) -> list[str]:
    """Members that the round goes on without.

    With `inner_exchanges` the waiting of the others shows a slow member
    (`pcp.training.coordinator.straggler_detection`); else the members that are not done
    are slow.
    """
    if inner_exchanges:
        return _stragglers_inside(attempt, experiment)
    return attempt.slow if now >= _end(attempt, experiment) else []


def _stragglers_inside(attempt: Attempt, experiment: Experiment) -> list[str]:
    """Members for which others wait too long in inner exchanges."""
    deadline = experiment.round_deadline_seconds or math.inf
    return attempt.straggler_detection.stragglers(
        attempt.members,
        experiment.quorum,
        experiment.grace_seconds,
        earliest=attempt.launched + _pause(attempt, experiment),
        deadline=attempt.launched + deadline,
    )


def _end(attempt: Attempt, experiment: Experiment) -> float:
    """When the slow members of an attempt are left out; infinite: never."""
    ends = [math.inf]
    if experiment.round_deadline_seconds and attempt.computed:
        ends.append(attempt.began + experiment.round_deadline_seconds)
    quorum = experiment.quorum
    if quorum and len(attempt.computed) >= quorum:
        done = sorted(attempt.computed.values())
        ends.append(done[quorum - 1] + experiment.grace_seconds)
    return max(min(ends), attempt.launched + _pause(attempt, experiment))


def _pause(attempt: Attempt, experiment: Experiment) -> float:
    """The extra grace of an attempt: its group takes a moment to form."""
    return 0.0 if attempt.first else experiment.heartbeat_limit_seconds
