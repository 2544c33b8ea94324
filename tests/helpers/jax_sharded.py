"""JAX programs with shardings over four devices, against JAX on one.

Run as a program (`python -m helpers.jax_sharded NAME`) in a process of its own: the
number of JAX's devices is decided when it starts. Prints one line of JSON.
"""

import json
import os
import sys
from collections.abc import Callable

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from pcp.dialect.bindings import ir
from pcp.frontends.jax import from_jax
from pcp.layout import shard
from pcp.passes.propagate_sharding import port_shardings
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.mesh import read_meshes


def mesh(**axes: int):
    """A mesh of JAX's."""
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


def weights() -> dict[str, np.ndarray]:
    """A network of two layers."""
    random = np.random.default_rng(0)
    shapes = {"a": (4, 8), "b": (8, 4)}
    return {k: random.normal(size=s).astype(np.float32) for k, s in shapes.items()}


def batch() -> np.ndarray:
    """Its input."""
    return np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)


def network(w, x):
    """Two layers."""
    return jax.nn.relu(jnp.tanh(x @ w["a"])) @ w["b"]


def by_arguments():
    """Shardings of arguments and results only: Megatron's cut."""
    m = mesh(dp=2, tp=2)
    given = (
        {"a": NamedSharding(m, P(None, "tp")), "b": NamedSharding(m, P("tp", None))},
        NamedSharding(m, P("dp", None)),
    )
    return network, given, NamedSharding(m, P("dp", None))


def by_constraint():
    """Only a value inside, one of its dimensions left open."""
    m = mesh(dp=2, tp=2)

    def function(w, x):
        hidden = jnp.tanh(x @ w["a"])
        spec = P("dp", P.UNCONSTRAINED)
        hidden = jax.lax.with_sharding_constraint(hidden, NamedSharding(m, spec))
        return jax.nn.relu(hidden) @ w["b"]

    return function, None, None


def two_axes():
    """One dimension along two axes, the minor one first in the mesh."""
    m = mesh(x=2, y=2)
    rest = NamedSharding(m, P())
    given = ({"a": rest, "b": rest}, NamedSharding(m, P(("y", "x"), None)))
    return network, given, NamedSharding(m, P(None, "x"))


def nested():
    """A jitted function inside, with shardings of its own."""
    m = mesh(dp=4)
    cut = NamedSharding(m, P("dp", None))
    inner = jax.jit(jnp.tanh, in_shardings=cut, out_shardings=cut)

    def function(w, x):
        return inner(x @ w["a"]) @ w["b"]

    return function, None, None


def gradient():
    """Values and gradients of a loss, the batch and a weight cut."""
    m = mesh(dp=2, tp=2)
    given = (
        {"a": NamedSharding(m, P(None, "tp")), "b": NamedSharding(m, P("tp", None))},
        NamedSharding(m, P("dp", None)),
    )

    def function(w, x):
        return jax.value_and_grad(lambda v: (network(v, x) ** 2).mean())(w)

    return function, given, None


def whole_body():
    """A shard_map that cuts nothing is the program of whole tensors."""
    m = mesh(dp=4)
    body = jax.shard_map(
        lambda x: jnp.tanh(x) * 2, mesh=m, in_specs=P(), out_specs=P(), check_vma=False
    )
    return lambda w, x: body(x @ w["a"]) @ w["b"], None, None


CASES: dict[str, Callable] = {
    case.__name__: case
    for case in (by_arguments, by_constraint, two_axes, nested, gradient, whole_body)
}


def placements(module: ir.Module, arguments, given) -> list[str]:
    """Where an argument's parts differ from those that JAX's sharding says."""
    if given is None:
        return []
    (own,) = read_meshes(module).values()
    main = next(
        o.operation for o in module.body.operations if "func" in o.operation.name
    )
    shardings = port_shardings(main, "arg_attrs", len(arguments))
    wrong = []
    for i, (array, ours, theirs) in enumerate(
        zip(arguments, shardings, jax.tree.leaves(given), strict=True)
    ):
        parts = shard(array, from_attribute(ours), own)
        where = theirs.devices_indices_map(array.shape)
        for device, part in zip(theirs.mesh.devices.flat, parts, strict=True):
            if not np.array_equal(array[where[device]], part):
                wrong.append(f"argument {i} on {device}")
    return wrong


def check(name: str) -> dict:
    """The greatest relative error, wrong places, and how much is communicated."""
    from helpers.random_spmd import PLAN, run_joined

    from pcp.compiler.catalog import pipeline

    function, given, out = CASES[name]()
    w, x = weights(), batch()
    expected = [np.asarray(v) for v in jax.tree.leaves(jax.jit(function)(w, x))]
    shardings = {"in_shardings": given, "out_shardings": out}
    module = from_jax(function, w, x, rules=False, **shardings)
    text = str(module)
    arguments = [*w.values(), x]
    wrong = placements(module, arguments, given)
    pipeline("builtin.module(pcp-import)").run(module)
    pipeline(PLAN).run(module)
    found = run_joined(module, arguments)
    error = max(
        float(np.abs(a - b).max() / (1e-3 + np.abs(b).max()))
        for a, b in zip(found, expected, strict=True)
    )
    return {
        "error": error,
        "wrong": wrong,
        "sdy": "sdy" in text,
        "said": text.count("#pcp.sharding"),
        "members": str(module).count("module @"),
    }


if __name__ == "__main__":
    print(json.dumps(check(sys.argv[1])))
