"""Streaming DiLoCo when a member dies between a fragment's leaving and coming back."""

import signal
import threading
from typing import Any

import numpy as np
import pytest
from helpers.models.closed_form import RATE, batches, bundle, gradients
from helpers.servers.processes import Processes
from helpers.worlds.communicators import eventually
from helpers.worlds.training_runs import experiment, start_shepherd

from pcp.errors import RuntimeFault
from pcp.runtime.communicator.communicator import Communicator
from pcp.training.storage.ledger import check
from pcp.training.trainer.fragment_exchange import FragmentExchange
from pcp.training.trainer.load import load

H = 6
WORKER = "helpers.worlds.bundle_worker"


class Members:
    """Trainers of one group in threads, of which some may be told to stop."""

    def __init__(self, code: Any, count: int) -> None:
        self.data = [batches(H, worker) for worker in range(count)]
        self.trainers = [load(code, "local-sync", None) for _ in range(count)]
        for trainer in self.trainers:
            trainer.fresh(3)

    def each(self, ranks: list[int], work: Any) -> list[Any]:
        """`work(rank)` in a thread each; results, or the faults they ended with."""
        results: dict[int, Any] = {}

        def run(rank: int) -> None:
            try:
                results[rank] = work(rank)
            except BaseException as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a member hangs"
        return [results[rank] for rank in ranks]

    def steps(self, rank: int, first: int, last: int) -> None:
        """Inner steps first to last, and the turns before each of them."""
        trainer = self.trainers[rank]
        for batch in self.data[rank][first:last]:
            trainer.turn()
            trainer.step([batch])


@pytest.mark.slow  # a process dies, too, below
def test_what_was_complete_stays_and_the_rest_is_exchanged_again() -> None:
    """Linear loss, γ = 1: fragment 0 has all three members, fragment 1 two."""
    options = "fragments=2,tau=2,alpha=0,wire=f32,lr=1.0,momentum=0.0"
    members = Members(bundle("linear", f"streaming_diloco{{{options}}}"), 3)
    trainers = members.trainers
    whole = Communicator.in_process(3, timeout=20)

    def until_it_dies(rank: int) -> Any:
        trainers[rank].join(whole[rank])
        trainers[rank].begin(H, 1)
        if rank == 2:  # as long as fragment 0, then it is gone
            members.steps(rank, 0, 4)
            whole[rank].close()
            return None
        members.steps(rank, 0, H)
        with pytest.raises(RuntimeFault):
            trainers[rank].turn()
        return trainers[rank].progress

    epoch = whole[0].epoch
    assert members.each([0, 1, 2], until_it_dies) == [[epoch, -1]] * 2 + [None]
    exchange = trainers[0].exchange
    assert isinstance(exchange, FragmentExchange)
    assert exchange._at == H
    rest = Communicator.in_process(2, timeout=20)

    def go_on(rank: int) -> Any:
        whole[rank].close()
        trainers[rank].join(rest[rank])
        trainers[rank].resume()
        trainers[rank].turn()
        return trainers[rank].outer(1, rest[rank])

    found = members.each([0, 1], go_on)
    # Fragment 0 is back at step 3 and left at 1; fragment 1 left at 4, due at 6.
    for name, stop, who in (("h.0.w", 1, 3), ("h.1.v", 4, 2)):
        moved = [gradients(b)[name] for mine in members.data[:who] for b in mine[:stop]]
        wanted = -RATE * np.sum(moved, axis=0, dtype=np.float64) / who
        for state in found:
            np.testing.assert_allclose(
                state[f"parameter/{name}"], wanted, rtol=0, atol=1e-5
            )
        assert (
            found[0][f"parameter/{name}"].tobytes()
            == found[1][f"parameter/{name}"].tobytes()
        )
    for thing in (*rest, *trainers):
        thing.close()


def test_a_process_killed_between_leaving_and_coming_back(tmp_path) -> None:
    """The others go on behind fragment 0, and every round is committed by digest."""
    (tmp_path / "text").write_bytes(b"the quick brown fox jumps over the dog. " * 8000)
    exp = experiment(tmp_path, tau=H, outer_loop_steps=5, vocabulary_size=128)
    code = bundle("quadratic", "streaming_diloco{fragments=2,tau=2}").to_bytes()
    shepherd, watcher, thread = start_shepherd(
        exp, compile_for=lambda target: code, workers=3
    )
    with Processes() as started:
        crew = [started.start(WORKER, n, shepherd.port, 0.08) for n in ("a", "b", "c")]
        watcher.wait_for_round(2)
        seen, between = len(crew[2].lines), "left [0, 1], back [0]"
        eventually(
            lambda: any(between in line for line in crew[2].lines[seen:]),
            20,
            lambda: crew[2].text,
        )
        crew[2].signal(signal.SIGKILL)
        crew.pop()
        outcome = thread.finish(60)
        for process in crew:
            process.wait_for("ended: the run is complete")
            assert process.wait() == 0, process.text
        behind = [line for line in crew[0].lines if "begins again" in line]
        assert not behind, behind
    assert outcome.rounds == 5
    assert any("goes on with 2 workers" in line for line in watcher.lines)
    sizes = [record.workers for record in watcher.rounds]
    assert sizes[0] == 3
    assert sizes[-1] == 2
    assert check(shepherd.folder.ledger).consumed == 2 * H * sum(sizes)
