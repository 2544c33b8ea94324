"""Models of flax, equinox and haiku, with their own split: JAX's loss and gradients."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pcp
from pcp.dialect.bindings import ir
from pcp.errors import UsageError
from pcp.frontends.jax import path_of
from pcp.frontends.signature import arguments_of, results_of
from pcp.runtime.program.executor import Program
from pcp.training.storage import checkpoint
from pcp.training.trainer.step_loop import Steps

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 6, 8), np.float32)
Y = RANDOM.standard_normal((4, 6, 8), np.float32)


def loss(model: Callable[..., Any], x: Any, y: Any) -> Any:
    return jnp.square(model(x) - y).mean()


def run(module: ir.Module, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Loss, new state, metrics and gradients by name, through IREE."""
    bundle = pcp.compile(module, ["cpu:host"], mode="grad")
    arguments = arguments_of(module)
    with Program.load(bundle, device="local-sync") as program:
        found = program["grad"](*(np.asarray(values[a.name]) for a in arguments))
        made = [np.array(x) for x in found]
    names = [r.name for r in results_of(module)] or ["loss"]
    return dict(
        zip(
            [*names, *(a.name for a in arguments if a.role == "param")],
            made,
            strict=True,
        )
    )


def flat(tree: Any, root: str) -> dict[str, Any]:
    """The leaves of nested dicts by their paths."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {f"{root}.{path_of(path)}": leaf for path, leaf in leaves}


def check(found: Mapping[str, np.ndarray], wanted: Mapping[str, Any]) -> None:
    largest = max(float(np.abs(array).max()) for array in wanted.values())
    for name, array in wanted.items():
        np.testing.assert_allclose(
            found[name], array, rtol=0, atol=1e-5 * largest, err_msg=name
        )


def roles(module: ir.Module) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for argument in arguments_of(module):
        found.setdefault(argument.role, set()).add(argument.name)
    return found


def linen_block() -> Any:
    """A transformer of linen, with statistics of batch norm."""
    linen = pytest.importorskip("flax.linen")

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            y = linen.LayerNorm()(x)
            x = x + linen.MultiHeadDotProductAttention(num_heads=2)(y, y)
            y = linen.BatchNorm(use_running_average=False)(x)
            return x + linen.Dense(8)(linen.gelu(linen.Dense(16)(y)))

    return Block()


@pytest.mark.slow  # that of nnx stays
def test_a_transformer_of_linen() -> None:
    model = linen_block()
    variables = model.init(jax.random.key(0), X)
    module = pcp.from_flax(model, variables, loss, X, Y, mutable=["batch_stats"])
    stats = flat({"batch_stats": variables["batch_stats"]}, "state")
    params = flat(variables["params"], "params")
    assert roles(module) == {
        "param": {*params},
        "state": {*stats},
        "data": {"x", "y"},
    }

    def theirs(params: Any) -> Any:
        given = {**variables, "params": params}
        made, new = model.apply(given, X, mutable=["batch_stats"])
        return jnp.square(made - Y).mean(), new

    (value, new), grads = jax.value_and_grad(theirs, has_aux=True)(variables["params"])
    wanted = {"loss": value, **flat(new, "state"), **flat(grads, "params")}
    check(run(module, {**params, **stats, "x": X, "y": Y}), wanted)


Case = tuple[ir.Module, Any, Any, Callable[[Any, Any], tuple[Any, Any]]]
"""A program, parameters and state of the framework, and its loss with the new state."""


def _linen() -> Case:
    model = linen_block()
    variables = model.init(jax.random.key(0), X)
    module = pcp.from_flax(model, variables, loss, X, Y, mutable=["batch_stats"])

    def theirs(params: Any, state: Any) -> Any:
        made, new = model.apply({"params": params, **state}, X, mutable=["batch_stats"])
        return jnp.square(made - Y).mean(), new

    state = {"batch_stats": variables["batch_stats"]}
    return module, variables["params"], state, theirs


def _nnx() -> Case:
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.norm = nnx.LayerNorm(8, rngs=rngs)
            self.mix = nnx.MultiHeadAttention(2, 8, rngs=rngs, decode=False)
            self.up = nnx.Linear(8, 16, rngs=rngs)
            self.down = nnx.Linear(16, 8, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.mix(self.norm(x))
            return x + self.down(jax.nn.gelu(self.up(x)))

    model = Block(nnx.Rngs(0))
    module = pcp.from_nnx(model, loss, X, Y)
    graph, first, rest = nnx.split(model, nnx.Param, ...)

    def theirs(params: Any, _: Any) -> Any:
        filled = jax.tree.map(lambda x: x, first)
        nnx.replace_by_pure_dict(filled, params)
        return loss(nnx.merge(graph, filled, rest), X, Y), {}

    return module, nnx.to_pure_dict(first), {}, theirs


def _equinox() -> Case:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(8, 8, 16, 2, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def batched(model: Any, x: Any, y: Any) -> Any:
        return loss(jax.vmap(jax.vmap(model)), x, y)

    def theirs(params: Any, _: Any) -> Any:
        return batched(eqx.combine(params, static), X, Y), {}

    return pcp.from_equinox(model, batched, X, Y), params, {}, theirs


@pytest.mark.slow  # it compiles three training programs; their gradients are above
@pytest.mark.parametrize("case", [_linen, _nnx, _equinox])
def test_five_steps_are_optaxs_and_what_is_saved_is_read(
    case: Callable[[], Case], tmp_path: Path
) -> None:
    optax = pytest.importorskip("optax")
    module, params, state, theirs = case()
    optimizer = "adamw{lr=0.001,weight_decay=0.1}"
    bundle = pcp.compile(
        module, ["cpu:host"], mode="train", optimizer=optimizer, algorithm="none"
    )
    given = flat(params, "params") | flat(state, "state")
    tx = optax.adamw(1e-3, weight_decay=0.1)
    kept = tx.init(params)
    gradient = jax.value_and_grad(theirs, has_aux=True)
    with Program.load(bundle, device="local-sync") as program:
        steps = Steps(program, bundle.manifest)
        steps.start(0, {name: np.asarray(value) for name, value in given.items()})
        for step in range(5):
            found = float(steps.step({"x": X, "y": Y}))
            (value, state), grads = gradient(params, state)
            updates, kept = tx.update(grads, kept, params)
            params = optax.apply_updates(params, updates)
            assert found == pytest.approx(float(value), rel=1e-4), f"step {step}"
        held = {n: np.array(a) for (_, n), a in steps.held("param").items()}
        last = float(steps.step({"x": X, "y": Y}))
        steps.close()
    saved = checkpoint.save(tmp_path, checkpoint.Checkpoint(1, held, {}))
    read = checkpoint.load(saved).parameters
    filled = jax.tree_util.tree_map_with_path(
        lambda path, _: jnp.asarray(read[f"params.{path_of(path)}"]), params
    )
    assert last == pytest.approx(float(theirs(filled, state)[0]), rel=1e-5)


def test_collections_that_are_not_written_are_frozen() -> None:
    linen = pytest.importorskip("flax.linen")
    model = linen.BatchNorm(use_running_average=True)
    variables = model.init(jax.random.key(0), X)
    module = pcp.from_flax(model, variables, loss, X, Y)
    frozen = flat({"batch_stats": variables["batch_stats"]}, "frozen")
    assert roles(module)["frozen"] == {*frozen}
    assert "state" not in roles(module)
    with pytest.raises(UsageError, match="no such collection"):
        pcp.from_flax(model, variables, loss, X, Y, mutable=["cache"])


def test_dropout_of_linen_follows_from_the_key() -> None:
    linen = pytest.importorskip("flax.linen")
    model = linen.Sequential([linen.Dense(8), linen.Dropout(0.5, deterministic=False)])
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = model.init(keys, X)
    module = pcp.from_flax(model, variables, loss, X, Y, rngs=["dropout"])
    assert roles(module)["key"] == {"rng"}
    seed = jax.random.key(7)
    folded = {"dropout": jax.random.fold_in(seed, 0)}
    wanted = jnp.square(model.apply(variables, X, rngs=folded) - Y).mean()
    given = flat(variables["params"], "params") | {"x": X, "y": Y}
    found = run(module, given | {"rng": jax.random.key_data(seed)})
    assert found["loss"] == pytest.approx(float(wanted), rel=1e-5)


def test_a_transformer_of_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.mix = nnx.MultiHeadAttention(2, 8, rngs=rngs, decode=False)
            self.out, self.drop = (
                nnx.Linear(8, 8, rngs=rngs),
                nnx.Dropout(0.5, rngs=rngs),
            )

        def __call__(self, x: Any) -> Any:
            return self.drop(self.out(x + self.mix(self.norm(x))))

    model = Block(nnx.Rngs(0))
    module = pcp.from_nnx(model, loss, X, Y)
    seed = jax.random.key(7)
    nnx.reseed(model, default=jax.random.fold_in(seed, 0))
    _, params, _, rest = nnx.split(model, nnx.Param, nnx.RngState, ...)
    params, rest = nnx.to_pure_dict(params), nnx.to_pure_dict(rest)
    given = flat(params, "params") | flat(rest, "state")
    assert roles(module)["param"] == {*flat(params, "params")}
    found = run(module, given | {"x": X, "y": Y, "rng": jax.random.key_data(seed)})
    value, grads = nnx.value_and_grad(loss)(model, X, Y)
    after = nnx.to_pure_dict(nnx.split(model, nnx.Param, nnx.RngState, ...)[3])
    grads = flat(nnx.to_pure_dict(grads), "params")
    check(found, {"loss": value, **flat(after, "state"), **grads})


def test_a_perceptron_of_equinox() -> None:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(8, 8, 16, 2, key=jax.random.key(0))

    def batched(model: Any, x: Any, y: Any) -> Any:
        return loss(jax.vmap(jax.vmap(model)), x, y), {"scale": jnp.square(y).mean()}

    module = pcp.from_equinox(model, batched, X, Y, has_aux=True)
    params = flat(eqx.filter(model, eqx.is_inexact_array), "params")
    assert roles(module) == {"param": {*params}, "data": {"x", "y"}}
    (value, metrics), grads = eqx.filter_value_and_grad(batched, has_aux=True)(
        model, X, Y
    )
    wanted = {"loss": value, **metrics, **flat(grads, "params")}
    check(run(module, {**params, "x": X, "y": Y}), wanted)


def test_state_and_keys_of_equinox() -> None:
    eqx = pytest.importorskip("equinox")
    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(8, "batch", mode="batch")

    def batched(model: Any, state: Any, x: Any, *, key: Any) -> Any:
        over = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        made, state = over(x, state)
        noise = jax.random.normal(key, made.shape)
        return jnp.square(made + noise).mean(), state

    rows = X[:, 0]
    module = pcp.from_equinox(model, batched, rows, state=state, key=True)
    assert roles(module)["key"] == {"rng"}
    seed = jax.random.key(3)
    params = flat(eqx.filter(model, eqx.is_inexact_array), "params")
    given = params | flat(state, "state")
    found = run(module, given | {"x": rows, "rng": jax.random.key_data(seed)})
    value, new = batched(model, state, rows, key=seed)
    check(found, {"loss": value, **flat(new, "state")})


def test_a_model_of_haiku() -> None:
    haiku: Any = pytest.importorskip("haiku")

    def forward(x: Any) -> Any:
        x = haiku.BatchNorm(True, True, 0.9)(haiku.Linear(8)(x), is_training=True)
        return haiku.dropout(haiku.next_rng_key(), 0.5, x)

    model = haiku.transform_with_state(forward)
    params, state = model.init(jax.random.key(0), X)
    module = pcp.from_haiku(model, params, loss, X, Y, state=state, key=True)
    seed = jax.random.key(3)
    given = flat(params, "params") | flat(state, "state") | {"x": X, "y": Y}

    def theirs(params: Any) -> Any:
        made, new = model.apply(params, state, seed, X)
        return jnp.square(made - Y).mean(), new

    (value, new), grads = jax.value_and_grad(theirs, has_aux=True)(params)
    found = run(module, given | {"rng": jax.random.key_data(seed)})
    check(found, {"loss": value, **flat(new, "state"), **flat(grads, "params")})


def test_names_of_data_must_be_free() -> None:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.Linear(8, 8, key=jax.random.key(0))
    with pytest.raises(UsageError, match="'params'"):
        pcp.from_equinox(model, lambda model, params: params.sum(), X)
