"""f64 stays f64, or somebody hears about it; whoever is interrupted stops IREE."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers.servers import compile_cache
from helpers.worlds.communicators import eventually

from pcp.compiler import emission, iree
from pcp.compiler.driver import compile
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import CompileError
from pcp.runtime.program.executor import Program

DOUBLE = """func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> {
  %c = stablehlo.constant dense<1.0000000001> : tensor<4xf64>
  %0 = stablehlo.multiply %x, %c : tensor<4xf64>
  return %0 : tensor<4xf64>
}"""
INSIDE = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xf64>
  %1 = stablehlo.exponential %0 : tensor<4xf64>
  %2 = stablehlo.convert %1 : (tensor<4xf64>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}"""


def options(target: str, said: list[str]) -> CompileOptions:
    return CompileOptions(targets=(target,), cache=None, report=said.append)


def test_doubles_are_not_narrowed() -> None:
    program = Program.load(compile(parse(DOUBLE), options("cpu", [])), "local-sync")
    result = program["main"](np.ones(4))
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, np.full(4, 1.0000000001))


def test_a_border_of_doubles_is_refused_where_there_are_none() -> None:
    with pytest.raises(CompileError, match="IREE does not compile f64 for vulkan"):
        compile(parse(DOUBLE), options("vulkan", []))


@pytest.mark.parametrize("target", ["vulkan", "sm_90a"])
def test_narrowing_inside_is_said(target: str) -> None:
    said: list[str] = []
    compile(parse(INSIDE), options(target, said))
    assert any("computed in f32" in line for line in said)


def test_an_interrupt_stops_what_was_just_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, said = tmp_path / "iree-compile", tmp_path / "pid"
    fake.write_text(
        f"#!/bin/sh\necho $$ > {said}.new\nmv {said}.new {said}\nexec sleep 6000\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(iree, "binary", lambda: fake)
    monkeypatch.setattr(iree, "compile_text", compile_cache.uncached)

    class Interrupted(ThreadPoolExecutor):
        """Ctrl-C comes when the compiler runs and `submit` has not returned."""

        def submit(self, *args, **more):
            super().submit(*args, **more)
            eventually(said.exists, 30)
            raise KeyboardInterrupt

    monkeypatch.setattr(emission, "ThreadPoolExecutor", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile(parse(INSIDE), options("cpu", []))
    with pytest.raises(ProcessLookupError):
        os.kill(int(said.read_text()), 0)
