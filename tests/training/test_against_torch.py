"""Compiled bundles trained by shepherd and workers, against PyTorch."""

import numpy as np
import pytest
from helpers.models.token_batches import pair
from helpers.worlds.training_runs import Background, Watcher, checkpoint_of, experiment

import pcp
from pcp.bundle import Bundle
from pcp.runtime import Endpoint
from pcp.training.data.corpus import Corpus
from pcp.training.data.dataset import token_inputs
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage import safetensors_io
from pcp.training.storage.run_folder import RunFolder
from pcp.training.storage.snapshots import shared_of
from pcp.training.trainer.bundle_trainer import BundleTrainer
from pcp.training.trainer.step_loop import loss_value
from pcp.training.worker.worker import Identity, Worker

torch = pytest.importorskip("torch")

VOCABULARY, WIDTH, BATCH, BLOCK = 64, 16, 4, 8
INPUTS = token_inputs(BATCH, BLOCK)
RATE = 0.5


class Tiny(torch.nn.Module):
    """Embedding, tanh layer, head: enough to have gradients of all kinds."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, targets):
        logits = self.head(torch.tanh(self.hidden(self.embedding(ids))))
        return torch.nn.functional.cross_entropy(
            logits.reshape(-1, VOCABULARY), targets.reshape(-1)
        )


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Tiny()


@pytest.fixture(scope="module")
def module(model):
    ids = torch.zeros((BATCH, BLOCK), dtype=torch.int64)
    return pcp.from_torch(model, ids, ids)


@pytest.fixture(scope="module")
def sgd_bundle(module) -> bytes:
    bundle = pcp.compile(
        module,
        ["cpu"],
        mode="train",
        optimizer=f"sgd{{lr={RATE}}}",
        algorithm="diloco{lr=1.0,momentum=0.0}",
    )
    return bundle.to_bytes()


@pytest.fixture(scope="module")
def adamw_bundle(module) -> bytes:
    bundle = pcp.compile(
        module,
        ["cpu"],
        mode="train",
        optimizer="adamw{lr=0.01,weight_decay=0.1}",
        algorithm="diloco{lr=0.7,momentum=0.9}",
    )
    return bundle.to_bytes()


def _load(content: bytes) -> BundleTrainer:
    return BundleTrainer.load(Bundle.from_bytes(content), "local-sync", "cpu")


def _train(tmp_path, model, content: bytes, workers: int, **keys):
    """A run from the torch model's weights; its checkpoint and watcher."""
    weights = {n: p.detach().numpy() for n, p in model.state_dict().items()}
    start = tmp_path / "start.safetensors"
    start.write_bytes(safetensors_io.to_bytes(weights))
    exp = experiment(tmp_path, initial_weights=str(start), **keys)
    folder = RunFolder.at(tmp_path / "run", exp)
    watcher = Watcher()
    shepherd = Shepherd(exp, folder, lambda target: content, watcher, workers=workers)
    thread = Background(shepherd.run)

    def work(name):
        identity = Identity(name, "127.0.0.1", shepherd.port)
        endpoint = Endpoint.listen("127.0.0.1:0")
        return Worker(identity, endpoint, _load, lambda line: None).run()

    crew = [Background(lambda i=i: work(f"w{i}")) for i in range(workers)]
    outcome = thread.finish(60)
    assert [w.finish(20) for w in crew]
    return exp, watcher, checkpoint_of(outcome), outcome


