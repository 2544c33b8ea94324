"""A run whose members have identities: each may do what its role allows."""

import pytest
from helpers.models.bigram_numpy import BigramTrainer
from helpers.worlds.communicators import eventually
from helpers.worlds.identities import member
from helpers.worlds.training_runs import Background, experiment, start_shepherd

from pcp.errors import PcpError
from pcp.runtime import Endpoint
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.tls import KeyTls
from pcp.training.shepherd.server import Server
from pcp.training.storage.ledger import check
from pcp.training.wire.channel import connect
from pcp.training.wire.operator_messages import (
    StatusQuery,
)
from pcp.training.worker.worker import Identity, Worker


def start(port: int, name: str, protected: Protection, pause: float = 0.01):
    """A worker in a thread."""
    worker = Worker(
        Identity(name=name, host="127.0.0.1", port=port),
        Endpoint.listen("127.0.0.1:0", **protected.options),
        lambda content: BigramTrainer(pause),
        lambda text: None,
        protection=protected,
    )
    return Background(worker.run)


def protected(folder, role: str, name: str = "") -> tuple[Protection, str]:
    """What a process in this role brings, and its id."""
    tls, number = member(folder, role, name=name)
    return Protection(tls=tls), number


def test_members_train_and_other_roles_do_not(tmp_path) -> None:
    exp = experiment(tmp_path, outer_loop_steps=4)
    own, _ = protected(tmp_path, "shepherd")
    shepherd, _, thread = start_shepherd(exp, workers=2, protection=own)
    reader, _ = protected(tmp_path, "reader")
    with pytest.raises(PcpError, match="not for the role reader"):
        start(shepherd.port, "spy", reader).finish()
    asks = connect("127.0.0.1", shepherd.port, 5, reader)
    asks.send(StatusQuery())
    assert asks.receive(10).kind == "status"
    asks.close()
    one, two = (protected(tmp_path, "worker", name)[0] for name in "ab")
    crew = [start(shepherd.port, "a", one)]
    eventually(lambda: "a" in shepherd.roster, 10)
    with pytest.raises(PcpError, match="the name a belongs to another identity"):
        start(shepherd.port, "a", two).finish()
    crew.append(start(shepherd.port, "b", two))
    assert thread.finish().rounds == 4
    assert [worker.finish(10) for worker in crew] == ["the run is complete"] * 2


def test_a_worker_obeys_no_worker(tmp_path) -> None:
    """It answers the dial, with a certificate of the run's own issuer."""
    imposter, _ = protected(tmp_path, "worker", "imposter")
    hub = Server("127.0.0.1", 0, imposter)
    try:
        victim, _ = protected(tmp_path, "worker", "victim")
        with pytest.raises(PcpError, match="the role worker, not shepherd"):
            start(hub.port, "victim", victim).finish()
    finally:
        hub.close()


def test_who_is_revoked_while_the_run_goes_on_is_out(tmp_path) -> None:
    exp = experiment(tmp_path, outer_loop_steps=30)
    own, _ = protected(tmp_path, "shepherd")
    shepherd, watcher, thread = start_shepherd(exp, workers=2, protection=own)
    good, _ = protected(tmp_path, "worker", "good")
    bad, number = protected(tmp_path, "worker", "bad")
    crew = start(shepherd.port, "good", good, 0.02)
    lost = start(shepherd.port, "bad", bad, 0.02)
    watcher.wait_for_round(3)
    with open(tmp_path / "revoked", "a") as file:
        file.write(f"{number}\n")
    with pytest.raises(PcpError, match="revoked"):
        lost.finish()
    assert thread.finish(60).rounds == 30
    assert crew.finish(10) == "the run is complete"
    assert any("its identity is revoked" in line for line in watcher.lines)
    assert watcher.rounds[-1].workers == 1
    check(shepherd.folder.ledger)


def test_a_run_with_a_key_alone_is_encrypted(tmp_path) -> None:
    exp = experiment(tmp_path, outer_loop_steps=3)
    keyed = Protection(key=b"the key of this run", tls=KeyTls())
    shepherd, _, thread = start_shepherd(exp, workers=2, protection=keyed)
    wrong = Protection(key=b"the key of another run", tls=KeyTls())
    with pytest.raises(PcpError, match="another key"):
        start(shepherd.port, "c", wrong).finish()
    crew = [start(shepherd.port, name, keyed) for name in "ab"]
    assert thread.finish().rounds == 3
    assert [worker.finish(10) for worker in crew] == ["the run is complete"] * 2
