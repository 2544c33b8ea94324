"""`pcp run --workers`: workers that are spread over a mesh train as whole ones do."""

import json
import pydoc_data.topics
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.present import present
from helpers.worlds.bundle_runs import ran

from pcp.bundle import Bundle, Manifest
from pcp.errors import UsageError
from pcp.tools import cli, compile
from pcp.training.trainer import bundle_checks
from pcp.training_plan import Asynchronous, EveryRound, EveryStep, Never

MODEL = """
func.func @main(
    %w0: tensor<4x8xf32> {pcp.role = "param", pcp.name = "w0"},
    %w1: tensor<8x2xf32> {pcp.role = "param", pcp.name = "w1"},
    %x: tensor<8x4xf32> {pcp.role = "data", pcp.name = "x"}) -> tensor<f32> {
  %h = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0]
    : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %t = stablehlo.tanh %h : tensor<8x8xf32>
  %y = stablehlo.dot_general %t, %w1, contracting_dims = [1] x [0]
    : (tensor<8x8xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
  %s = stablehlo.multiply %y, %y : tensor<8x2xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %loss = stablehlo.reduce(%s init: %zero) applies stablehlo.add
    across dimensions = [0, 1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
"""
RULES = {"w0": [[], ["tp"]], "w1": [["tp"]]}
WORKERS, ROUNDS, TAU, RATE = 2, 20, 3, 0.002
SPREAD = ["--mesh", "workers=2,tp=2"]
RUN = ["--steps", str(ROUNDS * TAU), "--tau", str(TAU)]
DILOCO = "diloco{lr=0.7,momentum=0.8}"


def compiled(folder: Path, algorithm: str, *flags: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "m.mlir").write_text(MODEL)
    (folder / "rules.json").write_text(json.dumps({"tensors": RULES}))
    if any("tp=" in flag for flag in flags):
        flags = (*flags, "--sharding", str(folder / "rules.json"))
    flags = (*flags, "--optimizer", f"sgd{{lr={RATE}}}", "--algorithm", algorithm)
    line = [str(folder / "m.mlir"), "--target", "cpu", "--cache", "off", "-q", *flags]
    assert compile.main([*line, "-o", str(folder / "m.pcp")]) == 0
    return folder / "m.pcp"


@pytest.fixture(scope="module")
def given() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"w0": (4, 8), "w1": (8, 2), "x": (ROUNDS * TAU * WORKERS, 8, 4)}
    return {n: random.normal(size=s).astype(np.float32) for n, s in shapes.items()}


@pytest.fixture(scope="module")
def spread(tmp_path_factory) -> Path:
    return compiled(tmp_path_factory.mktemp("spread"), DILOCO, *SPREAD)


def loss_of(params: dict[str, jax.Array], x: np.ndarray) -> jax.Array:
    return jnp.sum((jnp.tanh(x @ params["w0"]) @ params["w1"]) ** 2)


def diloco(given: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Losses [worker, step] and the last parameters, as arXiv 2311.08105 has them."""
    step = jax.jit(jax.value_and_grad(loss_of))
    anchor = {name: given[name] for name in ("w0", "w1")}
    momentum = jax.tree.map(np.zeros_like, anchor)
    losses = np.zeros((WORKERS, ROUNDS * TAU))
    for begin in range(0, ROUNDS * TAU, TAU):
        moved = []
        for worker in range(WORKERS):
            own = anchor
            for i in range(begin, begin + TAU):
                losses[worker, i], grads = step(own, given["x"][i * WORKERS + worker])
                own = jax.tree.map(lambda w, g: w - RATE * g, own, grads)
            moved.append(jax.tree.map(np.subtract, anchor, own))
        delta = jax.tree.map(lambda *xs: sum(xs) / WORKERS, *moved)
        momentum = jax.tree.map(lambda b, d: 0.8 * b + d, momentum, delta)
        ahead = jax.tree.map(lambda b, d: d + 0.8 * b, momentum, delta)
        anchor = jax.tree.map(lambda w, d: w - 0.7 * d, anchor, ahead)
    return losses, anchor


@pytest.mark.slow  # test_whole_workers_train_the_same
def test_two_workers_of_two_devices_train_as_diloco_does(
    spread: Path, given: dict[str, np.ndarray]
) -> None:
    """Four processes; the number of workers is the bundle's."""
    losses, params = diloco(given)
    found = ran(spread, given, *RUN)
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-4)
    assert losses[:, -TAU:].mean() < losses[:, :TAU].mean() / 4
    for name, expected in params.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # a compile of two more programs
