"""`from_optax`: optax's own optimizers in @apply, against optax."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.models.expanded_training import SHAPES, expanded, model, program, tensors

import pcp
from pcp.errors import ConfigError, PassError
from pcp.passes.core import functions
from pcp.passes.core.functions import symbol_name
from pcp.passes.training.optimizers import groups

optax = pytest.importorskip("optax")

STEPS = 20


def _matrices(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


CASES: dict[str, Callable[[], Any]] = {
    "adam": lambda: optax.adam(1e-2),
    "adamw with a schedule": lambda: optax.adamw(
        optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, STEPS), weight_decay=0.1
    ),
    "lion": lambda: optax.lion(1e-3),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "clipped": lambda: optax.chain(
        optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9)
    ),
    "masked": lambda: optax.chain(
        optax.masked(optax.add_decayed_weights(0.1), _matrices), optax.adam(1e-2)
    ),
    "by name": lambda: optax.multi_transform(
        {"matrix": optax.adam(1e-2), "rest": optax.sgd(0.1)},
        {"w": "matrix", "b": "rest", "s": "rest"},
    ),
    # What it keeps begins as the parameters, and not as zeros.
    "an average": lambda: optax.chain(
        optax.adam(1e-2), optax.contrib.schedule_free(optax.sgd(0.1), 0.1, b1=0.9)
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_twenty_steps_are_those_of_optax(case: str) -> None:
    tx = CASES[case]()
    optimizer = str(pcp.from_optax(tx))
    random = np.random.default_rng(0)
    params = dict(zip(SHAPES, tensors(random), strict=True))
    with program(expanded(model(), optimizer, keep=["init", "apply"])) as loaded:
        init, apply = (loaded.manifest.function(f) for f in ("init", "apply"))
        names = [t.name for t in init.results]
        first = map(np.array, loaded["init"](np.int64(0)))
        kept = dict(zip(names, first, strict=True))
        # From the parameters that @init draws, from which `tx` takes its state too.
        ours = {n: kept.pop(n) for n in SHAPES}
        theirs = {n: jnp.asarray(a) for n, a in ours.items()}
        state = tx.init(theirs)
        leaves = jax.tree.leaves(state)
        assert len(leaves) == len(kept) - 1
        for name, leaf in zip(kept, leaves, strict=False):
            np.testing.assert_array_equal(kept[name], leaf, err_msg=name)
        update = jax.jit(tx.update)
        for _ in range(STEPS):
            grads = dict(zip(SHAPES, tensors(random), strict=True))
            given = [*ours.values(), *grads.values(), *kept.values()]
            new = [np.array(x) for x in loaded["apply"](*map(np.array, given))]
            ours = dict(zip(SHAPES, new[:3], strict=True))
            kept = dict(zip(kept, new[3:], strict=True))
            changes, state = update(grads, state, theirs)
            theirs = optax.apply_updates(theirs, changes)
        for name, wanted in theirs.items():
            np.testing.assert_allclose(ours[name], wanted, rtol=1e-6, atol=1e-6)
        assert [t.name for t in apply.results] == [*SHAPES, *kept]
        assert kept["step"] == STEPS
    assert not all(np.array_equal(ours[n], params[n]) for n in SHAPES)


def test_it_sees_the_models_own_tree() -> None:
    """A mask for a nested tree, whose leaves are the program's in its order."""
    shapes = {"a": SHAPES["w"], "inner": {"b": SHAPES["b"]}, "s": SHAPES["s"]}
    tree = jax.tree.map(np.zeros, shapes, is_leaf=lambda x: isinstance(x, tuple))
    mask = {"a": True, "inner": {"b": False}, "s": False}
    tx = optax.masked(optax.adam(1e-2), mask)
    module = expanded(model(), str(pcp.from_optax(tx, tree)), keep=["init", "apply"])
    (apply,) = (op for op in module.body.operations if symbol_name(op) == "apply")
    names = [port.name for port in functions.argument_ports(apply.operation)]
    kept = ["count", "mu.a", "nu.a"]
    assert names[6:] == [*(f"inner_state.0.{name}" for name in kept), "step"]
    with pytest.raises(ConfigError, match="give it the tree that the model was traced"):
        expanded(model(), str(pcp.from_optax(tx, {"a": tree["a"]})))


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"float is no optax\.GradientTransformation"):
        pcp.from_optax(1e-3)
    with pytest.raises(ConfigError, match="letters, digits"):
        pcp.from_optax(optax.adam(1e-3), name="my adam")
    pcp.from_optax(optax.adam(1e-3), name="taken")
    with pytest.raises(ConfigError, match="taken is already a name"):
        pcp.from_optax(optax.adam(1e-3), name="taken")


def test_groups_are_its_own() -> None:
    name = str(pcp.from_optax(optax.adam(1e-3)))
    with pytest.raises(ConfigError, match=r"by optax\.multi_transform"):
        groups.parse(f"{name};*.b={{weight_decay=0}}")
    with pytest.raises(ConfigError, match="unknown key 'lr'"):
        groups.parse(f"{name}{{lr=1}}")


def test_a_type_that_it_changes_is_refused() -> None:
    def wrong(updates: Any, state: Any, params: Any = None) -> Any:
        return updates, jax.tree.map(lambda x: x.astype(jnp.float16), state)

    tx = optax.GradientTransformation(lambda p: p, wrong)
    with pytest.raises(PassError, match="does it change a type or a shape"):
        expanded(model(), str(pcp.from_optax(tx)))
