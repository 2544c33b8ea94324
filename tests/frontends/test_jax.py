"""from_jax: names from paths, roles from positions, JAX's values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.servers.iree_server import Iree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import pcp
from pcp.errors import IRError, UsageError
from pcp.frontends.jax import from_jax, weights_of
from pcp.frontends.signature import Argument, arguments_of

RANDOM = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(0, 0.1, shape).astype(np.float32)


PARAMS = {
    "layers": [{"w": _normal(4, 8), "b": np.zeros(8, np.float32)}],
    "out": np.ones((8, 2), np.float32),
}
X, Y = _normal(3, 4), _normal(3, 2)


def loss(params, x, y):
    """A small net that calls a private function (`gelu`) and uses CHLO (`erf`)."""
    layer = params["layers"][0]
    hidden = jax.nn.gelu(x @ layer["w"] + layer["b"], approximate=False)
    return jnp.mean((jax.nn.relu(hidden) @ params["out"] - y) ** 2)


def test_names_roles_and_inits() -> None:
    *weights, x, y = arguments_of(from_jax(loss, PARAMS, X, Y))
    assert [(a.name, a.role) for a in weights] == [
        ("params.layers.0.b", "param"),
        ("params.layers.0.w", "param"),
        ("params.out", "param"),
    ]
    assert [a.init for a in (weights[0], weights[2])] == ["zeros", "ones"]
    assert (x, y) == (Argument("x", "data"), Argument("y", "data"))


def test_weights_have_the_arguments_names() -> None:
    arguments = arguments_of(from_jax(loss, PARAMS, X, Y))
    weights = weights_of(loss, PARAMS, X, Y)
    assert list(weights) == [a.name for a in arguments if a.role == "param"]
    np.testing.assert_array_equal(weights["params.out"], PARAMS["out"])


def test_shapes_without_values_have_no_init() -> None:
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), PARAMS)
    arguments = arguments_of(from_jax(loss, shapes, X, Y))
    assert {a.init for a in arguments} == {None}
    assert weights_of(loss, shapes, X, Y) == {}


def test_integers_among_the_parameters_are_state() -> None:
    def counted(params, x):
        return jnp.sum(params["w"] * x) * params["step"]

    module = from_jax(counted, {"w": X, "step": np.int32(3)}, X)
    assert [a.role for a in arguments_of(module)] == ["frozen", "param", "data"]


def test_other_arguments_can_hold_the_parameters() -> None:
    module = from_jax(lambda x, w: jnp.sum(x @ w), X, X.T, params=[1])
    assert [a.role for a in arguments_of(module)] == ["data", "param"]


@pytest.mark.parametrize("params", [[7], [0, 2], [-1]])
def test_parameters_are_among_the_arguments(params: list[int]) -> None:
    says = f"there is no argument {max(params, key=abs)}; 2 are given, 0 to 1"
    with pytest.raises(UsageError, match=says):
        from_jax(lambda x, w: jnp.sum(x @ w), X, X.T, params=params)
    with pytest.raises(UsageError, match=says):
        weights_of(lambda x, w: jnp.sum(x @ w), X, X.T, params=params)


@pytest.mark.slow  # test_readme.py has one
def test_gradients_equal_jax() -> None:
    module = pcp.from_jax(loss, PARAMS, X, Y)
    bundle = pcp.compile(module, targets=["cpu:host"], mode="grad")
    program = pcp.Program.load(bundle, device="local-sync")
    leaves = [*jax.tree.leaves(PARAMS), X, Y]
    value, *gradients = program["grad"](*leaves)
    expected, theirs = jax.jit(jax.value_and_grad(loss))(PARAMS, X, Y)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for mine, other in zip(gradients, jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-7)


def test_unused_arguments_stay(iree: Iree) -> None:
    module = from_jax(lambda w, x: jnp.sum(w), X, Y)
    assert len(arguments_of(module)) == 2
    (total,) = iree.run(str(module), [X, Y])
    np.testing.assert_allclose(total, X.sum(), rtol=1e-5)


def test_a_jitted_function_that_drops_arguments_is_refused() -> None:
    with pytest.raises(IRError, match="dropped 1 unused of 2 arguments"):
        from_jax(jax.jit(lambda w, x: jnp.sum(w)), X, Y)


def test_shardings_become_annotations() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("dp",))
    sharding = NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(loss, in_shardings=sharding, keep_unused=True)
    text = str(from_jax(jitted, PARAMS, X, Y))
    assert 'pcp.axis<"dp", 1' in text
    assert "sdy" not in text
    with pytest.raises(UsageError, match="in_shardings: the function is jitted"):
        from_jax(jitted, PARAMS, X, Y, in_shardings=sharding)
