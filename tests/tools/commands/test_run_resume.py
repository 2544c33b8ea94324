"""`pcp run --steps` outlives a member that is killed, and goes on from a checkpoint.

What such a run leaves is compared with gradient descent in numpy, and bit by bit with
a run in which nobody was killed.
"""

import json
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers.servers.processes import Process
from helpers.worlds.bundle_runs import save_npz

from pcp.tools import cli, compile

MODEL = """
func.func @main(%x: tensor<8x4xf32> {pcp.name = "x", pcp.role = "data"},
    %w: tensor<4x6xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %1 = stablehlo.tanh %0 : tensor<8x6xf32>
  %2 = stablehlo.multiply %1, %1 : tensor<8x6xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [0, 1]
    : (tensor<8x6xf32>, tensor<f32>) -> tensor<f32>
  return %3 : tensor<f32>
}
"""
RATE, STEPS, EVERY, HEARD = 1e-3, 400, 50, "step 120/"

#: How the model is compiled, and what else `pcp run` is given, by the kind of run.
KINDS = {
    "mesh": (["--mesh", "dp=2", "--algorithm", "none"], []),
    "alone": (["--algorithm", "none"], []),
    "zero": (["--mesh", "dp=2", "--zero", "3", "--optimizer", "adamw"], []),
    "diloco": (["--algorithm", "diloco"], ["--workers", "2", "--tau", "5"]),
    "spread": (["--mesh", "workers=2,dp=2", "--algorithm", "diloco"], ["--tau", "5"]),
    "overlap": (["--algorithm", "async_diloco"], ["--workers", "2", "--tau", "5"]),
}


def _compiled(folder: Path, *flags: str) -> Path:
    (folder / "m.mlir").write_text(MODEL)
    how = [
        "--target",
        "cpu",
        "-q",
        "--cache",
        "off",
        "--optimizer",
        f"sgd{{lr={RATE}}}",
    ]
    line = [str(folder / "m.mlir"), *how, *flags, "-o", str(folder / "m.pcp")]
    assert compile.main(line) == 0
    return folder / "m.pcp"


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Path:
    draw = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("given") / "in.npz"
    shapes = {"x": (7, 8, 4), "w": (4, 6)}
    made = {n: draw.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    save_npz(path, made)
    return path


@pytest.fixture(scope="module")
def mesh(tmp_path_factory) -> Path:
    return _compiled(tmp_path_factory.mktemp("mesh"), *KINDS["mesh"][0])


def _read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def _descent(given: Path) -> tuple[list[float], np.ndarray]:
    """The losses and the last weights of gradient descent, in numpy and float64."""
    arrays = _read(given)
    w, losses = arrays["w"].astype(np.float64), []
    for step in range(STEPS):
        x = arrays["x"][step % len(arrays["x"])].astype(np.float64)
        y = np.tanh(x @ w)
        losses.append((y**2).sum())
        w = w - RATE * x.T @ (2 * y * (1 - y**2))
    return losses, w


def _killed(bundle: Path, given: Path, out: Path, victim: int, *flags: str) -> Process:
    """A run in whose midst one of its processes got SIGKILL; it has ended well."""
    line = ["run", bundle, "--inputs", given, "--out", out, "--steps", STEPS, *flags]
    run = Process("pcp.tools.cli", *line, PYTHONUNBUFFERED="1")
    try:
        run.wait_for(HEARD, 120)
        members = psutil.Process(run.popen.pid).children()
        members[victim % len(members)].send_signal(signal.SIGKILL)
        assert run.wait(240) == 0, run.text
    finally:
        run.kill()
    assert "was killed by SIGKILL, and the others are ended" in run.text
    return run


def test_a_killed_member_is_replaced(mesh: Path, given: Path, tmp_path: Path) -> None:
    """In a step, by SIGKILL; all go on from the newest checkpoint."""
    kept = ["--checkpoint", tmp_path / "kept", "--checkpoint-every", EVERY]
    run = _killed(mesh, given, tmp_path / "out.npz", 1, *map(str, kept))
    again = run.wait_for("goes on behind step")
    behind = int(again.split()[4].rstrip(","))
    assert behind % EVERY == 0
    assert behind >= 100
    losses, weights = _descent(given)
    found = _read(tmp_path / "out.npz")
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-4)
    np.testing.assert_allclose(found["w"], weights, rtol=1e-4, atol=1e-6)