def test_two_workers_of_two_stages_train_the_same(
    tmp_path: Path, given: dict[str, np.ndarray]
) -> None:
    """Momentum lies with its parameter, on the stage that has it."""
    staged = compiled(tmp_path, DILOCO, "--mesh", "workers=2,pp=2")
    programs = Bundle.read(staged).manifest.programs.values()
    kept = [p.functions["outer_step"].results_of("outer") for p in programs]
    assert [len(places) for places in kept] == [1, 1]
    losses, params = diloco(given)
    found = ran(staged, given, *RUN)
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-4)
    for name, expected in params.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # test_run_steps.py has steps of processes
def test_whole_workers_train_the_same(
    tmp_path: Path, given: dict[str, np.ndarray]
) -> None:
    whole = compiled(tmp_path, DILOCO)
    found = ran(whole, given, *RUN, "--workers", str(WORKERS))
    np.testing.assert_allclose(found["losses"], diloco(given)[0], rtol=1e-4)


def test_a_member_exchanges_its_shards_alone(spread: Path) -> None:
    """Its part of each tensor in @outer_step; these and a weight between workers."""
    manifest = Bundle.read(spread).manifest
    assert manifest.mesh["workers_mesh"].axes == {"workers": WORKERS}
    assert manifest.algorithm is not None
    assert manifest.algorithm.kind == "diloco"
    parts = {"w0": (4, 4), "w1": (4, 2)}
    for program in manifest.programs.values():
        step = program.functions["outer_step"]
        held = [t for t in (*step.inputs, *step.results) if t.shape]
        assert {t.role for t in held} == {"anchor", "param", "outer"}
        assert [t.shape for t in held] == [parts[t.name[-2:]] for t in held]
        sent = [c.shape for c in program.collectives.values() if c.axes == ("workers",)]
        assert sent == [(4 * 4 + 4 * 2 + 1,)]


@pytest.mark.slow  # it compiles for a mesh
@pytest.mark.parametrize("elastic", ["workers=elastic", "island=-1", "dp=-1"])
def test_one_axis_is_elastic_over_fixed_ones(elastic: str, tmp_path: Path) -> None:
    """Gradients are exchanged shard by shard; each name of the axis says the same."""
    mesh = ["--mesh", f"{elastic},tp=2"]
    manifest = Bundle.read(compiled(tmp_path, "ddp", *mesh)).manifest
    assert [m.axes for m in manifest.mesh.values()] == [{"workers": -1}, {"tp": 2}]
    assert manifest.training == EveryStep()
    assert manifest.algorithm is not None
    for program in manifest.programs.values():
        sync = program.functions["grad_sync"].results
        assert [t.shape for t in sync] == [(4, 4), (4, 2)]
        sent = [c.shape for c in program.collectives.values() if c.axes == ("workers",)]
        assert sent == [(4 * 4 + 4 * 2 + 1,)]


def test_an_older_bundle_of_spread_workers_has_its_plan(spread: Path) -> None:
    """Its collectives are its devices'; within the mesh alone they join no workers."""
    manifest = Bundle.read(spread).manifest
    older = manifest.model_dump(mode="json") | {"training": None}
    assert Manifest.model_validate(older).training == manifest.training == EveryRound()
    for program in present(older["programs"]).values():
        calls = program["collectives"].items()
        program["collectives"] = {n: c for n, c in calls if c["axes"] == ["tp"]}
    assert Manifest.model_validate(older).training == Never(outer_step=True)


