"""`pcp export`: models from files, weights, and what a user gets wrong."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pcp.frontends.signature import arguments_of, require_scalar_loss
from pcp.frontends.stablehlo import load
from pcp.tools.cli import main as pcp_main
from pcp.tools.commands import export
from pcp.training.storage import safetensors_io

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "examples" / "models"

TORCH = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width: int = 4, kind: str = "sum"):
        super().__init__()
        self.w = nn.Parameter(torch.randn(width))
        self.kind = kind
    def forward(self, ids):
        scores = ids.float()[..., None] * self.w
        return scores.sum() if self.kind == "sum" else scores

class Needs(Net):
    def __init__(self, size):
        super().__init__(size)

class Anything(Net):
    def forward(self, *ids):
        return super().forward(ids[0])

class Raises(Net):
    def __init__(self):
        raise RuntimeError("no luck\\nat all")

class Both(Net):
    def forward(self, ids):
        loss = super().forward(ids)
        return ids.float() * loss, loss

class Base(Net):
    def __init__(self):
        super().__init__()
        self.base = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("seen", torch.arange(4.0))
        self.register_buffer("count", torch.zeros(()))
    def forward(self, ids):
        with torch.no_grad():
            self.seen += 1
            self.count += 1
        return super().forward(ids) * self.base.sum()

class Floats(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return self.layer(x).sum()

def helper():
    return 3
"""

