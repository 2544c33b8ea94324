"""Who holds the committed state, and what a shepherd holds of it."""

import gc
import weakref

from helpers.training_runs import experiment, run, start_shepherd, start_worker

from pcp.training import recovery
from pcp.training.ledger import read


def test_a_checkpoint_is_let_go_when_the_run_has_left_it_behind(tmp_path, monkeypatch):
    """Neither its arrays nor what the endpoint handed out stay in memory."""
    _, folder, _ = run(experiment(tmp_path, outer_loop_steps=2))
    held, served = [], recovery.snapshot_of

    def noted(saved, indices):
        arrays = served(saved, indices)
        held.extend(weakref.ref(array) for array in arrays.values())
        return arrays

    monkeypatch.setattr(recovery, "snapshot_of", noted)
    longer = experiment(tmp_path, outer_loop_steps=4)
    shepherd, _, thread = start_shepherd(longer, folder, workers=2)
    crew = [start_worker(shepherd.port, f"w{i}", pause=0.02) for i in range(2)]
    assert thread.finish().rounds == 4
    for worker in crew:
        worker.finish(10)
    sources = [r["source"] for r in read(folder.ledger)[0] if r["kind"] == "joined"]
    assert sources[-2:] == ["(checkpoint)"] * 2
    gc.collect()
    assert held
    assert not [ref for ref in held if ref() is not None]
