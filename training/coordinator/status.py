"""What a run is doing, as one JSON object: for dashboards and `pcp status`."""

from typing import TYPE_CHECKING, Any

from pcp.training.coordinator.attempt import Attempt

if TYPE_CHECKING:
    from pcp.training.coordinator.shepherd import Shepherd


def status_of(shepherd: "Shepherd") -> dict[str, Any]:
    """The state of the run; losses in nats a token, times in seconds."""
    rounds, now = shepherd.rounds, shepherd.now()
    attempt, progress = rounds.attempt, shepherd.ledger.progress
    newest, does = rounds.newest, doings(attempt)
    return {
        "run": str(shepherd.folder.path),
        "phase": phase(shepherd),
        "round": attempt.round if attempt else shepherd.committed,
        "rounds": shepherd.experiment.outer_loop_steps,
        "epoch": progress.epoch,
        "wanted": shepherd.wanted,
        "workers": [
            member.describe(now) | {"doing": does.get(member.name, member.state)}
            for member in shepherd.roster
        ],
        "prepared": len(attempt.prepared) if attempt else 0,
        "loss": newest.loss if newest else None,
        "nonfinite": rounds.nonfinite + shepherd.validation.nonfinite,
        "tokens_per_second": newest.tokens_per_second if newest else None,
        "tokens": progress.tokens,
        "seconds": shepherd.age,
        "saving": shepherd.saver.busy,
        "validating": shepherd.validation.open,
        **shepherd.orders.describe(),
    }


def doings(attempt: Attempt | None) -> dict[str, str]:
    """What each member does in the round under way, by name."""
    if attempt is None:
        return {}
    done = dict.fromkeys(attempt.computed, "exchanging")
    done |= dict.fromkeys(attempt.prepared, "prepared")
    return {name: done.get(name, "computing") for name in attempt.members}


def phase(shepherd: "Shepherd") -> str:
    """`round`, or what the shepherd does between two of them."""
    if shepherd.rounds.attempt:
        return "round"
    if shepherd.end.begun:
        return "ending"
    return "paused" if shepherd.orders.paused else "gathering"
