"""A worker's process has no compiler and no framework in it."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "jax", "jaxlib", "torch_mlir", "iree.compiler", "uvicorn")
WORKER = (
    "pcp.runtime.program.executor",
    "pcp.runtime.communicator.communicator",
    "pcp.training.worker.worker",
    "pcp.serving.interface",
)


def loaded(modules: tuple[str, ...]) -> set[str]:
    """What a fresh process has loaded after importing `modules`."""
    script = f"import sys, {', '.join(modules)}; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_worker_loads_no_compiler_and_no_framework():
    modules = loaded(WORKER)
    assert set(WORKER) <= modules, "the test would pass by importing nothing"
    assert modules.isdisjoint(HEAVY)
    rooms = {m for m in modules if m.startswith("pcp.")}
    compile_half = {
        f"pcp.{room}"
        for room in (
            "autodiff",
            "compiler",
            "dialect",
            "engines",
            "frontends",
            "passes",
            "tools",
        )
    }
    assert rooms.isdisjoint(compile_half)


def test_importing_pcp_loads_almost_nothing():
    modules = loaded(("pcp",))
    assert modules.isdisjoint({*HEAVY, "numpy", "pydantic"})


@pytest.mark.parametrize("module", ["torch_mlir", "pcp.dialect.bindings"])
def test_the_test_would_see_a_compiler(module):
    assert "torch_mlir" in loaded((module,))
