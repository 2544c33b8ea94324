"""Time to spread a GPT's training program over a mesh, pass by pass.

    python benchmarks/partition_speed.py                     # 12 layers, dp=2,tp=2
    python benchmarks/partition_speed.py --mesh dp=4 --layers 6

The program is the loss of a decoder of 2048 tokens, its gradient and AdamW, about
17,000 ops; weights are shapes only. Layers are cut as in Megatron-LM: columns, then
rows, the vocabulary along tp, the batch along dp. On a machine that does other work
too, the CPU's seconds are the ones to read.

Needs what `pip install -e '.[compiler,jax]'` installs.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from autodiff_programs import gpt

import pcp
from pcp.compiler import pipelines, sharding_file
from pcp.compiler.options import CompileOptions
from pcp.compiler.partitioned import describe
from pcp.dialect.bindings import ir
from pcp.mesh import Mesh

WIDTH, HEADS, TOKENS, VOCABULARY, BATCH = 768, 12, 2048, 50304, 8

#: Place of a weight in a layer, and the dimension that tp cuts: q, k, v and up by
#: columns, out and down by rows.
TP_DIM = (1, 1, 1, 0, 1, 0)


def program(layers: int) -> ir.Module:
    """The loss with names and roles, as `pcp.from_jax` gives it."""
    loss = gpt(layers=1, width=48, heads=HEADS, tokens=4).loss
    layer = [(WIDTH, WIDTH)] * 4 + [(WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
    shapes = [(VOCABULARY, WIDTH), *layer * layers, (WIDTH, VOCABULARY)]
    weights = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    tokens = jax.ShapeDtypeStruct((BATCH, TOKENS), np.int32)
    return pcp.from_jax(loss, weights, tokens, tokens)


def cut(module: ir.Module, mesh: Mesh, layers: int) -> None:
    """Write Megatron-LM's shardings on weights, states and data."""
    tensors: dict[str, list[list[str]]] = {}
    if "dp" in mesh.axes:
        tensors |= {"ids": [["dp"]], "targets": [["dp"]]}
    if "tp" in mesh.axes:
        ends = {0: 0, 6 * layers + 1: 1}
        inner = {1 + i: TP_DIM[i % 6] for i in range(6 * layers)}
        for number, dim in (ends | inner).items():
            tensors[f"*weights.{number}"] = [[], ["tp"]] if dim else [["tp"]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sharding.json"
        path.write_text(json.dumps({"tensors": tensors}))
        with module.context:
            sharding_file.annotate(module, mesh, str(path))


def size(module: ir.Module) -> int:
    """Operations, those of bodies included."""
    count = 0

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal count
        count += 1
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return count


def _line(name: str, seconds: tuple[float, float]) -> None:
    print(f"{name:24} {seconds[0]:8.2f} {seconds[1]:8.2f}")


def main() -> None:
    """Print a line for each pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--mesh", default="dp=2,tp=2")
    flags = parser.parse_args()
    module = program(flags.layers)
    pipelines.prepare(infer_roles=True).run(module)
    pipelines.front("train", spread=True, optimizer="adamw").run(module)
    mesh = describe(module, CompileOptions(source="gpt", mesh=flags.mesh))
    assert mesh is not None  # there is one of --mesh
    cut(module, mesh, flags.layers)
    print(f"{flags.layers} layers, {size(module):,} ops, mesh {flags.mesh}")
    print(f"{'pass':24} {'wall s':>8} {'CPU s':>8}")
    together = (0.0, 0.0)
    for step in pipelines.split().steps:
        wall, cpu = time.perf_counter(), time.process_time()
        step.run(module)
        spent = time.perf_counter() - wall, time.process_time() - cpu
        together = together[0] + spent[0], together[1] + spent[1]
        _line(step.name, spent)
    _line("together", together)
    print(f"{size(module):,} ops in {mesh.size} programs")


if __name__ == "__main__":
    main()
