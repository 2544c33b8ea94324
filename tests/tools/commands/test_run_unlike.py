"""`pcp run --steps` over members compiled for unlike processors: one set of weights.

Code for any x86-64 rounds a product before it adds it, code for this processor does
both at once.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.models import sharded
from helpers.oracles import chrome_trace
from helpers.servers.processor_features import fused
from helpers.worlds.bundle_runs import ran, save_npz

from pcp.bundle import Bundle
from pcp.tools import cli, compile

ADAMW = "adamw{lr=1e-2,clip_norm=1.0}"
STEPS = 30
TWO, FOUR = ["cpu:host", "cpu"], ["cpu:host", "cpu", "cpu", "cpu:host"]
CUTS = {"*.qkv": [[], ["tp"]], "*.up": [[], ["tp"]], "*.b1": [["tp"]]}
CUTS |= {"*.down": [["tp"]], "*.out": [["tp"]], "token": [["tp"]]}


def _scaled(params: Any, x: Any, y: Any) -> Any:
    """The MLP's loss; one parameter is a number, which cannot be cut."""
    rest = {name: w for name, w in params.items() if name != "gain"}
    return sharded.models()["mlp"].loss(rest, params["gain"] * x, y)


def _large() -> sharded.Model:
    """Of a larger batch the gradients are what is sent, and not the examples."""
    mlp = sharded.with_batch("mlp", 256)
    return sharded.Model(_scaled, mlp.params | {"gain": np.float32(1)}, mlp.data)


LARGE = _large()


def _compile(
    model: sharded.Model,
    targets: list[str],
    folder: Path,
    *more: str,
    mesh: str = "dp=2",
    optimizer: str = ADAMW,
) -> Path:
    """A training bundle of a model, for one member a target."""
    folder.mkdir(exist_ok=True)
    (folder / "m.mlir").write_text(sharded.text_of(model))
    flags = [flag for target in targets for flag in ("--target", target)]
    flags += ["--mesh", mesh] if mesh else []
    flags += ["--mode", "train", "--algorithm", "none", "--optimizer", optimizer, *more]
    bundle = folder / "m.pcp"
    flags += ["--cache", "off", "-q", "-o", str(bundle)]
    assert compile.main([str(folder / "m.mlir"), *flags]) == 0
    return bundle


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The MLP's batch; parameters are drawn by `@init`, which rounds too."""
    path = tmp_path_factory.mktemp("data") / "in.npz"
    x, noise = LARGE.data
    target = np.tanh(x[:, :4] + x[:, 4:8]) + 0.1 * noise
    save_npz(path, {"data.0": x, "data.1": target})
    return path


@pytest.fixture(scope="module")
def unlike(tmp_path_factory) -> Path:
    return _compile(LARGE, TWO, tmp_path_factory.mktemp("unlike"))


@pytest.fixture(scope="module")
def alike(tmp_path_factory) -> list[Path]:
    """For each target a bundle of two members that are alike."""
    folder = tmp_path_factory.mktemp("alike")
    return [_compile(LARGE, [t], folder / str(i)) for i, t in enumerate(TWO)]


def _sent(bundle: Path, inputs: Path, steps: int) -> int:
    """Bytes that the busiest member sends in so many steps."""
    trace = bundle.with_name("trace.json")
    ran(bundle, inputs, "--steps", str(steps), "--trace", str(trace))
    found = json.loads(trace.read_text())
    chrome_trace.check(found)
    sent: dict[int, int] = {}
    for event in found["traceEvents"]:
        if event["ph"] == "X":  # an operation; what all sent so far is said besides
            count = event.get("args", {}).get("sent", 0)
            sent[event["pid"]] = sent.get(event["pid"], 0) + count
    return max(sent.values())


@pytest.mark.slow  # test_members_that_drift_apart_are_named runs unlike ones too
def test_unlike_members_train_as_one(unlike: Path, data: Path, tmp_path: Path) -> None:
    """`pcp run` refuses parameters of which two members hold other bits."""
    alone = _compile(LARGE, ["cpu:host"], tmp_path / "alone", mesh="")
    flags = ["--steps", str(STEPS), "--seed", "7"]
    expected = ran(alone, data, *flags)
    found = ran(unlike, data, *flags, "--parity", "10")
    assert found["losses"][-1] < 0.9 * found["losses"][0]
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow  # it compiles four programs
def test_they_send_no_more_than_members_that_are_alike(
    unlike: Path, alike: list[Path], data: Path
) -> None:
    assert len(Bundle.read(alike[1]).manifest.modules) == 1
    gradients = sum(x.nbytes for x in LARGE.arguments[: -len(LARGE.data)])
    sent = _sent(alike[1], data, STEPS)
    assert sent >= STEPS * gradients
    assert _sent(unlike, data, STEPS) <= 1.1 * sent