def _whole(bundle: Path, given: Path, out: Path, *flags: str) -> dict[str, np.ndarray]:
    line = ["run", str(bundle), "--inputs", str(given), "--out", str(out), *flags]
    assert cli.main(line) == 0
    return _read(out)


@pytest.mark.slow  # each compiles a program
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_it_leaves_the_bits_of_a_run_in_which_nobody_was_killed(
    kind: str, given: Path, tmp_path: Path
) -> None:
    """And so does one that ended, and goes on in another one."""
    flags, more = KINDS[kind]
    bundle = _compiled(tmp_path, *flags)
    steps = ["--steps", str(STEPS)]
    wanted = _whole(bundle, given, tmp_path / "whole.npz", *steps, *more)
    for victim in (0, 1):
        kept = ["--checkpoint", str(tmp_path / f"kept{victim}")]
        kept += ["--checkpoint-every", str(EVERY)]
        _killed(bundle, given, tmp_path / "killed.npz", victim, *kept, *more)
        _same(_read(tmp_path / "killed.npz"), wanted)
    kept = ["--checkpoint", str(tmp_path / "kept"), "--checkpoint-every", "10", *more]
    _whole(bundle, given, tmp_path / "a.npz", "--steps", "130", *kept)
    found = _whole(bundle, given, tmp_path / "b.npz", *steps, "--resume", *kept)
    _same(found, wanted)
    (newest, *_) = sorted((tmp_path / "kept" / "checkpoints").iterdir(), reverse=True)
    state = json.loads((newest / "state.json").read_text())
    assert len(state["losses"]["values"][0]) == STEPS


def _same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.slow
def test_without_checkpoints_it_begins_anew(
    mesh: Path, given: Path, tmp_path: Path
) -> None:
    run = _killed(mesh, given, tmp_path / "out.npz", 0)
    assert "they begin again from the first step" in run.text
    losses, _ = _descent(given)
    np.testing.assert_allclose(_read(tmp_path / "out.npz")["losses"], losses, rtol=1e-4)


@pytest.mark.slow
def test_who_is_killed_before_they_met_is_replaced(
    mesh: Path, given: Path, tmp_path: Path
) -> None:
    """Rank 0 is the only process then, and nobody met it yet."""
    line = ["run", mesh, "--inputs", given, "--out", tmp_path / "o.npz", "--steps", 20]
    run = Process("pcp.tools.cli", *line, PYTHONUNBUFFERED="1")
    try:
        launcher = psutil.Process(run.popen.pid)
        for _ in range(3000):
            if first := launcher.children():
                break
            time.sleep(0.01)
        first[0].send_signal(signal.SIGKILL)
        assert run.wait(120) == 0, run.text
    finally:
        run.kill()
    assert "rank 0 was killed by SIGKILL" in run.text
    losses, _ = _descent(given)
    found = _read(tmp_path / "o.npz")["losses"]
    np.testing.assert_allclose(found, losses[:20], rtol=1e-4)


@pytest.mark.slow
def test_who_is_killed_too_often_ends_the_run(
    mesh: Path, given: Path, tmp_path: Path
) -> None:
    line = ["run", mesh, "--inputs", given, "--out", tmp_path / "o.npz", "--steps"]
    run = Process("pcp.tools.cli", *line, STEPS, "--restarts", 0, PYTHONUNBUFFERED="1")
    try:
        run.wait_for(HEARD, 120)
        psutil.Process(run.popen.pid).children()[1].send_signal(signal.SIGKILL)
        assert run.wait(60) == 1
    finally:
        run.kill()
    assert "error: rank 1 was killed by SIGKILL" in run.text
