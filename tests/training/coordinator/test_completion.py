"""The end of a run: nothing is left to do, and that stays so."""

from helpers.models.bigram_numpy import BigramTrainer
from helpers.worlds.training_runs import (
    Background,
    checkpoint_of,
    experiment,
    start_shepherd,
    start_worker,
)

from pcp.errors import PeerLost
from pcp.runtime import Endpoint
from pcp.training.coordinator import checkpointing
from pcp.training.shepherd import checkpointer
from pcp.training.storage.ledger import check
from pcp.training.wire.messages import (
    Shutdown,
)
from pcp.training.worker.worker import Identity, Worker


def test_who_is_lost_with_the_last_round_costs_that_round(
    tmp_path, monkeypatch
) -> None:
    """The run had begun to end; now it makes the round again, and ends behind it."""
    # Longer than going back takes.
    monkeypatch.setattr(checkpointing, "_RETRY_SECONDS", 1.0)
    exp = experiment(tmp_path)
    shepherd, watcher, thread = start_shepherd(exp, workers=1)
    shepherd.state.grace = 0.3
    identity = Identity("a", "127.0.0.1", shepherd.port)
    endpoint = Endpoint.listen("127.0.0.1:0")
    only = Worker(identity, endpoint, lambda _: BigramTrainer(), lambda line: None)
    gather, faults = checkpointer.gather, [PeerLost("it is gone")]

    def goes(addresses, round_, *more):
        if round_ == exp.outer_loop_steps and faults:
            only._received(Shutdown(reason="gone"))
            raise faults.pop()
        return gather(addresses, round_, *more)

    monkeypatch.setattr(checkpointer, "gather", goes)
    assert Background(only.run).finish() == "gone"
    other = start_worker(shepherd.port, "b")
    outcome = thread.finish()
    assert any("holds round 5 any more: back to" in x for x in watcher.lines)
    assert outcome.rounds == check(shepherd.folder.ledger).rounds == 5
    assert checkpoint_of(outcome).round == 5
    assert other.finish(10) == "the run is complete"
