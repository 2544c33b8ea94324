"""Every example runs as its docstring says, in seconds, and is short."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ALONE = sorted(
    path.stem
    for path in EXAMPLES.glob("*.py")
    # One needs a run, the other makes one: it takes a minute.
    if path.stem not in ("load_checkpoint_in_torch", "serve_demo")
)
DEADLINE_S = 200


def run(*command: str | Path, folder: Path) -> str:
    """What a command printed; a failure shows it."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_model_is_trained_and_served_and_chatted_with(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "serve_demo.py", folder=tmp_path)
    _, _, answer = printed.partition("\nready: model\n")
    assert len(answer.strip()) > 20


@pytest.mark.slow  # seven processes that import torch, and twenty seconds of steps
def test_a_replica_of_torchft_dies_and_comes_back(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "torchft" / "hsdp.py", folder=tmp_path)
    assert "replica 1 was killed" in printed
    sums = re.findall(r"replica \d: .*40 steps, .* at a time, sum (\S+)", printed)
    assert len(sums) == 2
    assert sums[0] == sums[1]


#: test_torch_backend.py trains with DDP on pcp, test_torch.py compiles torch's models,
#: test_readme.py differentiates one of JAX, and numpy's collectives are those of JAX.
SLOW = {
    "ddp_on_pcp",
    "torch_to_bundle",
    "jax_to_gradient",
    "jax_collectives",
    "engines_by_address",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in ALONE],
)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    printed = run(EXAMPLES / f"{name}.py", folder=tmp_path)
    assert printed.strip()
    for difference in re.findall(r"differs by at most (\S+)", printed):
        assert float(difference) < 1e-6


def test_the_examples_that_run_are_these() -> None:
    assert {"collectives", "jax_to_gradient", "torch_to_bundle"} <= set(ALONE)


@pytest.mark.parametrize(
    ("name", "package", "what"),
    [
        ("ddp_on_pcp", "torch", "-e '.[torch]'"),
        ("jax_collectives", "jax", "-e '.[jax]'"),
        ("jax_to_gradient", "jax", "-e '.[jax]'"),
        ("load_checkpoint_in_torch", "torch", "-e '.[torch]'"),
        ("torch_to_bundle", "torch", "-e '.[torch]'"),
    ],
)
def test_an_example_says_what_is_missing(monkeypatch, name, package, what) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert ended.value.code == f"this example needs {package}: pip install {what}"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_an_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) < 60
    assert any(f"python examples/{path.name}" in line for line in lines)


@pytest.mark.slow  # also in test_against_torch.py
def test_a_trained_checkpoint_gives_the_same_loss_in_torch(tmp_path: Path) -> None:
    experiment = {
        "model_path": str(EXAMPLES / "models" / "nanogpt_small.mlir"),
        "data_path": "builtin:python-docs",
        "tokenizer": "byte",
        "learning_rate": 3e-3,
        "tau": 4,
        "outer_loop_steps": 2,
        "checkpoint_dir": str(tmp_path / "runs"),
    }
    (tmp_path / "x.json").write_text(json.dumps(experiment))
    command = ["-m", "pcp.tools.cli", "train", "x.json", "--workers", "1"]
    run(*command, "--no-dashboard", folder=tmp_path)
    (found,) = (tmp_path / "runs").glob("run_*")
    example = EXAMPLES / "load_checkpoint_in_torch.py"
    printed = run(example, found, folder=tmp_path)
    match = re.search(r"PyTorch (\S+), pcp (\S+), difference", printed)
    assert match, printed
    theirs, ours = map(float, match.groups())
    assert theirs == pytest.approx(ours, abs=1e-4)
    assert ours < 4.5, "ln(256) is 5.5: a trained model, not its first values"
