"""Small models expanded for training, compiled for this machine, and run."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pcp.bundle import Bundle
from pcp.compiler import catalog, emission, iree, pipelines, signature, targets
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.manifest import Manifest, Module
from pcp.passes.core.functions import symbol_name
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.program.executor import Program

CLEAN = "cse,canonicalize,symbol-dce"
SHAPES: dict[str, tuple[int, ...]] = {"w": (3, 5), "b": (5,), "s": ()}


def model(dtype: str = "f32") -> str:
    """A @main with a matrix, a vector and a scalar to train, and one input."""
    return f"""
func.func @main(
    %w: tensor<3x5x{dtype}> {{pcp.name = "w", pcp.role = "param"}},
    %b: tensor<5x{dtype}> {{pcp.name = "b", pcp.role = "param"}},
    %s: tensor<{dtype}> {{pcp.name = "s", pcp.role = "param"}},
    %x: tensor<3x5x{dtype}> {{pcp.name = "x", pcp.role = "data"}})
    -> tensor<{dtype}> {{
  %zero = stablehlo.constant dense<0.0> : tensor<{dtype}>
  %0 = stablehlo.multiply %w, %x : tensor<3x5x{dtype}>
  %1 = stablehlo.broadcast_in_dim %b, dims = [1]
      : (tensor<5x{dtype}>) -> tensor<3x5x{dtype}>
  %2 = stablehlo.add %0, %1 : tensor<3x5x{dtype}>
  %3 = stablehlo.broadcast_in_dim %s, dims = []
      : (tensor<{dtype}>) -> tensor<3x5x{dtype}>
  %4 = stablehlo.multiply %2, %3 : tensor<3x5x{dtype}>
  %5 = stablehlo.tanh %4 : tensor<3x5x{dtype}>
  %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<3x5x{dtype}>, tensor<{dtype}>) -> tensor<{dtype}>
  return %6 : tensor<{dtype}>
}}"""


def run_passes(text: str, passes: str) -> ir.Module:
    """`text` after the passes."""
    module = parse(text)
    catalog.pipeline(f"builtin.module({passes})").run(module)
    return module


def expanded(
    text: str,
    optimizer: str = "sgd",
    algorithm: str = "none",
    after: str = CLEAN,
    keep: Sequence[str] = (),
) -> ir.Module:
    """`text` with its training functions; `after` are the passes that follow.

    With `keep`, all other public functions are dropped first: what is not tested
    need not be compiled.
    """
    expand = f"pcp-expand-training{{optimizer={optimizer} algorithm={algorithm}}}"
    kind = algorithm.partition("{")[0]
    grad = pipelines.DERIVATIVES.get(kind, pipelines.REVERSE)
    grad = grad.replace("$entry", "main")
    masters = "pcp-master-weights"
    module = run_passes(text, f"pcp-infer-roles,{masters},{grad},{expand}")
    if keep:
        _keep_only(module, keep)
    catalog.pipeline(f"builtin.module({after})").run(module)
    return module


def _keep_only(module: ir.Module, names: Sequence[str]) -> None:
    for op in list(module.body.operations):
        private = "sym_visibility" in op.operation.attributes
        if op.operation.name == "func.func" and not private:
            if symbol_name(op) not in names:
                op.operation.erase()


def bundle(module: ir.Module) -> Bundle:
    """`module`, lowered as far as pcp does it, compiled for this machine."""
    target = targets.find("cpu:host")
    text = emission.target_text(module, target)
    code = emission.compile_target(text, target, CompileOptions(), iree.Running())
    file = "modules/cpu.vmfb"
    manifest = Manifest(
        mode="train",
        functions=signature.functions(module, "main", "train"),
        collectives=signature.collectives(module),
        mesh=signature.meshes(module),
        modules={
            "cpu": Module(
                file=file, target="cpu", backend=target.backend, driver=target.driver
            )
        },
        producer={iree.PACKAGE: iree.version()},
    )
    return Bundle.build(manifest, {file: code})


def program(module: ir.Module, communicator: Any = None) -> Program:
    """`module` ready to run."""
    return Program.load(bundle(module), device="local-sync", communicator=communicator)


def in_parallel(
    code: Bundle | Sequence[Bundle], members: int, work: Callable[[Program, int], Any]
) -> list[Any]:
    """`work(program, rank)` on each member of a group; their results by rank.

    All run the same bundle, or each one of its own.
    """
    codes = [code] * members if isinstance(code, Bundle) else code
    communicators = Communicator.in_process(members)
    results: list[Any] = [None] * members
    faults: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with Program.load(
                codes[rank], device="local-sync", communicator=communicators[rank]
            ) as loaded:
                results[rank] = work(loaded, rank)
        except BaseException as error:
            faults.append(error)
            communicators[rank].abort(str(error))

    threads = [threading.Thread(target=run, args=(r,)) for r in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for communicator in communicators:
        communicator.close()
    if faults:
        raise faults[0]
    assert not any(thread.is_alive() for thread in threads), "a member hangs"
    return results


def tensors(
    generator: np.random.Generator, dtype: Any = np.float32, scale: float = 1.0
) -> list[np.ndarray]:
    """One random tensor for each of the model's parameters."""
    return [
        np.asarray(scale * generator.standard_normal(shape), dtype)
        for shape in SHAPES.values()
    ]


def steps(loaded: Program) -> tuple[list[np.ndarray], list[bool]]:
    """All tensors after five updates; of each tensor (no scalar), whether it moved."""
    with loaded:
        apply = loaded["apply"]
        values = list(loaded["init"](np.int64(3), device_arrays=True))
        count = len(apply.signature.inputs_of("param"))
        generator = np.random.default_rng(5)
        moved: set[int] = set()
        for _ in range(5):
            before = [address(v) for v in values]
            gradients = [
                generator.standard_normal(v.shape).astype(np.float32)
                for v in values[:count]
            ]
            given = [*values[:count], *gradients, *values[count:]]
            values = list(apply(*given, device_arrays=True))
            after = [address(v) for v in values]
            moved |= {
                i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b
            }
        flags = [i in moved for i, v in enumerate(values) if v.shape]
        return [v.numpy() for v in values], flags


def address(array: Any) -> int:
    """Where a device array of the CPU lies."""
    return array.view.get_buffer().map().asarray([1], np.dtype(np.uint8)).ctypes.data


def worst(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest absolute difference."""
    return max(
        float(np.max(np.abs(np.asarray(f, np.float64) - np.asarray(w, np.float64))))
        for f, w in zip(found, wanted, strict=True)
    )
