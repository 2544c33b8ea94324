"""Records of rounds as a shepherd makes them, for what shows them."""

from pcp.training.storage.round_record import MemberRound, Round


def member(worker: int, loss: float = 2.5) -> MemberRound:
    """A worker's part of a round."""
    return MemberRound(
        worker=worker,
        loss=loss,
        steps=4,
        tokens=500,
        compute_seconds=1.5,
        exchange_seconds=0.5,
        bytes_sent=2_000_000,
        bytes_received=2_000_000,
        processor_seconds=1.7,
        resident_bytes=100_000_000,
    )


def record(number: int, loss: float = 2.5) -> Round:
    """A round of two workers."""
    return Round(
        round=number,
        epoch=1,
        workers=2,
        loss=loss,
        loss_first=loss,
        loss_min=loss - 0.1,
        loss_max=loss + 0.1,
        tokens=1000,
        tokens_total=1000 * number,
        seconds=2.0,
        tokens_per_second=500.0,
        bytes_sent=4_000_000,
        bytes_sent_per_worker=2_000_000,
        compute_seconds=1.5,
        exchange_seconds=0.5,
        learning_rate=0.1,
        time=0.0,
        members=(member(0, loss), member(1, loss)),
    )
