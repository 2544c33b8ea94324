"""The figures of a round by name, for drawing curves."""

from dataclasses import asdict

from pcp.training.storage.round_record import Round


def figures(record: Round) -> dict[str, float]:
    """Loss, speed, bytes, and those of each worker, as `worker/0/loss`."""
    known = {
        "gradient_norm": record.gradient_norm,
        "learning_rate": record.learning_rate,
    }
    return {
        **{name: value for name, value in known.items() if value is not None},
        "loss": record.loss,
        "loss_min": record.loss_min,
        "loss_max": record.loss_max,
        "active_workers": record.workers,
        "round_seconds": record.seconds,
        "tokens_per_second": record.tokens_per_second,
        "tokens": record.tokens_total,
        "bytes_sent": record.bytes_sent,
        **{
            f"worker/{member.worker}/{key}": value
            for member in record.members
            for key, value in asdict(member).items()
            if key != "worker" and value is not None
        },
    }
