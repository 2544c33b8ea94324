"""A program's state, frozen tensors, key and metrics, from a model to a ledger."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.oracles import spmd
from helpers.worlds.training_cluster import Crew, load_bundle, stepping
from helpers.worlds.training_runs import experiment

import pcp
from pcp.bundle import Bundle, sha256
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import ConfigError
from pcp.manifest import Manifest
from pcp.training.simulate.replay import Replay
from pcp.training.storage import safetensors_io
from pcp.training.storage.ledger import read
from pcp.training.trainer.draw_key import key_of, keys
from pcp.training.trainer.step_loop import Steps, key_of_program

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

BATCH, BLOCK, DROPPED = 2, 16, 0.25


class Model(nn.Module):
    """All roles at once: of every one what a test can tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(BLOCK))
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, BLOCK), requires_grad=False)
        self.register_buffer("average", torch.zeros(BLOCK))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, ids: Any, targets: Any) -> Any:
        x = ids / 128 * self.scale
        with torch.no_grad():
            self.average.mul_(0.9).add_(0.1 * x.mean(0))
            self.steps.add_(1)
        h = functional.dropout(x, DROPPED, self.training) + targets / 128
        return ((self.w - h) ** 2).mean(), x.mean(), (ids > 100).sum()


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    ids = torch.zeros((BATCH, BLOCK), dtype=torch.int64)
    module = pcp.from_torch(Model(), ids, ids)
    kinds = {"optimizer": "adamw{lr=0.01}", "algorithm": "diloco"}
    return pcp.compile(module, ["cpu"], mode="train", **kinds)


@pytest.fixture
def brought(tmp_path: Any) -> str:
    path = tmp_path / "m.frozen.safetensors"
    scale = {"scale": np.linspace(0.5, 1.5, BLOCK, dtype=np.float32)}
    path.write_bytes(safetensors_io.to_bytes(scale))
    return str(path)


def test_no_function_writes_what_is_frozen(bundle: Bundle) -> None:
    functions = bundle.manifest.functions
    assert not any(t.role == "frozen" for f in functions.values() for t in f.results)
    for f in functions.values():
        assert not any(f.inputs[i].role == "frozen" for i in f.donates)
    kept = [t.name for t in functions["state_sync"].results]
    assert sorted(kept) == ["average", "steps"]


def _replayed(folder: Any, ledger: Any, content: bytes) -> None:
    def load(exp: Any, target: str) -> Any:
        return load_bundle(content), sha256(content)

    with closing(Replay(read(ledger)[0], load, run=folder)) as again:
        made = list(again.rounds())
    assert made
    assert [each.difference() for each in made if not each.same] == []


def test_a_run_in_which_a_worker_dies(
    tmp_path: Any, bundle: Bundle, brought: str
) -> None:
    """State is one at each commit, and the run is made again bit by bit."""
    content = bundle.to_bytes()
    keys = {"tau": 2, "outer_loop_steps": 5, "checkpoint_every": 1}
    exp = experiment(tmp_path, frozen_weights=brought, vocabulary_size=128, **keys)

    def before(number: int) -> None:
        if number == 5:
            raise SystemExit("killed")

    folder = tmp_path / "run"
    crew = Crew(exp, folder, content, 2, [load_bundle, stepping(before)])
    saved = crew.finish(dead=[1])
    assert crew.sizes()[0] == 2
    assert crew.sizes()[-1] == 1
    assert sorted(saved.state) == ["average", "steps"]
    assert saved.state["steps"] == 2 * 5
    assert sorted(saved.parameters) == ["w"]
    assert list((folder / "frozen").glob("*.safetensors"))
    names = [p.name for p in (folder / "checkpoints").rglob("*.safetensors")]
    assert set(names) >= {"state.safetensors", "parameters.safetensors"}
    for path in (folder / "checkpoints").rglob("*.safetensors"):
        assert "scale" not in safetensors_io.read(path)
    commits = [r for r in read(crew.ledger)[0] if r["kind"] == "commit"]
    assert all(r["metrics"].keys() == {"metric1", "metric2"} for r in commits)
    assert all(isinstance(r["metrics"]["metric2"], int) for r in commits)
    assert crew.watcher.rounds[-1].metrics == commits[-1]["metrics"]
    Path(brought).unlink()  # the run has its own
    _replayed(folder, crew.ledger, content)


def test_without_the_frozen_tensors_nothing_begins(
    tmp_path: Any, bundle: Bundle
) -> None:
    exp = experiment(tmp_path, vocabulary_size=128)
    content = bundle.to_bytes()
    with pytest.raises(ConfigError, match="'scale' is frozen, so its values come with"):
        Crew(exp, tmp_path / "run", content, 1).finish()


def _step(bundle: Bundle, batches: Any) -> tuple[list[float], Any, Any, Any]:
    """Losses, metrics, state and the last gradients of @grad on one batch each."""
    with pcp.Program.load(bundle, device="local-sync") as program:
        steps = Steps(program, bundle.manifest)
        steps.start(0, {"scale": np.linspace(0.5, 1.5, BLOCK, dtype=np.float32)})
        made = [steps.gradients(batch) for batch in batches]
        losses = [float(np.asarray(loss)) for loss, _ in made]
        state = {n: np.array(v) for (_, n), v in steps.held("model_state").items()}
        gradients = [np.array(found["grad", "w"]) for _, found in made]
        metrics = [
            {n: float(np.asarray(v)) for n, v in m.items()} for m in steps.metrics
        ]
        steps.close()
    return losses, metrics, state, gradients


