"""JAX programs with shardings over four devices, against JAX on one.

Run as a program (`python -m helpers.models.jax_sharded NAMES`) in a process of its own:
the number of JAX's devices is decided when it starts. Prints one line of JSON.
"""

import json
import os
import sys
from collections.abc import Callable

if __name__ == "__main__":
    four = "--xla_force_host_platform_device_count=4"
    os.environ["XLA_FLAGS"] = f"{four} {os.environ.get('XLA_FLAGS', '')}"
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from pcp.dialect.bindings import ir
from pcp.frontends.jax import from_jax
from pcp.layout import shard
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.ports import port_shardings


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


def members():
    """Every collective that JAX has a word for, and a member's own place."""
    m = mesh(dp=2, tp=2)

    def body(x, a):
        h = jax.nn.relu(x @ a)
        total = jax.lax.psum(h, "tp")
        rows = jax.lax.all_gather(h, "dp", tiled=True)
        part = jax.lax.psum_scatter(rows, "tp", scatter_dimension=0, tiled=True)
        part = jax.lax.ppermute(part, "dp", [(0, 1)])
        turned = jax.lax.all_to_all(total, "tp", 1, 0, tiled=True)
        most = jax.lax.pmax(h, ("dp", "tp"))
        return total, part + jax.lax.axis_index("tp"), turned, most

    cut, both = P("dp", None), P("dp", "tp")
    mapped = jax.shard_map(
        body,
        mesh=m,
        in_specs=(cut, P(None, "tp")),
        out_specs=(cut, both, both, P()),
        check_vma=False,
    )
    return lambda w, x: mapped(jnp.tanh(x), w["a"] + 1.0), None, None


def ring():
    """A product around a ring, in a loop, between ops on whole arrays."""
    m = mesh(dp=4)

    def body(x, b):
        start = jax.lax.axis_index("dp")

        def step(i, carry):
            total, piece = carry
            rows = jax.lax.dynamic_slice_in_dim(b, 0, 8, 0)
            which = (start + i) % 4
            columns = jax.lax.dynamic_slice_in_dim(rows, 2 * which, 2, 0)
            around = [(n, (n + 3) % 4) for n in range(4)]
            return total + piece @ columns, jax.lax.ppermute(piece, "dp", around)

        return jax.lax.fori_loop(0, 4, step, (jnp.zeros((8, 4)), x))[0]

    mapped = jax.shard_map(
        body, mesh=m, in_specs=(P(None, "dp"), P()), out_specs=P("dp"), check_vma=False
    )

    def function(w, x):
        hidden = jnp.tanh(x @ w["a"]) + jnp.zeros((8, 8))
        return mapped(hidden, w["b"]).reshape(4, 8, 4).sum(0) * 2.0

    return function, None, None


def mean_of_groups():
    """A mean along one axis beside a maximum along the other; constants in both."""
    m = mesh(x=2, y=2)

    def body(x):
        ones = jnp.ones((4, 2))
        return (x + ones) / jax.lax.pmean(x + ones, "y") - jax.lax.pmax(x, "x")

    spec = P(("y", "x"), None)
    mapped = jax.shard_map(
        body, mesh=m, in_specs=P("x", "y"), out_specs=P("x", "y"), check_vma=False
    )
    cut = NamedSharding(m, spec)

    def function(w, x):
        ones = jnp.ones((8, 4))
        return jax.lax.with_sharding_constraint(mapped(x + ones) * ones, cut) @ w["a"]

    return function, None, None


def left_axes():
    """One axis is the body's own, and another left to the compiler: a hint says how."""
    m = mesh(dp=2, tp=2)

    def body(x, a):
        h = x @ a
        h = jax.lax.with_sharding_constraint(h, P(None, "tp"))
        place = jax.lax.axis_index("dp").astype(np.float32)
        return jnp.tanh(h) + jax.lax.psum(h, "dp") * place

    mapped = jax.shard_map(
        body,
        mesh=m,
        in_specs=(P("dp", None), P()),
        out_specs=P("dp", None),
        axis_names={"dp"},
        check_vma=False,
    )
    given = (
        {"a": NamedSharding(m, P(None, "tp")), "b": NamedSharding(m, P("tp", None))},
        NamedSharding(m, P(("dp", "tp"), None)),
    )
    return lambda w, x: mapped(x, w["a"]) @ w["b"], given, None