JAX = """
import jax.numpy as jnp
import numpy as np

def loss(params, x):
    return jnp.mean((x @ params["w"]) ** 2)

def example_arguments():
    return {"w": np.ones((3, 2), np.float32)}, np.zeros((4, 3), np.float32)

def wrong(params, x):
    return x @ params["w"].T

def small():
    return {"w": np.ones((3, 2), np.float32)}, np.zeros((1, 3), np.float32)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(TORCH)
    (tmp_path / "fn.py").write_text(JAX)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_torch_model_with_weights(folder: Path, capsys) -> None:
    command = ["export", "--torch", "net.py:Net", "--batch-size", "2"]
    command += ["--block-size", "3", "--seed", "7", "--set", "width=5"]
    assert pcp_main([*command, "-o", "n.mlir", "--weights", "w.safetensors"]) == 0
    (weight, ids) = arguments_of(load("n.mlir"))
    assert (weight.name, weight.role, ids.name, ids.role) == (
        *("w", "param"),
        *("ids", "data"),
    )
    assert "tensor<2x3xi64>" in Path("n.mlir").read_text()
    torch.manual_seed(7)
    np.testing.assert_array_equal(
        safetensors_io.read("w.safetensors")["w"], torch.randn(5)
    )
    assert "1 parameters; data: ids" in capsys.readouterr().out


def test_what_no_seed_makes_stands_beside_the_model(folder: Path, capsys) -> None:
    command = ["--torch", "net.py:Base", "-o", "b.mlir", "--weights", "w.safetensors"]
    assert export.main(command) == 0
    brought = safetensors_io.read("b.frozen.safetensors")
    assert sorted(brought) == ["base", "seen"]
    np.testing.assert_array_equal(brought["seen"], np.arange(4.0))  # as it was
    assert sorted(safetensors_io.read("w.safetensors")) == ["count", "w"]
    assert "b.frozen.safetensors: what the model reads" in capsys.readouterr().out


def test_the_loss_may_be_a_later_result(folder: Path) -> None:
    command = ["--torch", "net.py:Both", "--result", "1", "-o", "b.mlir"]
    assert export.main(command) == 0
    require_scalar_loss(load("b.mlir"))


@pytest.mark.slow  # test_cli.py says what they mean
def test_the_older_flags(folder: Path) -> None:
    command = ["--model-file", "net.py", "--class-name", "Net"]
    command += ["--batch-size", "2", "--block-size", "3", "--out"]
    assert export.main([*command, "n.mlir"]) == 0
    script = ROOT / "tools" / "export_model.py"
    again = [sys.executable, script, *command, "again.mlir"]
    subprocess.run(again, check=True, timeout=120)
    assert Path("again.mlir").read_text() == Path("n.mlir").read_text()


def test_jax_function(folder: Path) -> None:
    command = ["--jax", "fn.py:loss", "--weights", "w.safetensors"]
    assert export.main(command) == 0
    names = [(a.name, a.role) for a in arguments_of(load("fn.mlir"))]
    assert names == [("params.w", "param"), ("x", "data")]
    assert list(safetensors_io.read("w.safetensors")) == ["params.w"]
    assert export.main([*command, "--arguments", "small", "-o", "s.mlir"]) == 0
    assert "tensor<1x3xf32>" in Path("s.mlir").read_text()


def test_a_model_without_a_loss_needs_forward(folder: Path, capsys) -> None:
    command = ["--torch", "net.py:Net", "--set", "kind=scores", "-o", "n.mlir"]
    assert export.main(command) == 1
    assert "returns its loss, one floating-point scalar" in capsys.readouterr().err
    assert not Path("n.mlir").exists()
    assert export.main([*command, "--forward"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give one model: --torch, --jax or --model-file"),
        (["--torch", "net.py"], 2, "write FILE.py:NAME"),
        (["--torch", "a.py:B", "--jax", "a.py:b"], 2, "give one model"),
        (["--model-file", "net.py"], 2, "needs --class-name"),
        (["--torch", "net.py:Net", "--class-name", "B"], 2, "goes with --model-file"),
        (["--torch", "net.py:Net", "--batch-size", "0"], 2, "whole number above zero"),
        (["--torch", "net.py:Net", "--set", "width"], 2, "write KEY=VALUE"),
        (["--torch", "none.py:Net"], 1, "none.py: no such file"),
        (["--torch", "net.py:Nett"], 1, "Did you mean 'Net'?"),
        (["--torch", "net.py:Needs"], 1, "required argument: 'size' (see --set"),
        (["--torch", "net.py:Net", "--set", "widht=3"], 1, "argument 'widht'"),
        (["--torch", "net.py:Raises"], 1, "RuntimeError while being made: no luck"),
        (["--torch", "net.py:Both"], 1, "choose it with --result 1"),
        (["--torch", "net.py:Both", "--result", "2"], 2, "forward returns 2"),
        (["--torch", "net.py:Net", "--result", "0"], 2, "forward returns one"),
        (["--jax", "fn.py:loss", "--result", "0"], 2, "goes with a PyTorch model"),
        (["--jax", "fn.py:wrong"], 1, "TypeError while being traced: "),
        (["--torch", "net.py:helper"], 1, "is not a torch.nn.Module class"),
        (["--torch", "net.py:Anything"], 1, "a method example_inputs("),
        (["--torch", "broken.py:Net"], 1, "No module named 'nothing_of_this_name'"),
        (["--torch", "raises.py:Net"], 1, "ZeroDivisionError while loading"),
        (["--torch", "net.py:Net", "-o", "net.py/n.mlir"], 1, "net.py: File exists"),
        (["--jax", "fn.py:loss", "--arguments", "smal"], 1, "Did you mean 'small'?"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, capsys, arguments: list[str], code: int, message: str
) -> None:
    assert export.main(arguments) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_guessed_inputs_that_do_not_fit_are_named(folder: Path, capfd) -> None:
    command = ["--torch", "net.py:Floats", "--batch-size", "3", "--block-size", "5"]
    assert export.main(command) == 1
    error, note = capfd.readouterr().err.splitlines()
    assert "torch.export cannot export this model: " in error
    assert "taken for int64[3, 5]" in note
    assert "example_inputs(batch_size, block_size)" in note


def test_the_committed_model_is_what_the_exporter_makes(tmp_path: Path) -> None:
    out = tmp_path / "nanogpt_small.mlir"
    command = ["--torch", str(MODELS / "nanogpt_small.py:GPT"), "-o", str(out)]
    assert export.main([*command, "--batch-size", "64", "--block-size", "32"]) == 0
    committed = (MODELS / "nanogpt_small.mlir").read_text()
    assert out.read_text() == committed, "run the command in nanogpt_small.py again"


@pytest.mark.slow  # two processes
def test_a_model_says_before_its_framework_is_imported_how(folder: Path) -> None:
    text = "import os; os.environ['JAX_ENABLE_X64'] = '1'\n" + JAX
    Path("wide.py").write_text(text.replace("float32", "float64"))
    command = [
        sys.executable,
        "-m",
        "pcp.tools.commands.export",
        "--jax",
        "wide.py:loss",
    ]
    subprocess.run(command, check=True, timeout=120)
    assert "f64" in Path("wide.mlir").read_text()


@pytest.mark.parametrize(
    ("framework", "model"), [("torch", "net.py:Net"), ("jax", "fn.py:loss")]
)
def test_a_framework_that_is_missing_is_to_be_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys, framework: str, model: str
) -> None:
    """Said before the model's file is loaded, which fails without it."""
    monkeypatch.setitem(sys.modules, framework, None)
    assert export.main([f"--{framework}", model]) == 2
    assert f"pip install -e '.[{framework}]'" in capsys.readouterr().err


def test_the_folders_of_the_output_are_made(tmp_path):
    export._write(tmp_path / "a" / "b" / "m.mlir", b"module")
    assert (tmp_path / "a" / "b" / "m.mlir").read_bytes() == b"module"