@pytest.mark.slow  # two programs more
def test_a_batch_in_pieces_is_its_pieces_one_after_another(bundle: Bundle) -> None:
    """State goes from piece to piece, and each piece has the key that it would have."""
    draw = np.random.default_rng(3)
    ids, targets = (draw.integers(0, 128, (2 * BATCH, BLOCK)) for _ in range(2))
    module = pcp.from_torch(Model(), *[torch.zeros((BATCH, BLOCK)).long()] * 2)
    target, optimizer = ("cpu:host",), "sgd{lr=0.1}"
    options = CompileOptions(target, "train", optimizer, "none", batch=2 * BATCH)
    together = driver.compile(module, options)
    key = key_of_program(together.manifest)
    assert key is not None
    assert key.shape == (2, 2)
    positions = np.arange(6, 6 + 2 * BATCH)
    both = keys(key, 11, positions)
    whole = {"ids": ids, "targets": targets, key.name: both}
    cut = [slice(0, BATCH), slice(BATCH, 2 * BATCH)]
    pieces = [
        {"ids": ids[c], "targets": targets[c], key.name: key_of(11, positions[c][0])}
        for c in cut
    ]
    (loss,), (metrics,), state, (gradient,) = _step(together, [whole])
    losses, each, after, gradients = _step(bundle, pieces)
    assert loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert metrics["metric2"] == sum(m["metric2"] for m in each)
    assert metrics["metric1"] == pytest.approx(np.mean([m["metric1"] for m in each]))
    assert state["steps"] == after["steps"] == 2
    np.testing.assert_allclose(state["average"], after["average"], rtol=1e-6)
    np.testing.assert_allclose(gradient, np.mean(gradients, 0), rtol=1e-5, atol=1e-7)


@pytest.mark.slow  # it compiles for a mesh
def test_over_a_mesh_it_is_the_program_that_it_is_whole() -> None:
    """Batch statistics are of the whole batch, and members draw parts of one mask."""
    draw = np.random.default_rng(4)
    data = [draw.integers(0, 128, (4, BLOCK)) for _ in range(2)]
    ids = torch.zeros((4, BLOCK), dtype=torch.int64)
    text = str(pcp.from_torch(Model(), ids, ids))
    scale = np.linspace(0.5, 1.5, BLOCK, dtype=np.float32)
    zeros = np.zeros(BLOCK, np.float32)
    key = np.array([3, 4], np.uint32)
    inputs = [zeros, scale, zeros, np.zeros((), np.int64), *data, key]
    names = [
        i.split('"')[1] for i in text.partition(") -> ")[0].split("pcp.name = ")[1:]
    ]
    assert names == ["w", "scale", "average", "steps", "ids", "targets", "rng"]
    sharding = 'pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>'
    cut = text.replace('pcp.role = "data"', f'pcp.role = "data", {sharding}')
    module = parse(cut)
    with module.context, ir.Location.unknown():
        spmd.add_mesh(module, {"dp": 2})
    found = spmd.partitioned(str(module), inputs)
    for one, other in zip(found, spmd.whole(text, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


class Block(nn.Module):
    """A residual block of two convolutions with batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Any) -> Any:
        h = torch.relu(self.norm1(self.first(x)))
        return torch.relu(x + self.norm2(self.second(h)))


class ResNet(nn.Module):
    """As ResNet-18, small: a stem, two blocks, a mean, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.blocks, self.head = nn.Sequential(Block(8), Block(8)), nn.Linear(8, 4)

    def forward(self, images: Any, labels: Any) -> Any:
        x = self.blocks(torch.relu(self.norm(self.stem(images))))
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


STEPS = 20


def _images() -> tuple[Any, Any]:
    draw = torch.Generator().manual_seed(1)
    images = torch.randn((STEPS, 8, 3, 10, 10), generator=draw)
    return images, torch.randint(0, 4, (STEPS, 8), generator=draw)


def _ours(module: Any, given: dict[str, Any]) -> tuple[list[float], dict[str, Any]]:
    """The losses of the steps, and what is kept after them."""
    methods = {"optimizer": "sgd{lr=0.05,momentum=0.9}", "algorithm": "none"}
    bundle = pcp.compile(module, ["cpu:host"], mode="train", **methods)
    manifest: Manifest = bundle.manifest
    with pcp.Program.load(bundle, device="local-sync") as program:
        steps = Steps(program, manifest)
        steps.start(0, given)
        images, labels = _images()
        batches = [
            {"images": x.numpy(), "labels": y.numpy()}
            for x, y in zip(images, labels, strict=True)
        ]
        losses = [float(steps.step(batch)) for batch in batches]
        held = steps.held("model_state")
        kept = {name: np.array(value) for (_, name), value in held.items()}
        steps.close()
    return losses, kept


@pytest.mark.slow  # it compiles ResNet-18
def test_a_resnet_in_training_mode_is_torchs_over_twenty_steps() -> None:
    from pcp.frontends.torch import from_torch, values_of

    torch.manual_seed(0)
    model, (images, labels) = ResNet(), _images()
    module = from_torch(model, images[0], labels[0])
    losses, kept = _ours(module, values_of(model, module))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    wanted = []
    for x, y in zip(images, labels, strict=True):
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    np.testing.assert_allclose(losses, wanted, atol=1e-4)
    buffers = dict(model.named_buffers())
    assert kept.keys() == buffers.keys()
    for name, value in kept.items():
        theirs = buffers[name].numpy()
        np.testing.assert_allclose(value, theirs, atol=1e-5, rtol=1e-5, err_msg=name)
