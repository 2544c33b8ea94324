"""Products of matrices: pcp's tiles, IREE's own, PyTorch and numpy, on one thread.

    python benchmarks/kernels.py                  # forms of [2048, 256, 1024], a GPT's
    python benchmarks/kernels.py --only heads
    python benchmarks/kernels.py --json kernels.json

GFLOP/s of a thread, from the least processor time of several calls. All take turns, so
that what else the machine does hits all of them; the results are compared before any
time is believed. N is an operand as `rows x depth` and `depth x columns` say it, T a
transposed one; a number in front is of batched products. `pcp` turns transposed weights
over in each call here, and once in a step otherwise.

Needs what `pip install -e '.[torch]'` installs.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # read when the libraries are loaded, below

import numpy as np  # noqa: E402

#: By name: the form, the batch, rows, depth and columns.
PRODUCTS: dict[str, tuple[str, int, int, int, int]] = {
    "NN": ("NN", 0, 2048, 256, 1024),
    "NT": ("NT", 0, 2048, 256, 1024),
    "TN": ("TN", 0, 1024, 2048, 256),
    "qkv": ("NT", 0, 2048, 256, 768),
    "down": ("NT", 0, 2048, 1024, 256),
    "projection": ("NT", 0, 2048, 256, 256),
    "head, 8192": ("NT", 0, 2048, 256, 8192),
    "dx of qkv": ("NN", 0, 2048, 768, 256),
    "dx of up": ("NN", 0, 2048, 1024, 256),
    "dw of qkv": ("TN", 0, 768, 2048, 256),
    "dw of down": ("TN", 0, 256, 2048, 1024),
    "heads: q k": ("NN", 128, 128, 32, 128),
    "heads: p v": ("NN", 128, 128, 128, 32),
    "heads: dq": ("TN", 128, 32, 128, 128),
    "heads: dv": ("TN", 128, 128, 128, 32),
}

Call = Callable[[], Any]


def shapes(name: str) -> tuple[list[int], list[int], list[int]]:
    """Left, right and result."""
    form, batch, rows, depth, columns = PRODUCTS[name]
    left = [rows, depth] if form[0] == "N" else [depth, rows]
    right = [depth, columns] if form[1] == "N" else [columns, depth]
    front = [batch] * bool(batch)
    return front + left, front + right, [*front, rows, columns]


def program() -> str:
    """A function a product, as StableHLO."""
    texts = []
    for number, (name, (form, batch, *_)) in enumerate(PRODUCTS.items()):
        a, b, c = (f"tensor<{'x'.join(map(str, s))}xf32>" for s in shapes(name))
        at = bool(batch)
        first, second = at + (form[0] == "N"), at + (form[1] == "T")
        front = "batching_dims = [0] x [0], " * at
        texts.append(
            f"func.func @f{number}(%x: {a}, %y: {b}) -> {c} {{\n"
            f"  %0 = stablehlo.dot_general %x, %y, {front}contracting_dims = "
            f"[{first}] x [{second}] : ({a}, {b}) -> {c}\n  return %0 : {c}\n}}\n"
        )
    return "".join(texts)


def compiled(target: str, *, tiles: bool) -> Any:
    """The module on one thread; without `tiles`, and kernels, what IREE gives it."""
    import iree.runtime as rt

    from pcp.compiler import emission, iree, targets
    from pcp.dialect.context import parse

    row = targets.find(target)
    if not tiles:
        row = row.without(targets.SCHEDULE).without(targets.OWN)
    text = emission.target_text(parse(program()), row).plain
    flags = ("--iree-opt-level=O1", *row.all_flags)
    content = iree.compile_text(text, flags, timeout=600)
    config = rt.Config("local-sync")
    context = rt.SystemContext(config=config)
    context.add_vm_module(rt.VmModule.copy_buffer(context.instance, content))
    return context.modules.module, config.device


def contestants(target: str, names: Sequence[str]) -> dict[str, dict[str, Call]]:
    """By product, by contestant: what to call."""
    import torch
    from iree.runtime import asdevicearray

    torch.set_num_threads(1)
    modules = {
        "pcp": compiled(target, tiles=True),
        "IREE": compiled(target, tiles=False),
    }
    random = np.random.default_rng(0)
    found: dict[str, dict[str, Call]] = {}
    for number, name in enumerate(PRODUCTS):
        if name not in names:
            continue
        x, y = (random.normal(size=s).astype(np.float32) for s in shapes(name)[:2])
        found[name] = calls = {}
        for which, (module, device) in modules.items():
            given = [asdevicearray(device, value) for value in (x, y)]
            function = module[f"f{number}"]
            calls[which] = lambda f=function, given=given: f(*given)
        a, b = _as_written(PRODUCTS[name][0], x, y)
        p, q = _as_written(PRODUCTS[name][0], torch.from_numpy(x), torch.from_numpy(y))
        calls["PyTorch"] = lambda p=p, q=q: p @ q
        calls["numpy"] = lambda a=a, b=b: a @ b
    return found


def _as_written(form: str, left: Any, right: Any) -> tuple[Any, Any]:
    """Views of the operands that a product in the form NN takes."""
    turn = [
        x.swapaxes(-1, -2) if f == "T" else x
        for f, x in zip(form, (left, right), strict=True)
    ]
    return turn[0], turn[1]


def check(calls: dict[str, Call]) -> float:
    """The largest difference from PyTorch's result, to its largest element."""
    results = {which: np.asarray(call()) for which, call in calls.items()}
    wanted = results["PyTorch"]
    worst = max(float(np.abs(r - wanted).max()) for r in results.values())
    return worst / float(np.abs(wanted).max())


def measure(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """The least processor time of a call, in seconds."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for which, call in calls.items():
            for _ in range(3):
                start = time.thread_time()
                call()
                best[which] = min(best[which], time.thread_time() - start)
    return best


def main(arguments: Sequence[str]) -> int:
    """Print a line a product as it is measured; 1 when results differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="cpu:host")
    parser.add_argument("--only", default="", help="products whose name begins so")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write everything measured here")
    options = parser.parse_args(arguments)
    names = [name for name in PRODUCTS if name.startswith(options.only)]
    found, rows = contestants(options.target, names), {}
    print(
        f"{'':14}{'':24}"
        + "".join(f"{w:>9}" for w in ("pcp", "IREE", "torch", "numpy"))
    )
    for name, calls in found.items():
        if (error := check(calls)) > 1e-5:
            print(f"{name}: the results differ by {error:.1e}")
            return 1
        form, batch, *extents = PRODUCTS[name]
        operations = 2 * max(1, batch) * int(np.prod(extents))
        times = measure(calls, options.rounds)
        rows[name] = {w: operations / t / 1e9 for w, t in times.items()}
        what = f"{form} {f'{batch} of ' if batch else ''}{extents}"
        figures = "".join(f"{value:9.0f}" for value in rows[name].values())
        print(f"{name:14}{what:24}{figures}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
