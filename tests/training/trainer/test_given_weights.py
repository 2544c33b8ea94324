"""Training that begins from given weights: all state that follows from them does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.worlds.bundle_runs import ran, save_npz
from helpers.worlds.training_cluster import load_bundle

import pcp
from pcp.errors import BundleError
from pcp.training.data.dataset import Batch

optax = pytest.importorskip("optax")

BATCH, WIDTH, STEPS = 4, 6, 5
WEIGHTS = {
    "w": np.linspace(1, 2, WIDTH, dtype=np.float32),
    "b": np.array(3.0, np.float32),
}

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "schedule-free": lambda: optax.contrib.schedule_free(optax.sgd(0.05), 0.05, b1=0.9),
    "lookahead": lambda: optax.chain(optax.adam(1e-2), _anchored()),
}


def _anchored() -> Any:
    """Updates are drawn back to the parameters that the state began with."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        new = jax.tree.map(lambda u, p, a: u - 0.1 * (p - a), updates, params, state)
        return new, state

    return optax.GradientTransformation(lambda params: params, update)


def _loss(params: Any, x: Any, y: Any) -> Any:
    return ((x @ params["w"] + params["b"] - y) ** 2).mean()


def _batches() -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(STEPS, BATCH, WIDTH)).astype(np.float32)
    return [{"x": a, "y": a.sum(1)} for a in x]


def _by_optax(tx: Any, weights: Any) -> Any:
    """Parameters behind each step."""
    params, grad = jax.tree.map(jnp.asarray, weights), jax.grad(_loss)
    state = tx.init(params)
    for batch in _batches():
        changes, state = tx.update(grad(params, **batch), state, params)
        params = optax.apply_updates(params, changes)
    return params


def _bundle(tx: Any, algorithm: str, **options: Any) -> Any:
    example = _batches()[0]
    module = pcp.from_jax(_loss, WEIGHTS, example["x"], example["y"])
    how = {"optimizer": pcp.from_optax(tx, WEIGHTS), "algorithm": algorithm}
    return pcp.compile(module, ["cpu"], mode="train", **how, **options)


def _train(trainer: Any) -> Any:
    positions = np.arange(BATCH)
    trainer.begin(STEPS, STEPS)
    for batch in _batches():
        trainer.step([Batch(batch, positions)])
    return {n.rpartition("/")[2]: a for n, a in trainer.outer(1.0, None).items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_five_steps_from_given_weights_are_those_of_optax(name: str) -> None:
    tx = OPTIMIZERS[name]()
    wanted = _by_optax(tx, WEIGHTS)
    bundle = _bundle(tx, "none")
    names = [p.name for p in bundle.manifest.parameters]
    given = dict(zip(names, (WEIGHTS["b"], WEIGHTS["w"]), strict=True))
    snapshot = {f"parameter/{n}": a for n, a in given.items()}
    trainer = load_bundle(bundle.to_bytes())
    trainer.restore(snapshot, 0)
    runs = {"a worker": _train(trainer)}
    # The state of a run that begins again is not that of the steps it made.
    trainer.adopt({f"parameter/{n}": a for n, a in runs["a worker"].items()})
    trainer.restore(snapshot, 0)
    runs["a worker that begins again"] = _train(trainer)
    trainer.close()
    steps = load_bundle(bundle.to_bytes()).steps
    steps.start(0, given)
    for batch in _batches():
        steps.step(batch)
    held = steps.held("param")
    runs["pcp run"] = {n: np.array(a) for (_, n), a in held.items()}
    steps.close()
    for what, found in runs.items():
        for short, array in zip(names, (wanted["b"], wanted["w"]), strict=True):
            close = {"rtol": 1e-6, "atol": 1e-6, "err_msg": f"{what}: {short}"}
            np.testing.assert_allclose(found[short], array, **close)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spread",
    [{"mesh": "dp=2", "zero": 1}, {"mesh": "dp=2", "zero": 3}, {"mesh": "pp=2"}],
)
def test_over_a_mesh_they_are_those_of_the_whole(
    spread: dict[str, Any], tmp_path: Path
) -> None:
    batches, found = _batches(), []
    for i, options in enumerate(({}, spread)):
        bundle = _bundle(OPTIMIZERS["schedule-free"](), "none", **options)
        names = [p.name for p in bundle.manifest.parameters]
        given = dict(zip(names, (WEIGHTS["b"], WEIGHTS["w"]), strict=True))
        takes = bundle.manifest.function("grad").inputs
        takes = [t for t in takes if t.role == "data"]
        given |= {
            t.name: np.stack([b[n] for b in batches])
            for t, n in zip(takes, "xy", strict=True)
        }
        save_npz(tmp_path / "in.npz", given)
        (tmp_path / f"{i}.pcp").write_bytes(bundle.to_bytes())
        found.append(ran(tmp_path / f"{i}.pcp", tmp_path / "in.npz", "--steps", "5"))
    for name, wanted in found[0].items():
        np.testing.assert_allclose(found[1][name], wanted, rtol=1e-6, err_msg=name)


def test_an_older_bundle_is_refused() -> None:
    """It has no `@inner_init`: the state would be that of the seed's parameters."""
    bundle = _bundle(OPTIMIZERS["schedule-free"](), "none")
    trainer = load_bundle(bundle.to_bytes())
    steps = trainer.steps
    drawn = steps.initial(0)
    del steps._own["inner_init"]
    with pytest.raises(BundleError, match=r"begins as a parameter.*compile the model"):
        steps.initial(0, {k: a for k, a in drawn.items() if k[0] == "param"})
    assert steps.initial(0).keys() == drawn.keys(), "nothing is given: the seed's it is"
    trainer.close()
