"""GPT-2 as transformers has it, with random weights: export, compile, train 5 steps.

    python benchmarks/gpt2.py                     # 124 M, 12 layers, batch 1 x 256
    python benchmarks/gpt2.py --layers rolled     # the layers in a loop
    python benchmarks/gpt2.py --depths 4 48 --width 64 --layers rolled

Each stage runs in a process of its own; memory is its peak resident set, of the
compiler the larger of pcp's process and iree-compile's. The losses of the steps stand
beside those of torch eager from the same weights on the same batch, with the same
AdamW, and are compared before anything is printed as a result. With --depths the
training bundles of models of several depths are compiled, each against the first.

Needs what `pip install -e '.[torch]'` and transformers bring.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

STEPS, RATE, DECAY = 5, 1e-3, 0.1
TOLERANCE = 2e-4  # relative, of each loss to torch's
MODEL, WEIGHTS, BUNDLE, BATCH = "m.mlir", "w.safetensors", "m.pcp", "batch.npz"


def seeded(folder: Path, depth: int, width: int, heads: int) -> None:
    """A folder of transformers with weights of seed 0."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=depth,
        n_embd=width,
        n_head=heads,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "hf")


def export(folder: Path, batch: int, block: int) -> dict[str, Any]:
    """The program and its weights; and the batch of all steps."""
    from pcp.frontends.huggingface.exported import export
    from pcp.frontends.huggingface.tasks import Size
    from pcp.tools.support import hf_folder

    made = export(folder / "hf", None, Size(batch, block), training=True)
    text = str(made.module)
    (folder / MODEL).write_text(text)
    hf_folder.write_weights(made, folder / WEIGHTS)
    ids = np.random.default_rng(1).integers(0, 50257, (batch, block))
    np.savez(folder / BATCH, ids=ids)
    return {"lines": text.count("\n")}


def compile_(folder: Path, layers: str) -> dict[str, Any]:
    """The bundle of training."""
    from pcp.compiler import driver
    from pcp.compiler.options import CompileOptions
    from pcp.dialect.context import read

    options = CompileOptions(
        targets=("cpu:host",),
        mode="train",
        optimizer=f"adamw{{lr={RATE},weight_decay={DECAY}}}",
        algorithm="none",
        layers=layers,
    )
    bundle = driver.compile(read(str(folder / MODEL)), options)
    bundle.write(folder / BUNDLE)
    size = sum(map(len, (bundle.module(t) for t in bundle.targets)))
    return {"code": size}


def step(folder: Path) -> dict[str, Any]:
    """Steps of the bundle."""
    from pcp.bundle import Bundle
    from pcp.runtime.memory.dtypes import numpy_dtype
    from pcp.runtime.program.executor import Program
    from pcp.training.storage import safetensors_io
    from pcp.training.trainer.functions import Functions

    bundle = Bundle.read(folder / BUNDLE)
    given = safetensors_io.mapped(folder / WEIGHTS)
    values: dict[tuple[str, str], Any] = {
        ("param", p.name): np.array(given[p.name]) for p in bundle.manifest.parameters
    }
    for t in bundle.manifest.functions["apply"].inputs:
        if t.role == "state":
            values["state", t.name] = np.zeros(t.shape, numpy_dtype(t.dtype))
    ids = np.load(folder / BATCH)["ids"]
    for t in bundle.manifest.functions["grad"].inputs:
        if t.role == "data":
            held = np.ones_like(ids) if "mask" in t.name else ids
            values["data", t.name] = held.astype(numpy_dtype(t.dtype))
    losses, seconds = [], []
    with Program.load(bundle, "local-task") as program:
        functions = Functions(program)
        for _ in range(STEPS):
            began = time.perf_counter()
            values |= (found := functions("grad", values))
            losses.append(float(np.asarray(found["loss", "loss"])))
            values |= functions("apply", values)
            del found
            seconds.append(time.perf_counter() - began)
        del functions, values
    return {"losses": losses, "seconds": sorted(seconds)[STEPS // 2]}


def eager(folder: Path) -> dict[str, Any]:
    """The same steps by torch."""
    import torch
    import transformers

    model = transformers.GPT2LMHeadModel.from_pretrained(folder / "hf").train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    ids = torch.from_numpy(np.load(folder / BATCH)["ids"])
    losses, seconds = [], []
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    return {"losses": losses, "seconds": sorted(seconds)[STEPS // 2]}


STAGES = {
    "seeded": seeded,
    "export": export,
    "compile": compile_,
    "step": step,
    "eager": eager,
}


def _child(name: str, folder: Path, *rest: object) -> dict[str, Any]:
    """What a stage gives, with its wall time and its peak of memory."""
    line = [sys.executable, __file__, "--stage", name, str(folder)]
    began = time.perf_counter()
    done = subprocess.run(
        [*line, *(json.dumps(r) for r in rest)],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"TRANSFORMERS_VERBOSITY": "error"},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return found | {"wall": time.perf_counter() - began}


def _stage(name: str, folder: str, *rest: str) -> None:
    began = time.perf_counter()
    found = STAGES[name](Path(folder), *map(json.loads, rest)) or {}
    found["took"] = time.perf_counter() - began
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    found["peak"] = max(resource.getrusage(k).ru_maxrss for k in kinds) << 10
    print(json.dumps(found))


def whole(folder: Path, flags: argparse.Namespace) -> None:
    """The table of one model."""
    _child("seeded", folder, flags.depths[0], flags.width, flags.width // 64 or 1)
    exported = _child("export", folder, flags.batch, flags.block)
    compiled = _child("compile", folder, flags.layers)
    ours, theirs = _child("step", folder), _child("eager", folder)
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=TOLERANCE)
    print("| stage | seconds | peak memory, MiB |\n|---|---|---|")
    for name, found in (("export", exported), ("compile", compiled)):
        print(f"| {name} | {found['took']:.1f} | {found['peak'] >> 20} |")
    for name, found in (("a step", ours), ("a step, torch eager", theirs)):
        print(f"| {name} | {found['seconds']:.2f} | {found['peak'] >> 20} |")
    print("\n| step | pcp | torch eager |\n|---|---|---|")
    for i, pair in enumerate(zip(ours["losses"], theirs["losses"], strict=True)):
        print(f"| {i + 1} | {pair[0]:.5f} | {pair[1]:.5f} |")


def by_depth(folder: Path, flags: argparse.Namespace) -> None:
    """What compiling takes, by depth."""
    first = None
    print("| layers | export, s | compile, s | of the first | peak, MiB | code, KiB |")
    print("|---|---|---|---|---|---|")
    for depth in flags.depths:
        _child("seeded", folder, depth, flags.width, flags.width // 64 or 1)
        exported = _child("export", folder, flags.batch, flags.block)
        made = _child("compile", folder, flags.layers)
        first = first or made["took"]
        print(
            f"| {depth} | {exported['took']:.1f} | {made['took']:.1f} | "
            f"{made['took'] / first:.2f} | {made['peak'] >> 20} | "
            f"{made['code'] >> 10} |",
            flush=True,
        )


def main() -> None:
    """The command."""
    if sys.argv[1:2] == ["--stage"]:
        _stage(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[12])
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--block", type=int, default=256)
    parser.add_argument("--layers", default="unrolled", choices=("unrolled", "rolled"))
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (whole if len(flags.depths) == 1 else by_depth)(Path(folder), flags)


if __name__ == "__main__":
    main()
