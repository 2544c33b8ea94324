"""The names that `import pcp` gives."""

from pathlib import Path

import numpy as np
import pytest

import pcp
from pcp.errors import (
    ConfigError,
    IRError,
    MissingRule,
    PassError,
    PcpError,
    UsageError,
)
from pcp.frontends.signature import entry

TEXT = """func.func @main(
    %w: tensor<3xf32> {pcp.role = "param", pcp.name = "w", pcp.init = "ones"},
    %x: tensor<3xf32> {pcp.role = "data", pcp.name = "x"}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.multiply %w, %x : tensor<3xf32>
  %1 = stablehlo.multiply %0, %w : tensor<3xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m.mlir").write_text(TEXT)
    return tmp_path / "m.mlir"


def test_passes_work_on_a_copy(model: Path) -> None:
    module = pcp.load(model)
    before = str(module)
    changed = pcp.run_passes(module, "builtin.module(pcp-grad{func=main},cse)")
    entry(changed, "main_grad")
    assert str(module) == before


def test_grad_is_the_pass(model: Path) -> None:
    module = pcp.load(model)
    plain = pcp.run_passes(module, "pcp-grad{func=main}")
    assert str(pcp.grad(module)) == str(plain)
    chosen = pcp.grad(module, wrt=[1, 0], name="both")
    assert "@both(" in str(chosen)
    assert len(entry(chosen, "both").attributes["function_type"].value.results) == 3


def test_errors_are_pcps(model: Path) -> None:
    module = pcp.load(model)
    with pytest.raises(PassError, match="Did you mean 'pcp-grad'"):
        pcp.run_passes(module, "pcp-gard")
    with pytest.raises(ConfigError, match="mode 'trian' is not one of"):
        pcp.compile(module, mode="trian")
    assert issubclass(MissingRule, PcpError)


def test_what_is_no_module_is_said(model: Path) -> None:
    for path in (model, str(model)):
        with pytest.raises(UsageError, match=r"m\.mlir is no module; .* pcp\.load"):
            pcp.compile(path)
    with pytest.raises(UsageError, match="dict is no module; make one"):
        pcp.grad({})


def test_a_text_is_a_module(model: Path) -> None:
    module = pcp.load(model)
    assert str(pcp.run_passes(str(module), "cse")) == str(module)
    assert str(pcp.grad(str(module))) == str(pcp.grad(module))
    with pytest.raises(IRError, match=r"^-:2:\d+: ") as error:
        pcp.run_passes(f"module {{\n  wrong\n{'  // long' * 99}\n}}", "cse")
    assert len(str(error.value)) < 300


def test_paths_may_be_text(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, folder = pcp.load(model), tmp_path / "cache"
    monkeypatch.chdir(tmp_path)
    pcp.compile(module, "cpu", mode="forward", cache="off")
    assert not Path("off").exists()  # no folder: the word that the commands know
    pcp.compile(module, "cpu", mode="forward", cache=str(folder))
    assert [*folder.iterdir()]
    monkeypatch.setenv("PCP_CACHE", str(tmp_path / "commands"))
    pcp.compile(module, "cpu", mode="forward")
    assert [*(tmp_path / "commands").iterdir()]
    with pytest.raises(ConfigError, match=r"^cache=7 is no path"):
        pcp.compile(module, "cpu", mode="forward", cache=7)


def test_one_target_needs_no_list(model: Path) -> None:
    module = pcp.load(model)
    assert pcp.compile(module, "cpu", mode="forward").targets == ("cpu",)


def test_from_a_file_to_numbers(model: Path, tmp_path: Path) -> None:
    bundle = pcp.compile(pcp.load(model), targets=["cpu:host"], mode="grad")
    path = bundle.write(tmp_path / "m.pcp")
    program = pcp.Program.load(path, device="local-sync")
    w, x = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)
    loss, gradient = program["grad"](w, x)
    assert loss == (w * x * w).sum()
    np.testing.assert_array_equal(gradient, 2 * w * x)
    np.testing.assert_array_equal(program["main_grad"](w, x)[1], gradient)


def test_an_unknown_option_of_compile_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no option 'memry'\. Did you mean 'memory'"):
        pcp.compile("module {}", memry=1)
