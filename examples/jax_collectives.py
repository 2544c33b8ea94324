"""Data-parallel training in jax: gradients averaged by pcp outside of jit.

python examples/jax_collectives.py
"""

from concurrent.futures import ThreadPoolExecutor

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    raise SystemExit("this example needs jax: pip install -e '.[jax]'") from error

from pcp.runtime import Communicator

WORLD, BATCH, STEPS = 2, 32, 30


def loss(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """A regression to the sum of the inputs."""
    hidden = jnp.tanh(x @ w["in"])
    return jnp.mean((hidden @ w["out"] - x.sum(1)) ** 2)


def batch(step: int) -> jax.Array:
    """All members' data of a step."""
    return jax.random.normal(jax.random.key(step), (BATCH, 8))


def train(comm: Communicator) -> dict[str, jax.Array]:
    """One member, with its rows of every batch."""
    first, second = jax.random.split(jax.random.key(1000))
    w = {"in": 0.3 * jax.random.normal(first, (8, 16))}
    w["out"] = 0.3 * jax.random.normal(second, (16,))
    step_gradient = jax.jit(jax.grad(loss))
    for step in range(STEPS):
        mine = jnp.split(batch(step), comm.world_size)[comm.rank]
        gradient = step_gradient(w, mine)
        pending = {k: comm.all_reduce_async(g, "mean") for k, g in gradient.items()}
        w = {k: w[k] - 0.1 * pending[k].result() for k in w}
    return w


def main() -> None:
    """Two members, and one that has the whole batch."""
    members = Communicator.in_process(WORLD) + Communicator.in_process(1)
    with ThreadPoolExecutor(len(members)) as pool:
        first, second, alone = pool.map(train, members)
    for comm in members:
        comm.close()
    same = all(bool((first[k] == second[k]).all()) for k in first)
    gap = max(float(abs(first[k] - alone[k]).max()) for k in first)
    print(f"both members hold the same bits: {same}")
    print(f"loss {loss(first, batch(STEPS)):.4f} after {STEPS} steps")
    print(f"from one with the whole batch it differs by at most {gap:.1e}")


if __name__ == "__main__":
    main()