@pytest.fixture(scope="module")
def untold(alike: list[Path], tmp_path_factory) -> Path:
    """One member of each of these, which nobody told that the other is unlike."""
    one, other = map(Bundle.read, alike)
    manifest, file = one.manifest, "modules/mesh_1.vmfb"
    theirs = other.manifest.modules["mesh_0"].model_copy(update={"file": file})
    programs = {
        device: program.model_copy(update={"module": device})
        for device, program in manifest.programs.items()
    }
    modules = {"mesh_0": manifest.modules["mesh_0"], "mesh_1": theirs}
    changes = {"modules": modules, "programs": programs}
    members = {**one.members, file: other.members["modules/mesh_0.vmfb"]}
    bundle = Bundle.build(manifest.model_copy(update=changes), members)
    return bundle.write(tmp_path_factory.mktemp("untold") / "m.pcp")


@pytest.mark.slow  # test_verify_owners.py has the pass
@pytest.mark.skipif(not fused(), reason="this processor rounds as any x86-64 does")
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--parity", "2"],
            r"after step 2: members hold other bits of what is to be the same: "
            r"\w+ on mesh_1 by up to \S+ \(\d+ units? in the last place\) from mesh_0; "
            r".*more tensors differ",
        ),
        ([], rf"after step {STEPS}: .* on mesh_1 by up to "),  # behind the last one
        (
            ["--parity", "0"],
            r"result \w+: members hold different values",
        ),
    ],
)
def test_members_that_drift_apart_are_named(
    flags: list[str], says: str, untold: Path, data: Path, tmp_path: Path, capfd
) -> None:
    flags = [*flags, "--inputs", str(data), "--out", str(tmp_path / "out.npz")]
    assert cli.main(["run", str(untold), "--steps", str(STEPS), *flags]) == 1
    assert re.search(says, capfd.readouterr().err)
    assert not (tmp_path / "out.npz").exists()


def test_parity_counts_steps(untold: Path, data: Path, tmp_path: Path, capfd) -> None:
    flags = ["--steps", "2", "--parity", "-1", "--inputs", str(data)]
    code = cli.main(["run", str(untold), *flags, "--out", str(tmp_path / "out.npz")])
    assert code == 2
    assert "--parity -1: at least 0" in capfd.readouterr().err


@pytest.mark.slow
def test_a_thousand_steps(unlike: Path, data: Path) -> None:
    found = ran(unlike, data, "--steps", "1000", "--parity", "1")
    assert len(found["losses"]) == 1000
    assert found["losses"][-1] < 0.1 * found["losses"][0]


#: How a GPT is spread over two kinds of members: mesh, targets, flags, sharding rules.
SPREAD = {
    "tp2": ("tp=2", TWO, [], CUTS),
    "dp2-tp2": ("dp=2,tp=2", FOUR, [], {**CUTS, "data.*": [["dp"]]}),
    "pp2": ("pp=2", TWO, ["--tied", "--microbatches", "2"], None),
    "pp2-dp2": ("pp=2,dp=2", FOUR, ["--tied", "--microbatches", "2"], None),
    "zero3": ("dp=2", TWO, ["--zero", "3"], None),
}


TOLD = ["--steps", "20", "--seed", "7"]


@pytest.fixture(scope="module")
def gpt_alone(tmp_path_factory) -> tuple[Path, dict[str, np.ndarray]]:
    """(batches, what one process makes of them)."""
    folder = tmp_path_factory.mktemp("gpt")
    ids = np.random.default_rng(1).integers(0, 50, (4, 4, 9))
    batches = {"data.0": ids[..., :-1], "data.1": ids[..., 1:]}
    save_npz(folder / "in.npz", batches)
    bundle = _compile(sharded.models()["gpt"], ["cpu:host"], folder, mesh="")
    return folder / "in.npz", ran(bundle, folder / "in.npz", *TOLD)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("plan", SPREAD)
def test_a_gpt_over_unlike_members(plan: str, gpt_alone, tmp_path: Path) -> None:
    inputs, expected = gpt_alone
    mesh, targets, flags, rules = SPREAD[plan]
    if rules is not None:
        (tmp_path / "rules.json").write_text(json.dumps({"tensors": rules}))
        flags = [*flags, "--sharding", str(tmp_path / "rules.json")]
    gpt = sharded.models()["gpt"]
    bundle = _compile(gpt, targets, tmp_path, *flags, mesh=mesh)
    found = ran(bundle, inputs, *TOLD, "--parity", "1")
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-3)
    assert set(found) == set(expected)
