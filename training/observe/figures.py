"""A round as numbers by name, for those who draw curves of their own."""

from dataclasses import asdict

from pcp.training.storage.round_record import Round


def figures(record: Round) -> dict[str, float]:
    """Loss, speed, bytes, and `worker/0/loss` and so on: each worker's part."""
    norm = record.gradient_norm
    return {
        **({} if norm is None else {"gradient_norm": norm}),
        "loss": record.loss,
        "loss_min": record.loss_min,
        "loss_max": record.loss_max,
        "learning_rate": record.learning_rate,
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
