"""A JAX function, differentiated by pcp's own pass, against `jax.grad`.

python examples/jax_to_gradient.py
"""

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    raise SystemExit("this example needs jax: pip install -e '.[jax]'") from error

import pcp


def loss(params, x, y):
    """Mean squared error of a two-layer net."""
    hidden = jax.nn.gelu(x @ params["in"]["w"] + params["in"]["b"])
    return jnp.mean((hidden @ params["out"] - y) ** 2)


def main() -> None:
    """Print the gradient's IR in part, run it, compare."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(0, 0.3, shape).astype(np.float32)

    params = {
        "in": {"w": normal(8, 16), "b": np.zeros(16, np.float32)},
        "out": normal(16, 2),
    }
    x, y = normal(32, 8), normal(32, 2)

    module = pcp.from_jax(loss, params, x, y)
    text = str(pcp.run_passes(module, "pcp-grad{func=main},cse"))
    reverse = text[text.index("func.func @main_grad") :].splitlines()
    print("\n".join(line[:100] for line in reverse[-8:]))

    bundle = pcp.compile(module, targets=["cpu:host"], mode="grad")
    program = pcp.Program.load(bundle, device="local-sync")
    value, *gradients = program["grad"](*jax.tree.leaves(params), x, y)
    expected, theirs = jax.value_and_grad(loss)(params, x, y)
    print(f"loss {value:.6f}, JAX's {expected:.6f}")
    for ours, other in zip(gradients, jax.tree.leaves(theirs), strict=True):
        print(f"{ours.shape}: differs by at most {np.abs(ours - other).max():.1e}")


if __name__ == "__main__":
    main()
