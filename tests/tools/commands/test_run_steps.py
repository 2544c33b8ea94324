"""`pcp run --steps`: a program that is spread over a mesh trains as the whole one."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.models import jax_training, sharded
from helpers.worlds.bundle_runs import ran, save_npz

from pcp.bundle import Bundle
from pcp.tools import cli, compile

STEPS = 20
CUTS = {"*.qkv": [[], ["tp"]], "*.up": [[], ["tp"]], "*.b1": [["tp"]]}
CUTS |= {"*.down": [["tp"]], "*.out": [["tp"]], "token": [["tp"]]}

#: How the small GPT is spread: its flags, and the sharding file's rules.
SPREAD = {
    "dp2": (["--mesh", "dp=2"], None),
    "tp2": (["--mesh", "tp=2"], CUTS),
    "zero3": (["--mesh", "dp=2", "--zero", "3"], None),
    "zero3-4": (["--mesh", "dp=4", "--zero", "3"], None),
}


def _compile(
    name: str,
    optimizer: str,
    flags: list[str],
    folder: Path,
    rules=None,
    mesh: str = "",
) -> Path:
    """A training bundle of a model in `folder`, with the op `mesh` in the model."""
    folder.mkdir(exist_ok=True)
    text = sharded.training_text(name)
    (folder / "m.mlir").write_text(text.replace("{\n", "{\n" + mesh, 1))
    if rules is not None:
        (folder / "rules.json").write_text(json.dumps({"tensors": rules}))
        flags = [*flags, "--sharding", str(folder / "rules.json")]
    flags = [*flags, "--target", "cpu:host", "--mode", "train", "--cache", "off"]
    flags += ["--algorithm", "none", "--optimizer", optimizer, "-q"]
    bundle = folder / "m.pcp"
    assert compile.main([str(folder / "m.mlir"), *flags, "-o", str(bundle)]) == 0
    return bundle


def _trained(bundle: Path, inputs: Path, steps: int) -> dict[str, np.ndarray]:
    return ran(bundle, inputs, "--steps", str(steps), "--seed", "7")


@pytest.fixture(scope="module")
def spread_mlp(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mlp")
    flags = ["--mesh", "dp=2", "--zero", "3"]
    return _compile("mlp", "sgd{lr=0.1}", flags, folder)


def test_steps_are_those_of_gradient_descent(spread_mlp: Path, tmp_path: Path) -> None:
    """Five updates on three batches in turn, from given values, as jax makes them."""
    model = sharded.models()["mlp"]
    random = np.random.default_rng(0)
    batches = [random.normal(size=(3, *x.shape)).astype(np.float32) for x in model.data]
    given = dict(
        zip(model.names, [*model.arguments[: -len(batches)], *batches], strict=True)
    )
    save_npz(tmp_path / "in.npz", given)
    found = _trained(spread_mlp, tmp_path / "in.npz", 5)
    params, losses = model.params, []
    slope = jax.jit(jax.value_and_grad(model.loss))
    for i in range(5):
        loss, grads = slope(params, *(x[i % 3] for x in batches))
        params = jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)
        losses.append(loss)
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-5)
    for name, expected in params.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-6)
    assert int(found["step"]) == 5


UNEVEN = (
    '"pcp.mesh"() {axes = [#pcp.axis<"dp", 3>], devices = [], sym_name = "mesh", '
    'split = #pcp.split<"dp", [5, 2, 1]>} : () -> ()\n'
)
#: The same asked for on the command line, and in the model.
SPLITS = {
    "flags": (["--mesh", "dp=3", "--split", "dp=5,2,1"], ""),
    "model": ([], UNEVEN),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", SPLITS)
def test_five_two_one_trains_as_the_whole(tmp_path: Path, way: str) -> None:
    """Three processes share eight samples; joining refuses unequal parameters."""
    save_npz(tmp_path / "in.npz", _named("mlp"))
    alone = _compile("mlp", "adamw", [], tmp_path / "whole")
    flags, mesh = SPLITS[way]
    split = _compile("mlp", "adamw", flags, tmp_path / "split", mesh=mesh)
    manifest = Bundle.read(split).manifest
    data = [p.functions["grad"].inputs[-1] for p in manifest.programs.values()]
    assert [t.shape[0] for t in data] == [5, 2, 1]
    expected = _trained(alone, tmp_path / "in.npz", 10)
    for name, found in _trained(split, tmp_path / "in.npz", 10).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-6)


def _named(name: str) -> dict[str, np.ndarray]:
    """A model's arguments by name."""
    model = sharded.models()[name]
    return dict(zip(model.names, model.arguments, strict=True))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--steps", "0", "--inputs", "random:0"], "--steps 0: at least one"),
        (
            ["--steps", "2", "--inputs", "random:0", "--function", "grad"],
            "leave --function out",
        ),
        (
            ["--steps", "2", "--inputs", "random:0", "--resume"],
            "--resume and --checkpoint-every go with --checkpoint DIR",
        ),
        (
            ["--steps", "2", "--inputs", "random:0", "--checkpoint", "held"],
            "--checkpoint held: there are checkpoints already; go on from them with",
        ),
        (
            ["--inputs", "random:0", "--checkpoint", "held"],
            "--checkpoint, --checkpoint-every and --resume are for training, with",
        ),
        (
            ["--inputs", "random:0", "--resume"],
            "--checkpoint, --checkpoint-every and --resume are for training, with",
        ),
        (
            ["--steps", "2", "--inputs", "random:0", "--checkpoint", ""],
            "--checkpoint '': name a folder",
        ),
        (["--steps", "2", "--inputs", "bad.npz"], "data.0 has shape [8, 5], not"),
        (["--steps", "2", "--inputs", "none.npz"], "no data 'data.1' is given"),
    ],
)
def test_what_cannot_be_trained_is_said(
    flags, says, spread_mlp: Path, tmp_path: Path, monkeypatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("held/checkpoints/round_00000001").mkdir(parents=True)
    save_npz("bad.npz", {"data.0": np.zeros((8, 5), np.float32)})
    save_npz("none.npz", {"data.0": np.zeros((8, 12), np.float32)})
    assert cli.main(["run", str(spread_mlp), *flags, "--out", "o.npz"]) == 2
    (line,) = capfd.readouterr().err.splitlines()  # by no member again
    assert says in line


@pytest.mark.slow  # a program more
def test_a_gradient_bundle_has_no_step(tmp_path: Path, capfd) -> None:
    (tmp_path / "m.mlir").write_text(sharded.training_text("mlp"))
    bundle = str(tmp_path / "m.pcp")
    flags = ["--target", "cpu", "--mode", "grad", "--cache", "off", "-q", "-o", bundle]
    assert compile.main([str(tmp_path / "m.mlir"), *flags]) == 0
    flags = ["--steps", "1", "--inputs", "random:0", "--out", "o.npz"]
    assert cli.main(["run", bundle, *flags]) == 1
    assert "has no training step" in capfd.readouterr().err


@pytest.fixture(scope="module")
def gpt_alone(tmp_path_factory) -> tuple[Path, dict[str, np.ndarray]]:
    """(batches, what one process makes of them)."""
    folder = tmp_path_factory.mktemp("gpt")
    ids = np.random.default_rng(1).integers(0, jax_training.VOCABULARY, (4, 4, 9))
    save_npz(folder / "in.npz", {"data.0": ids[..., :-1], "data.1": ids[..., 1:]})
    bundle = _compile("gpt", "adamw{lr=1e-2}", [], folder / "whole")
    return folder / "in.npz", _trained(bundle, folder / "in.npz", STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("plan", SPREAD)
def test_a_gpt_trains_as_on_one_device(plan: str, gpt_alone, tmp_path: Path) -> None:
    inputs, alone = gpt_alone
    flags, rules = SPREAD[plan]
    bundle = _compile("gpt", "adamw{lr=1e-2}", flags, tmp_path, rules)
    found = _trained(bundle, inputs, STEPS)
    assert alone["losses"][-1] < 0.95 * alone["losses"][0]
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-5)
    assert set(found) == set(alone)
