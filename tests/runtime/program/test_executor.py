"""Programs: numpy and device arrays in and out.

The modules are compiled here, straight from StableHLO, so that these tests
depend on nothing of the compiling half but IREE.
"""

import subprocess
import sys
import textwrap

import ml_dtypes
import numpy as np
import pytest
from helpers.models.handwritten_imports import bundle, spec

from pcp.bundle import Bundle, Function
from pcp.errors import (
    BundleError,
    ConfigError,
    UsageError,
)
from pcp.runtime.program.devices import Device
from pcp.runtime.program.executor import Program, available_drivers

PLAIN = """
func.func @step(
    %p: tensor<4xf32>, %b: tensor<3xi1>, %n: tensor<i32>, %h: tensor<2xbf16>)
    -> (tensor<4xf32>, tensor<3xi1>, tensor<i32>, tensor<2xbf16>) {
  %q = stablehlo.add %p, %p : tensor<4xf32>
  %c = stablehlo.not %b : tensor<3xi1>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %m = stablehlo.add %n, %one : tensor<i32>
  %k = stablehlo.add %h, %h : tensor<2xbf16>
  return %q, %c, %m, %k : tensor<4xf32>, tensor<3xi1>, tensor<i32>, tensor<2xbf16>
}
func.func @double(%p: tensor<4xf32>) -> tensor<4xf32> {
  %q = stablehlo.add %p, %p : tensor<4xf32>
  return %q : tensor<4xf32>
}
"""


@pytest.fixture(scope="module")
def plain():
    inputs = (
        spec("p", [4], role="param"),
        spec("b", [3], "i1"),
        spec("n", [], "i32"),
        spec("h", [2], "bf16"),
    )
    one = (spec("p", [4]),)
    return bundle(
        PLAIN,
        {
            "step": Function(inputs=inputs, results=inputs, donates=(0,)),
            "double": Function(inputs=one, results=one),
        },
    )


def arguments():
    return (
        np.arange(4, dtype=np.float32),
        np.array([True, False, True]),
        np.array(41, np.int32),
        np.array([1.5, 2], ml_dtypes.bfloat16),
    )


def test_numpy_in_numpy_out(plain, device):
    with Program.load(plain, device) as program:
        p, b, n, h = program["step"](*arguments())
        assert p.tolist() == [0, 2, 4, 6]
        assert b.tolist() == [False, True, False]
        assert (n.shape, n.dtype, n) == ((), np.int32, 42)
        assert h.dtype == ml_dtypes.bfloat16
        assert h.tolist() == [3, 4]
        assert program["double"](np.ones(4, np.float32)).tolist() == [2] * 4
        assert program["step"](*arguments()[:2], 1, arguments()[3])[2] == 2


def test_state_stays_on_the_device_and_donated_state_is_gone(plain, device, tmp_path):
    path = plain.write(tmp_path / "model.pcp")
    with Program.load(path, device) as program:
        state = program.to_device(np.arange(4, dtype=np.float32))
        for _ in range(3):
            before = state
            state, *_ = program["step"](state, *arguments()[1:], device_arrays=True)
            with pytest.raises(UsageError, match="donated to step as p"):
                before.numpy()
            with pytest.raises(UsageError, match="donated to step as p"):
                program["double"](before)
        assert state.numpy().tolist() == [0, 8, 16, 24]
        kept = program["double"](state, device_arrays=True)
        assert state.numpy().tolist() == [0, 8, 16, 24], "double donates nothing"
        assert np.asarray(kept).tolist() == [0, 16, 32, 48]
        assert kept.nbytes == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a[:3], r"takes 4 arguments \(.*\), not 3"),
        (lambda a: (a[0].astype(float), *a[1:]), r"argument 0 \(p\) takes f32\[4\]"),
        (lambda a: (a[0][:2], *a[1:]), r"\(p\) takes f32\[4\], not float32\[2\]"),
        (lambda a: (*a[:2], np.array([1], np.int32), a[3]), r"\(n\) takes i32\[\]"),
        (lambda a: (*a[:3], np.ones(2, np.float16)), r"\(h\) takes bf16\[2\]"),
        (lambda a: (a[0], np.ones(3, np.int8), *a[2:]), r"\(b\) takes i1\[3\]"),
    ],
)
def test_wrong_arguments_are_named(plain, change, message):
    with Program.load(plain) as program:
        with pytest.raises(UsageError, match=message):
            program["step"](*change(arguments()))


def test_what_cannot_be_loaded_or_found(plain, two):
    with pytest.raises(ConfigError, match="no driver 'tpu'"):
        Program.load(plain, "tpu")
    with pytest.raises(BundleError, match="no module for target 'gpu'"):
        Program.load(plain, module="gpu")
    broken = Bundle.build(plain.manifest, {"modules/cpu.vmfb": b"no module" * 9})
    with pytest.raises(BundleError, match="does not load"):
        Program.load(broken)
    lacking = plain.manifest.functions | {"other": plain.manifest.functions["double"]}
    manifest = plain.manifest.model_copy(update={"functions": lacking})
    with pytest.raises(BundleError, match="lacks function 'other'"):
        Program.load(Bundle.build(manifest, plain.members))
    with Program.load(plain) as program:
        with pytest.raises(BundleError, match="Did you mean 'step'"):
            program["stepp"]
        double = program["double"]
    for call in (lambda: double(np.ones(4, np.float32)), lambda: program["double"]):
        with pytest.raises(UsageError, match="closed"):
            call()
    unbound = two.manifest.model_copy(update={"collectives": {}})
    with pytest.raises(BundleError, match="does not load"):
        Program.load(Bundle.build(unbound, two.members))


def test_a_gpu_that_is_not_there_is_a_clear_error(plain):
    missing = [d for d, found in available_drivers().items() if not found]
    for driver in missing:
        with pytest.raises(ConfigError):
            Program.load(plain, driver)
    assert available_drivers()["local-task"]


def test_the_interpreter_exits_clean_whatever_was_left_open(plain, tmp_path):
    path = plain.write(tmp_path / "model.pcp")
    script = textwrap.dedent(f"""
        import numpy as np
        from pcp.runtime.program.executor import Program
        program = Program.load({str(path)!r})
        state = program.to_device(np.ones(4, np.float32))
        result = program["double"](state, device_arrays=True)
        cycle = [program, state]; cycle.append(cycle)
        print(result.numpy().sum())
    """)
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "8.0\n", "")


def test_what_iree_opened_stays_open():
    """Python frees a cycle in any order, and buffers must go before their device."""
    assert Device("local-sync").hal is Device("local-sync").hal
