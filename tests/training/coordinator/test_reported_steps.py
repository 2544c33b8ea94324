"""What a step takes is known to a shepherd that did not see it: reports say it."""

from helpers.models.bigram_numpy import BLOCK
from helpers.simulation.pure_run import PREPARED, Peer, World, a_run, hello
from helpers.simulation.run_schedules import program

from pcp.training.coordinator.effects import Append
from pcp.training.coordinator.events import Compiled, Lost, Received, Tick
from pcp.training.data.lease_pool import size
from pcp.training.wire.messages import Heartbeat, Whereabouts


def test_a_round_that_it_finds_prepared_says_what_a_step_took() -> None:
    """A member that hangs behind it has no ten minutes."""
    before = World("a")
    before.tick()
    order = before.peers["a"].order
    took = {"steps": order.steps, "compute_seconds": 2.0, "data_wait_seconds": 4.0}
    said = {"epoch": order.epoch, "tokens": size(order.lease) * BLOCK, **took}
    run, peer = a_run(ledger=before.ledger), Peer("a")
    found = {"run": "run", "committed": 0, "bundle": program("together").digest}
    back = found | {"prepared": PREPARED.model_copy(update=said)}
    run.step(Received(peer, hello("a").model_copy(update=back)), 0.0)
    run.step(Compiled(peer, program("together")), 0.0)
    effects = run.step(Tick(), 0.0)
    (commit,) = [e for e in effects if isinstance(e, Append) and e.kind == "commit"]
    assert commit.fields["usual_step_seconds"] == 6.0 / order.steps
    steps = Whereabouts(call="step", steps=order.steps, since=0.1)
    run.step(Received(peer, Heartbeat(at=steps)), 1.0)
    assert run.state.roster["a"].pace.limit == 10 * 6.0 / order.steps


def test_a_round_that_is_tried_again_says_what_a_step_took() -> None:
    """As the member says: the shepherd did not see when its steps began."""
    world = World("a", "b")
    world.tick()
    world.step(Lost(world.peers["b"], "broken"))
    world.computes("a")
    world.prepares("a", compute_seconds=8.0)
    assert world.committed == 1
    assert world.run.state.roster["a"].pace.usual == 8.0 / world.peers["a"].order.steps
