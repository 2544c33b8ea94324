"""An all-reduce inside a compiled program, beside the same call of the communicator.

    python benchmarks/module_calls.py [--sizes 16 2048 33554432] [--rounds 30] [--tcp]

Two processes of one machine sum a float32 array of so many bytes, in turns by a program
whose only operation is the sum, and by `all_reduced` as it is. Prints medians in
milliseconds, rank 0's. Needs what `pip install -e '.[compiler]'` installs.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pcp.bundle import Bundle, Collective, Function, Manifest, Mesh, Module, TensorSpec
from pcp.compiler.iree import COMMON_FLAGS
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.rendezvous import Rendezvous
from pcp.runtime.memory.shared_arrays import shared_empty
from pcp.runtime.program.executor import Program

TEXT = """
util.func private @pcp_rt.sum_0({t}) -> {t}
    attributes {{iree.abi.model = "coarse-fences", nosideeffects}}
func.func @main(%x: {t}) -> {t} {{
  %y = util.call @pcp_rt.sum_0(%x) : ({t}) -> {t}
  return %y : {t}
}}
"""


def build(count: int, driver: str, path: Path) -> None:
    """Write a bundle whose program sums a vector over two workers."""
    from iree.compiler import compile_str

    module = compile_str(
        TEXT.format(t=f"tensor<{count}xf32>"),
        target_backends=["llvm-cpu"],
        extra_args=["--iree-llvmcpu-target-cpu=host", *COMMON_FLAGS],
    )
    assert module is not None, "it is compiled to memory"
    where, shape = "modules/cpu.vmfb", (count,)
    spec = TensorSpec(name="x", shape=shape, dtype="f32", role="data")
    what = Collective(
        kind="all_reduce",
        shape=shape,
        bytes=4 * count,
        reduction="sum",
        axes=("workers",),
        mesh="m",
        dtype="f32",
    )
    manifest = Manifest(
        mode="forward",
        functions={"main": Function(inputs=(spec,), results=(spec,))},
        collectives={"sum_0": what},
        mesh={"m": Mesh(axes={"workers": -1})},
        modules={
            "cpu": Module(
                file=where,
                target="cpu",
                backend="llvm-cpu",
                driver=driver,
                straight=("main",),  # as `pcp-compile` writes of such a function
            )
        },
    )
    Bundle.build(manifest, {where: module}).write(path)


def timed(what: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    what()
    return 1e3 * (time.perf_counter() - start)


def member(rank: int, where: Rendezvous | str, folder: Path, options) -> None:
    """One of the two processes."""
    comm = Communicator.connect(
        where, rank=rank, world_size=2, shared_memory=not options.tcp
    )
    for size in options.sizes:
        path = str(folder / f"{size}.pcp")
        with Program.load(path, options.driver, communicator=comm) as program:
            inside = program["main"]
            array = shared_empty(size // 4)
            array[:] = rank + 1
            held = program.to_device(array)
            calls: dict[str, Callable[[], object]] = {
                "inside": lambda inside=inside, held=held: inside(
                    held, device_arrays=True
                ),
                "bare": lambda array=array: comm.all_reduced(array),
            }
            times = {name: list[float]() for name in calls}
            found = inside(held)
            assert np.all(found == 3), f"it does not add up: {found}"
            for _ in range(options.rounds + 3):
                for name, call in calls.items():
                    comm.barrier()
                    times[name].append(timed(call))
            if rank == 0:
                a, b = (statistics.median(t[3:]) for t in times.values())
                print(f"{size:>10} bytes: inside {a:8.3f}, bare {b:8.3f}: {a / b:.2f}")
    comm.close()


def main() -> int:
    """Start the other member, be rank 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 2048, 32 << 20])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tcp", action="store_true", help="no shared memory")
    parser.add_argument("--driver", default="local-task")
    parser.add_argument("--at", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.at:
        member(1, options.at[0], Path(options.at[1]), options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes:
            build(size // 4, options.driver, Path(folder) / f"{size}.pcp")
        where = Rendezvous.listen("127.0.0.1:0")
        more = ["--at", where.address, folder]
        other = subprocess.Popen([sys.executable, *sys.argv, *more])
        try:
            member(0, where, Path(folder), options)
            return other.wait(60)
        finally:
            if other.poll() is None:
                other.kill()


if __name__ == "__main__":
    raise SystemExit(main())