def nested_maps():
    """A shard_map in another, over the axis that the outer one leaves."""
    m = mesh(dp=2, tp=2)

    def inner(h, a):
        total = jax.lax.psum(jnp.tanh(h).sum(0, keepdims=True), "tp")
        place = jax.lax.axis_index("tp").astype(np.float32)
        return h * (1 + place) + total, jax.lax.pmax(a, "tp"), a * place

    def outer(x, a):
        h = x @ a + jax.lax.axis_index("dp").astype(np.float32)
        rows, columns = P("tp", None), P(None, "tp")
        mapped = jax.shard_map(
            inner,
            in_specs=(rows, columns),
            out_specs=(rows, P(), columns),
            axis_names={"tp"},
            check_vma=False,
        )
        g, most, scaled = mapped(h, a)
        return jnp.sin(g) + jax.lax.psum(h, "dp"), most @ most.T, scaled

    cut = P("dp", None)
    mapped = jax.shard_map(
        outer,
        mesh=m,
        in_specs=(cut, P()),
        out_specs=(cut, P(), P()),
        axis_names={"dp"},
        check_vma=False,
    )
    return lambda w, x: mapped(x * 2, w["a"]), None, None


def factors():
    """A gradient through factorizations, of matrices that lie apart."""
    m = mesh(dp=2, tp=2)
    rest = NamedSharding(m, P())
    given = ({"a": rest, "b": rest}, NamedSharding(m, P("dp", "tp")))

    def loss(w, x):
        rows = x.reshape(2, 4, 4) + 3 * jnp.eye(4) + w["a"] @ w["b"]
        q, r = jnp.linalg.qr(rows)
        spread = jnp.linalg.slogdet(rows)[1] * jnp.arange(1.0, 3.0)
        return jnp.sum(jnp.abs(r)) + jnp.sum(q[:, 0] ** 3) + jnp.sum(spread)

    return jax.value_and_grad(loss, (0, 1)), given, None


def _of_definite(of: Callable) -> Callable[[], tuple]:
    """A gradient through `of`, of matrices that lie apart along dp."""

    def case() -> tuple:
        rest = NamedSharding(m := mesh(dp=2, tp=2), P())
        given = ({"a": rest, "b": rest}, NamedSharding(m, P("dp", None)))

        def loss(w, x):
            rows = x.reshape(2, 4, 4) / 8 + jnp.diag(1.0 + jnp.arange(4))
            rows = rows + w["a"] @ w["b"] / 64
            even = (rows + jnp.swapaxes(rows, 1, 2)) / 2
            parts = jax.tree.leaves(of(even))
            return sum(jnp.sum(jnp.sin(p) * jnp.arange(1.0, 5.0)) for p in parts)

        return jax.value_and_grad(loss, (0, 1)), given, None

    return case


#: Run by the slow tests alone.
FACTORIZATIONS: dict[str, Callable] = {
    name: _of_definite(of)
    for name, of in {
        "cholesky": jnp.linalg.cholesky,
        "eigenvalues": jnp.linalg.eigvalsh,
        "singular_values": lambda a: jnp.linalg.svd(a, compute_uv=False),
        "exponential": jax.vmap(jax.scipy.linalg.expm),
        "inverse": jnp.linalg.inv,
        "solution": lambda a: jnp.linalg.solve(a, jnp.ones((4, 4))),
    }.items()
}

CASES: dict[str, Callable] = {
    case.__name__: case
    for case in (
        *(by_arguments, by_constraint, two_axes, nested, gradient, whole_body),
        *(members, ring, mean_of_groups, left_axes, nested_maps, factors),
    )
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
    from helpers.oracles.spmd import PLAN, run_joined

    from pcp.compiler.catalog import pipeline

    function, given, out = (CASES | FACTORIZATIONS)[name]()
    w, x = weights(), batch()
    expected = [np.asarray(v) for v in jax.tree.leaves(jax.jit(function)(w, x))]
    shardings = {"in_shardings": given, "out_shardings": out}
    module = from_jax(function, w, x, rules=False, **shardings)
    text = str(module)
    arguments = [*w.values(), x]
    wrong = placements(module, arguments, given)
    pipeline("builtin.module(pcp-import,pcp-inline-composites)").run(module)
    pipeline(PLAN).run(module)
    if "stablehlo.triangular_solve" in text:  # which ends the interpreter
        pipeline("builtin.module(pcp-legalize)").run(module)
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
    print(json.dumps({name: check(name) for name in sys.argv[1:]}))
