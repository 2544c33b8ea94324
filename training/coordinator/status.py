"""The status of a run, as one JSON object: for dashboards and `pcp status`."""

from typing import Any

from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.checkpointing import Saver
from pcp.training.coordinator.rounds import Rounds
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.validation import Validation


def status_of(
    run: RunState, rounds: Rounds | None, validation: Validation, saver: Saver
) -> dict[str, Any]:
    """The state of the run; losses in nats a token, times in seconds."""
    attempt = rounds.attempt if rounds else None
    newest = rounds.newest if rounds else None
    does, progress = doings(attempt), run.progress
    return {
        "run": run.folder,
        "phase": phase(run, attempt),
        "round": attempt.round if attempt else run.committed,
        "rounds": run.experiment.outer_loop_steps,
        "epoch": progress.epoch,
        "wanted": run.wanted,
        "workers": [
            member.describe(run.now) | {"doing": does.get(member.name, member.state)}
            for member in run.roster
        ],
        "absent": run.roster.absent(run.wanted),
        "prepared": len(attempt.prepared) if attempt else 0,
        "loss": newest.loss if newest else None,
        "metrics": newest.metrics if newest else {},
        "nonfinite": (rounds.nonfinite if rounds else []) + validation.nonfinite,
        "tokens_per_second": newest.tokens_per_second if newest else None,
        "tokens": progress.tokens,
        "seconds": run.age,
        "saving": saver.busy,
        "validating": validation.open,
        "paused": progress.paused,
        "paused_because": progress.paused_because,
        "cancelled": run.cancelled,
        "steps": run.steps,
    }


def doings(attempt: Attempt | None) -> dict[str, str]:
    """The activity of each member of the round under way, by name."""
    if attempt is None:
        return {}
    done = dict.fromkeys(attempt.computed, "exchanging")
    done |= dict.fromkeys(attempt.prepared, "prepared")
    return {name: done.get(name, "computing") for name in attempt.members}


def phase(run: RunState, attempt: Attempt | None) -> str:
    """`round`, or what the shepherd does between two of them."""
    if attempt is not None:
        return "round"
    if run.completing_since is not None:
        return "ending"
    return "paused" if run.progress.paused else "gathering"