def test_a_run_without_islands_does_not_take_a_part(
    spread: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two workers would each take the part of a device, and train that as the whole."""
    path = write_experiment(tmp_path, model_path=str(spread))
    line = ["train", str(path), "--workers", "2", "--run", str(tmp_path / "out")]
    assert cli.main([*line, "--no-dashboard"]) == 1
    assert "has a program for each of 2 devices" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["average", "async_diloco", "decoupled", "diloco{nesterov=false}"]
)
def test_other_algorithms_train_as_whole_workers_do(
    algorithm: str, tmp_path: Path, given: dict[str, np.ndarray]
) -> None:
    spread = compiled(tmp_path / "spread", algorithm, *SPREAD)
    whole = compiled(tmp_path / "whole", algorithm)
    expected = ran(whole, given, *RUN, "--workers", str(WORKERS))
    for name, found in ran(spread, given, *RUN).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["1", "3"])
def test_workers_under_zero_train_the_same(
    zero: str, tmp_path: Path, given: dict[str, np.ndarray]
) -> None:
    flags = ["--mesh", "workers=elastic,dp=2", "--zero", zero]
    spread = compiled(tmp_path, DILOCO, *flags)
    found = ran(spread, given, *RUN, "--workers", str(WORKERS))
    np.testing.assert_allclose(found["losses"], diloco(given)[0], rtol=1e-4)


GPT = Path(__file__).parents[3] / "examples/models/nanogpt_small.mlir"
CUTS = {"*.up.weight": [["tp"]], "*.up.bias": [["tp"]], "*.down.weight": [[], ["tp"]]}
CUTS |= {"token.weight": [["tp"]], "head.weight": [["tp"]]}


@pytest.mark.slow
def test_a_gpt_on_two_workers_of_two_devices(tmp_path: Path) -> None:
    """Twenty rounds of AdamW and DiLoCo on the documentation of Python."""
    text = "".join(pydoc_data.topics.topics.values()).encode()
    letters = np.frombuffer(text, np.uint8).astype(np.int64)
    starts = np.random.default_rng(0).integers(0, len(letters) - 33, (80, 64, 1))
    at = starts + np.arange(32)
    data = {"ids": letters[at], "targets": letters[at + 1]}
    losses = {}
    for name, flags in (("whole", []), ("spread", SPREAD)):
        bundle = compiled_gpt(tmp_path / name, *flags)
        run = ["--steps", "40", "--tau", "2", "--workers", "2"]
        losses[name] = ran(bundle, data, *run)["losses"]
    np.testing.assert_allclose(losses["spread"], losses["whole"], rtol=1e-4)
    assert losses["whole"][:, -1].max() < losses["whole"][:, 0].min() - 1


def compiled_gpt(folder: Path, *flags: str) -> Path:
    folder.mkdir()
    (folder / "rules.json").write_text(json.dumps({"tensors": CUTS}))
    if flags:
        flags = (*flags, "--sharding", str(folder / "rules.json"))
    line = [str(GPT), "--target", "cpu:host", "--algorithm", "diloco{lr=0.7}", *flags]
    assert compile.main([*line, "-q", "-o", str(folder / "m.pcp")]) == 0
    return folder / "m.pcp"


@pytest.mark.slow  # five commands
def test_an_outer_step_that_is_left_out_is_said(tmp_path: Path, capfd, given) -> None:
    """One process, and two: each time once."""
    said = (
        "without --tau these are inner steps alone: the bundle's @outer_step (diloco)"
    )
    whole = compiled(tmp_path / "whole", DILOCO)
    spread = compiled(tmp_path / "spread", DILOCO, "--mesh", "tp=2")
    for bundle in (whole, spread):
        capfd.readouterr()
        ran(bundle, given, "--steps", "3")
        assert capfd.readouterr().out.count(said) == 1
        ran(bundle, given, "--steps", "3", "--tau", "3")
        assert said not in capfd.readouterr().out


@pytest.mark.slow  # commands for one line
def test_workers_that_share_a_batch_are_said(tmp_path: Path, capfd, given) -> None:
    one = {**given, "x": given["x"][:1]}
    bundle = compiled(tmp_path, DILOCO)
    for held, times in ((one, 1), (given, 0)):
        capfd.readouterr()
        ran(bundle, held, "--steps", "1", "--tau", "1", "--workers", "2")
        said = "holds 1 batch for 2 workers: some of them train on the same one"
        assert capfd.readouterr().out.count(said) == times


@pytest.mark.slow
def test_snoo_is_a_worker_alone(tmp_path: Path, given: dict[str, np.ndarray]) -> None:
    spread = compiled(tmp_path, "snoo", "--mesh", "tp=2")
    losses = ran(spread, given, *RUN)["losses"]
    assert losses.shape == (ROUNDS * TAU,)
    assert losses[-TAU:].mean() < losses[:TAU].mean() / 4


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--steps", "4"], "--workers 2: say how many steps a round has, --tau"),
        (["--steps", "5", "--tau", "2"], "--tau 2: rounds of 2 steps do not make 5"),
        (["--steps", "4", "--tau", "0"], "--tau 0: at least one step"),
        (["--steps", "4", "--workers", "0"], "--workers 0: at least one"),
        (["--workers", "2"], "--workers and --tau are for training, with --steps"),
        (
            ["--steps", "4", "--tau", "2", "--workers", "3"],
            "the bundle is compiled for 2 workers",
        ),
    ],
)
def test_what_is_no_run_of_rounds_is_said(
    flags: list[str], says: str, spread: Path, tmp_path: Path, capfd
) -> None:
    line = ["run", str(spread), "--inputs", "random:0", "--out", str(tmp_path / "o")]
    assert cli.main([*line, *flags]) == 2
    (error,) = capfd.readouterr().err.splitlines()
    assert says in error


def test_a_bundle_without_rounds_has_no_outer_step(spread: Path) -> None:
    manifest = Bundle.read(spread).manifest
    functions = {n: f for n, f in manifest.functions.items() if n != "outer_step"}
    without = manifest.model_copy(update={"functions": functions})
    bundle_checks.check_rounds(manifest, WORKERS, 2, 4)
    with pytest.raises(UsageError, match="the bundle has no outer step"):
        bundle_checks.check_rounds(without, WORKERS, 2, 4)


def test_an_algorithm_of_one_worker_has_no_several(spread: Path) -> None:
    """They would drift apart, and that be found when all steps are made."""
    plan = Never(outer_step=True)
    alone = Bundle.read(spread).manifest.model_copy(
        update={"training": plan, "mesh": {}}
    )
    bundle_checks.check_rounds(alone, 1, 2, 4)
    with pytest.raises(UsageError, match="of one worker alone"):
        bundle_checks.check_rounds(alone, WORKERS, 2, 4)


def test_learners_on_their_own_clocks_have_no_rounds(spread: Path) -> None:
    plan = {"training": Asynchronous()}
    manifest = Bundle.read(spread).manifest.model_copy(update=plan)
    with pytest.raises(UsageError, match="workers do not all meet"):
        bundle_checks.check_rounds(manifest, WORKERS, 2, 4)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--mesh", "tp=2", "--algorithm", "muloco"], "it looks at whole tensors"),
        (["--mesh", "workers=0,tp=2"], "is not axis=size"),
        (["--mesh", "workers=2,dp=2", "--mode", "grad"], "is for training with"),
        (["--mesh", "workers=2", "--algorithm", "noloco"], "joins all workers"),
        (["--mesh", "tp=elastic"], 'axis "tp" has to have a size'),
        (["--mesh", "dp=-1,island=-1,tp=2"], "dp and island both join whole programs"),
        (
            ["--mesh", "workers=2,tp=2", "--algorithm", "none"],
            'axis "workers" is for an algorithm that joins them',
        ),
    ],
)
def test_what_no_workers_can_be_spread_over_is_said(
    flags: list[str], says: str, tmp_path: Path, capsys
) -> None:
    (tmp_path / "m.mlir").write_text(MODEL)
    line = [str(tmp_path / "m.mlir"), "--target", "cpu", "-q", *flags]
    assert compile.main(line) == 1
    assert says in capsys.readouterr().err
