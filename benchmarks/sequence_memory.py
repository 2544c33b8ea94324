"""Memory of activations where a sequence is cut, as multiples of the whole's.

    python benchmarks/sequence_memory.py                   # 4,096 tokens, sp=4
    python benchmarks/sequence_memory.py --tokens 2048 --heads 2 --layers 1

One process trains a causal transformer on a whole sequence, then `--members` processes
train on parts of it (`--mesh sp=4`). Bytes are those of the device's allocator, without
a cache; activations are the peak of a step less parameters, the optimizer's state and
gradients, which each member holds whole: so x and y count, and what is held to exchange
activations and gradients. Heads that the members divide are exchanged for positions;
others gather keys and values. The members' gradients are compared with those of the
whole model in JAX: the largest difference, over the largest element of the tensor.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mesh_members import Report, compile_bundle, run_members

from pcp.bundle import Bundle
from pcp.tools import cli
from pcp.tools.support import tensor_files
from pcp.training.trainer.step_loop import kept


def loss(parameters: Any, x: Any, y: Any, heads: int) -> Any:
    """Of causal transformer blocks: the mean square of what is left between x and y."""
    import jax.numpy as jnp

    for block in parameters.values():
        x = x + _attention(_norm(x), block, heads)
        x = x + jnp.tanh(_norm(x) @ block["up"]) @ block["down"]
    return ((x - y) ** 2).mean()


def _norm(x: Any) -> Any:
    import jax.numpy as jnp

    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def _attention(x: Any, block: Any, heads: int) -> Any:
    import jax
    import jax.numpy as jnp

    samples, tokens, width = x.shape
    shape = (samples, tokens, heads, width // heads)
    q, k, v = (a.reshape(shape) for a in jnp.split(x @ block["qkv"], 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // heads)
    seen = jnp.tril(jnp.ones((tokens, tokens), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return mixed.reshape(x.shape) @ block["out"]


def arguments(tokens: int, width: int, layers: int, samples: int = 1) -> tuple:
    """Parameters, x and y, by chance but always the same."""
    random = np.random.default_rng(0)

    def normal(scale: float, *shape: int) -> np.ndarray:
        return (scale * random.normal(size=shape)).astype(np.float32)

    shapes = {"qkv": 3 * width, "out": width, "up": 4 * width}
    parameters = {
        f"block{i}": {name: normal(width**-0.5, width, n) for name, n in shapes.items()}
        | {"down": normal(0.5 * width**-0.5, 4 * width, width)}
        for i in range(layers)
    }
    x, y = normal(1, samples, tokens, width), normal(1, samples, tokens, width)
    return parameters, x, y


def measure(
    members: int, folder: Path, *, tokens: int, width: int, heads: int, layers: int
) -> tuple[Path, list[int], list[Report]]:
    """The bundle, and of each member the bytes of activations and its report."""
    from pcp.frontends.jax import from_jax

    model = from_jax(partial(loss, heads=heads), *arguments(tokens, width, layers))
    mesh = ["--mesh", f"sp={members}"] if members > 1 else []
    bundle = compile_bundle(str(model), folder, f"sp{members}", mesh)
    specs = kept(Bundle.read(bundle).manifest)
    gradients = sum(spec.nbytes for spec in specs if spec.role == "param")
    reports = run_members(bundle, steps=2)
    return bundle, [r.peak - r.held - gradients for r in reports], reports


def error_of_gradients(bundle: Path, tokens: int, width: int, heads: int, layers: int):
    """The largest difference from the whole model's in JAX, relative to its tensor."""
    import jax

    given = arguments(tokens, width, layers)
    wanted = jax.jit(jax.grad(partial(loss, heads=heads)))(*given)
    function = Bundle.read(bundle).manifest.function("grad")
    sent, out = bundle.with_suffix(".in.npz"), bundle.with_suffix(".out.npz")
    values = [np.asarray(value) for value in jax.tree_util.tree_leaves(given)]
    tensor_files.save(sent, [spec.name for spec in function.inputs], values)
    command = ["run", str(bundle), "--function", "grad", "--inputs", str(sent)]
    if code := cli.main([*command, "--out", str(out)]):
        raise SystemExit(code)
    with np.load(out) as archive:
        _, *found = [archive[name] for name in archive.files]
    pairs = zip(found, jax.tree_util.tree_leaves(wanted), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    sizes = vars(parser.parse_args())
    members = sizes.pop("members")
    print("processes  activations MiB  of the whole's  losses of two steps")
    with tempfile.TemporaryDirectory() as folder:
        whole = 0
        for count in (1, members):
            bundle, found, reports = measure(count, Path(folder), **sizes)
            whole = whole or found[0]
            ratio = max(found) / whole
            losses = " ".join(f"{loss:.6f}" for loss in reports[0].losses)
            print(f"{count:9}  {max(found) / 2**20:15.1f}  {ratio:14.3f}  {losses}")
        error = error_of_gradients(bundle, **sizes)
        print(f"gradients of {members} processes against JAX's whole: {error:.1e}")


if __name__ == "__main__":
    main()