def _torch_sgd(model, exp, samples: int, steps: int):
    """Synchronous SGD on batches of `samples`, in the order of the data."""
    copy = Tiny()
    copy.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(copy.parameters(), lr=RATE)
    corpus, losses = Corpus(exp, INPUTS), []
    for step in range(steps):
        batch = corpus.read(np.arange(step * samples, (step + 1) * samples))
        loss = copy(*map(torch.from_numpy, pair(batch)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return copy, losses


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_averaging_every_step_is_synchronous_sgd(tmp_path, model, sgd_bundle, workers):
    exp, watcher, saved, _ = _train(
        tmp_path, model, sgd_bundle, workers, tau=1, outer_loop_steps=10
    )
    expected, losses = _torch_sgd(model, exp, BATCH * workers, 10)
    assert [r.loss for r in watcher.rounds] == pytest.approx(losses, rel=1e-5)
    for name, value in expected.state_dict().items():
        np.testing.assert_allclose(
            saved.parameters[name], value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name
        )


def test_accumulation_is_a_larger_batch(tmp_path, model, sgd_bundle):
    exp, watcher, saved, _ = _train(
        tmp_path,
        model,
        sgd_bundle,
        1,
        tau=5,
        outer_loop_steps=1,
        effective_batch_size=3 * BATCH,
    )
    expected, losses = _torch_sgd(model, exp, 3 * BATCH, 5)
    assert watcher.rounds[0].loss == pytest.approx(np.mean(losses), rel=1e-5)
    for name, value in expected.state_dict().items():
        np.testing.assert_allclose(
            saved.parameters[name], value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name
        )


@pytest.mark.slow  # it trains first
def test_the_checkpoint_validates_the_same_in_torch(tmp_path, model, adamw_bundle):
    exp, watcher, saved, outcome = _train(
        tmp_path, model, adamw_bundle, 2, tau=5, outer_loop_steps=4
    )
    copy = Tiny()
    copy.load_state_dict({n: torch.from_numpy(a) for n, a in saved.parameters.items()})
    corpus = Corpus(exp, INPUTS)
    batches = [corpus.validation(i) for i in range(corpus.validation_batches)]
    with torch.no_grad():
        losses = [copy(*map(torch.from_numpy, pair(b))).item() for b in batches]
    assert outcome.validation_loss == pytest.approx(np.mean(losses), abs=1e-5)
    assert watcher.rounds[-1].loss < watcher.rounds[0].loss
    assert set(saved.workers[0]) >= {"step", "m.embedding.weight", "v.head.bias"}
    assert saved.workers[1]["step"] == 20


def test_diloco_with_adamw_is_what_torch_computes(tmp_path, model, adamw_bundle):
    """One worker: inner torch AdamW, outer torch SGD(nesterov) on the delta."""
    exp, _, saved, _ = _train(
        tmp_path, model, adamw_bundle, 1, tau=3, outer_loop_steps=4
    )
    shared, local = Tiny(), Tiny()
    shared.load_state_dict(model.state_dict())
    inner = torch.optim.AdamW(local.parameters(), lr=0.01, weight_decay=0.1)
    outer = torch.optim.SGD(shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    corpus = Corpus(exp, INPUTS)
    for round_ in range(4):
        local.load_state_dict(shared.state_dict())
        for step in range(3):
            first = (round_ * 3 + step) * BATCH
            batch = corpus.read(np.arange(first, first + BATCH))
            inner.zero_grad()
            local(*map(torch.from_numpy, pair(batch))).backward()
            inner.step()
        pairs = zip(shared.parameters(), local.parameters(), strict=True)
        for ours, theirs in pairs:
            ours.grad = ours.detach() - theirs.detach()
        outer.step()
    for name, value in shared.state_dict().items():
        np.testing.assert_allclose(
            saved.parameters[name], value.numpy(), rtol=1e-4, atol=2e-6, err_msg=name
        )


@pytest.mark.parametrize(("index", "place"), [(1, 1), (4, 4), (0, 1), (3, 4)])
def test_inner_state_comes_from_whom_there_is_some(adamw_bundle, index, place):
    """Of the workers 1 and 4 alone: the others were away when it was shared out."""
    trainer = _load(adamw_bundle)
    trainer.fresh(0)
    states = {k: {n: a + k for n, a in trainer.inner().items()} for k in (1, 4)}
    inner = {
        f"inner/{k}/{n}": a for k, state in states.items() for n, a in state.items()
    }
    trainer.restore(trainer.shared | inner, index)
    found = trainer.inner()
    trainer.close()
    assert found
    for name, array in found.items():
        np.testing.assert_array_equal(array, states[place][name])


def test_a_restored_trainer_goes_on_as_if_nothing_had_happened(adamw_bundle, tmp_path):
    corpus = Corpus(experiment(tmp_path), INPUTS)
    batches = [corpus.read(np.arange(i * BATCH, (i + 1) * BATCH)) for i in range(6)]
    whole, first = _load(adamw_bundle), _load(adamw_bundle)
    for trainer in (whole, first):
        trainer.fresh(3)
        trainer.begin()
        for batch in batches[:3]:
            trainer.step([batch])
    local = {f"parameter/{n}": np.asarray(a) for n, a in _local(first).items()}
    inner = {f"inner/0/{n}": a for n, a in first.inner().items()}
    second = _load(adamw_bundle)
    second.restore(first.shared | local | inner, 0)
    second.begin()
    pairs = [
        (loss_value(whole.step([b])), loss_value(second.step([b]))) for b in batches[3:]
    ]
    assert all(a == b for a, b in pairs)
    for trainer in (whole, first, second):
        trainer.close()


def _local(trainer):
    return {name: value for (_, name), value in trainer.steps.held("param").items()}


def test_the_state_of_a_checkpoint_is_what_was_committed(tmp_path, model, sgd_bundle):
    _, _, saved, _ = _train(tmp_path, model, sgd_bundle, 1, outer_loop_steps=2)
    assert saved.info["digest"] == safetensors_io.digest(shared_of(saved))
    assert saved.info["tokenizer"]["kind"] == "char"
