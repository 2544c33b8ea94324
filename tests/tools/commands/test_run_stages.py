"""`pcp-compile --mesh pp=4` and `pcp run`: a real process for each stage, over TCP."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.models import sharded
from helpers.oracles import pipelines
from helpers.servers.interpreter import Interpreter
from helpers.worlds.bundle_runs import ran

from pcp.bundle import Bundle
from pcp.tools import compile

STAGES = 4
NANOGPT = Path(__file__).parents[3] / "examples" / "models" / "nanogpt_small.mlir"


def _compiled(
    text: str, folder: Path, mode: str, *flags: str, mesh: str = f"pp={STAGES}"
) -> Path:
    (folder / "m.mlir").write_text(text)
    command = [str(folder / "m.mlir"), "--target", "cpu:host", "--mode", mode]
    command += ["--mesh", mesh, "-q", "--cache", "off", *flags]
    assert compile.main([*command, "-o", str(folder / "m.pcp")]) == 0
    return folder / "m.pcp"


@pytest.mark.slow  # test_partitioned.py trains stages in one process
@pytest.mark.parametrize(
    ("model", "count", "schedule"),
    [
        ("mlp", 4, "1f1b"),
        pytest.param("mlp", 8, "1f1b", marks=pytest.mark.slow),
        pytest.param("gpt8", 8, "1f1b", marks=pytest.mark.slow),
        pytest.param("gpt", 4, "zb-h1", marks=pytest.mark.slow),
        pytest.param("gpt", 4, "gpipe", marks=pytest.mark.slow),
        pytest.param("llama", 4, "1f1b", marks=pytest.mark.slow),
        pytest.param("block", 4, "zb-h1", marks=pytest.mark.slow),
    ],
)
def test_four_processes_make_the_step(
    model: str,
    count: int,
    schedule: str,
    tmp_path: Path,
    interpreter: Interpreter,
) -> None:
    flags = ["--microbatches", str(count), "--schedule", schedule, "--tied"]
    bundle = _compiled(str(pipelines.named(model)), tmp_path, "forward", *flags)
    found = sharded.models()[model]
    inputs = dict(zip(found.names, found.arguments, strict=True))
    results = ran(bundle, inputs, "--function", "main")
    for name, b in zip(
        ["loss", *found.names],
        sharded.whole_gradient(model, interpreter),
        strict=False,
    ):
        assert np.abs(results[name] - b).max() <= 1e-5 * (1e-3 + np.abs(b).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "mesh", "plan"),
    [("gpt", "pp=2,tp=2", sharded.tp), ("gpt", "pp=2,dp=2", sharded.dp)],
)
def test_processes_that_share_stages_make_the_step(
    model: str,
    mesh: str,
    plan: sharded.Plan,
    tmp_path: Path,
    interpreter: Interpreter,
) -> None:
    found = sharded.models()[model]
    tensors = {
        name: [list(axes) for axes in sharded.layout(plan, name, a.shape).dims]
        for name, a in zip(found.names, found.arguments, strict=True)
    }
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"tensors": tensors}))
    flags = ["--microbatches", "2", "--tied", "--sharding", str(rules)]
    text = str(pipelines.named(model))
    bundle = _compiled(text, tmp_path, "forward", *flags, mesh=mesh)
    inputs = dict(zip(found.names, found.arguments, strict=True))
    results = ran(bundle, inputs, "--function", "main")
    for name, b in zip(
        ["loss", *found.names],
        sharded.whole_gradient(model, interpreter),
        strict=False,
    ):
        assert np.abs(results[name] - b).max() <= 1e-5 * (1e-3 + np.abs(b).max())


def _trained(bundle: Path) -> dict[str, np.ndarray]:
    found = sharded.models()["mlp"]
    pairs = zip(found.names, found.arguments, strict=True)
    data = {n: a for n, a in pairs if n.startswith("data.")}
    return ran(bundle, data, "--steps", "4")


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--mesh", "pp=2,dp=2", "--zero", "1", "--schedule", "1f1b"],
        ["--mesh", "pp=2"],
        ["--mesh", "dp=2,pp=2", "--zero", "3"],
    ],
)
def test_stages_train_as_one_device(flags: list[str], tmp_path: Path) -> None:
    """Processes for each stage and part of the batch, against one process."""
    (tmp_path / "m.mlir").write_text(sharded.training_text("mlp"))
    command = [str(tmp_path / "m.mlir"), "--target", "cpu:host", "--mode", "train"]
    command += ["-q", "--cache", "off"]
    results = []
    for name, own in (("spread", [*flags, "--microbatches", "2"]), ("alone", [])):
        bundle = tmp_path / f"{name}.pcp"
        assert compile.main([*command, *own, "-o", str(bundle)]) == 0
        results.append(_trained(bundle))
    spread, alone = results
    assert spread.keys() == alone.keys()
    assert alone["losses"][-1] < alone["losses"][0]
    for name, b in alone.items():
        assert np.abs(spread[name] - b).max() <= 1e-5 * (1e-3 + np.abs(b).max()), name


@pytest.mark.slow
def test_the_gradient_mode_stages_both_functions(tmp_path: Path) -> None:
    """The closed form of tanh(x w0) ... summed, layer by layer backwards."""
    bundle = _compiled(pipelines.chain_text(STAGES, 8), tmp_path, "grad")
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 4)).astype(np.float32)
    weights = [random.normal(size=(4, 4)).astype(np.float32) for _ in range(STAGES)]
    inputs = {"x": x, **{f"w{i}": w for i, w in enumerate(weights)}}
    hidden = [x]
    for w in weights:
        hidden.append(np.tanh(hidden[-1] @ w))
    results = ran(bundle, inputs, "--function", "grad")
    np.testing.assert_allclose(results["loss"], hidden[-1].sum(), rtol=1e-5)
    slope = np.ones_like(hidden[-1])
    for i in reversed(range(STAGES)):
        inner = slope * (1 - hidden[i + 1] ** 2)
        np.testing.assert_allclose(
            results[f"w{i}"], hidden[i].T @ inner, rtol=1e-4, atol=1e-5
        )
        slope = inner @ weights[i].T
    alone = ran(bundle, inputs, "--function", "main")
    np.testing.assert_allclose(alone["loss"], results["loss"], rtol=1e-6)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--mesh", "pp=2,dp=3", "--mode", "grad"], "a batch of 3 cannot be cut"),
        (["--mesh", "pp=2", "--mode", "grad", "--zero", "1"], "leave --zero"),
        (["--mesh", "pp=2", "--mode", "grad", "--microbatches", "3"], "a batch of 8"),
        (["--mesh", "pp=40", "--mode", "grad"], "too few for 40 stages"),
    ],
)
def test_what_stages_cannot_be_is_said(
    flags: list[str], says: str, tmp_path: Path, capfd
) -> None:
    (tmp_path / "m.mlir").write_text(pipelines.chain_text(4, 8, marked=False))
    if "pp=40" in flags:
        (tmp_path / "m.mlir").write_text(pipelines.chain_text(4, 40, marked=False))
    code = compile.main([str(tmp_path / "m.mlir"), "--target", "cpu", *flags])
    assert code == 1
    assert says in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["pp=2", "pp=2,dp=2"])
def test_a_cross_entropy_of_pytorch_with_labels_left_out(
    mesh: str, tmp_path: Path
) -> None:
    """It picks logits by (row, label), and divides by how many labels count."""
    text = NANOGPT.read_text()
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "m.mlir").write_text(text)
    command = [str(whole / "m.mlir"), "--target", "cpu:host", "--mode", "grad", "-q"]
    assert compile.main([*command, "-o", str(whole / "m.pcp")]) == 0
    bundle = _compiled(text, tmp_path, "grad", "--microbatches", "4", mesh=mesh)
    random = np.random.default_rng(0)
    inputs = {}
    for spec in Bundle.read(bundle).manifest.functions["grad"].inputs:
        draw = random.normal(0, 0.05, spec.shape).astype(np.float32)
        inputs[spec.name] = draw
    ids = random.integers(0, 256, (2, 64, 32))
    inputs |= {"ids": ids[0], "targets": np.where(ids[1] < 80, -100, ids[1])}
    expected = ran(whole / "m.pcp", inputs, "--function", "grad")
    found = ran(bundle, inputs, "--function", "grad")
    assert len(expected) == len(found) == 26
    for a, b in zip(expected.values(), found.values(), strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(a).max()
