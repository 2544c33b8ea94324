"""Models that draw: runs replay bit for bit, and what is recomputed is the same."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.models import unet
from helpers.servers.processes import Processes

import pcp
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.errors import DoesNotFit
from pcp.runtime.program.executor import Program
from pcp.tools.cli import main
from pcp.training.storage import ledger, safetensors_io
from pcp.training.trainer.draw_key import keys
from pcp.training.trainer.step_loop import Steps, key_of_program

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

BATCH, TOKENS, WIDTH, DROPPED = 4, 16, 16, 0.1
ROWS = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm1(x)).split(WIDTH, -1)
        scores = q @ k.transpose(-1, -2) / WIDTH**0.5
        mask = torch.ones(TOKENS, TOKENS).tril() == 0
        weights = torch.softmax(scores.masked_fill(mask, -1e9), -1)
        x = x + self._drop(self.out(self._drop(weights) @ v))
        return x + self._drop(self.down(functional.gelu(self.up(self.norm2(x)))))

    def _drop(self, x: Any) -> Any:
        return functional.dropout(x, DROPPED, self.training)


class GPT(nn.Module):
    """Dropout where GPT-2 has it: embeddings, attention weights, residual branches."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Any, targets: Any) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(TOKENS))
        x = functional.dropout(x, DROPPED, self.training)
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return functional.cross_entropy(logits.reshape(-1, 256), targets.reshape(-1))


def _gpt() -> tuple[ir.Module, dict[str, Any]]:
    """A program, and where its data are, which this writes."""
    torch.manual_seed(0)
    ids = torch.zeros((BATCH, TOKENS), dtype=torch.int64)
    random = np.random.default_rng(0)
    Path("text.txt").write_bytes(random.integers(97, 123, 60000, np.uint8).tobytes())
    module = pcp.from_torch(GPT(), ids, ids)
    return module, {"data_path": "text.txt", "tokenizer": "byte"}


def _unet() -> tuple[ir.Module, dict[str, Any]]:
    """As `_gpt`: noise in the loss, besides dropout."""
    given = unet.pictures()
    pictures = np.random.default_rng(0).standard_normal((400, *given.shape[1:]))
    np.savez("pictures.npz", pictures=pictures.astype(np.float32))
    module = pcp.from_torch(unet.model(), given)
    return module, {"data_path": "pictures.npz"}


def _dora() -> tuple[ir.Module, dict[str, Any]]:
    """As `_gpt`, which is frozen; adapters and their magnitudes are trained."""
    module, data = _gpt()
    torch.manual_seed(0)
    frozen = {name: p.detach().numpy() for name, p in GPT().named_parameters()}
    Path("base.safetensors").write_bytes(safetensors_io.to_bytes(frozen))
    said = {"lora": "r=2,targets=*qkv.weight,dora=true"}
    return module, data | said | {"frozen_weights": "base.safetensors"}


@pytest.mark.slow
@pytest.mark.parametrize("made", [_gpt, _unet, _dora])
def test_a_run_that_lost_a_worker_replays(
    made: Callable[[], tuple[ir.Module, dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    module, data = made()
    Path("model.mlir").write_text(str(module))
    keys_ = data | {
        "model_path": "model.mlir",
        "algorithm": "diloco",
        "learning_rate": 1e-3,
        "tau": 5,
        "outer_loop_steps": 25,
        "heartbeat_seconds": 0.2,
        "heartbeat_limit_seconds": 2,
        "seed": 3,
    }
    Path("x.json").write_text(json.dumps(keys_))
    with Processes() as processes:
        run = processes.start(
            "pcp.tools.cli", *["train", "x.json", "--workers", 2, "--run", "out"]
        )
        run.wait_for("round 3/25", 200)
        log = Path("out/workers.log").read_text()
        started = [line for line in log.splitlines() if "started for" in line]
        os.kill(int(started[0].split("process ")[1].split()[0]), signal.SIGKILL)
        run.wait_for("killed by SIGKILL")
        assert run.wait(200) == 0, run.text
    records, _ = ledger.read("out/ledger.jsonl")
    attempts = [r["round"] for r in records if r["kind"] == "round"]
    joined = [r["worker"] for r in records if r["kind"] == "joined"]
    assert len(attempts) > len(set(attempts)) or len(joined) > 2  # one was lost
    assert main(["ledger", "check", "out"]) == 0
    assert main(["ledger", "replay", "out"]) == 0


class Normed(nn.Module):
    """Batch norm and dropout in three layers: what a step could recompute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(32) for _ in range(3)])

    def forward(self, x: Any, y: Any) -> Any:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = functional.dropout(torch.tanh(norm(layer(x))), DROPPED, self.training)
        return ((x.mean(1) - y) ** 2).mean(), x.mean()


def _three_steps(bundle: Any) -> tuple[list[float], list[np.ndarray], list[Any]]:
    random = np.random.default_rng(0)
    key = key_of_program(bundle.manifest)
    assert key is not None
    losses = []
    with Program.load(bundle, device="local-sync") as program:
        steps = Steps(program, bundle.manifest)
        drawn = torch.Generator().manual_seed(0)
        given = {
            p.name: torch.randn(p.shape, generator=drawn).numpy() / 4
            for p in bundle.manifest.parameters
        }
        steps.start(0, given)
        for i in range(3):
            x = random.normal(size=(ROWS, 32)).astype(np.float32)
            data = {"x": x, "y": x.sum(1), key.name: keys(key, 7, np.arange(i, i + 1))}
            losses.append(float(steps.step(data)))
        values, metrics = steps.values(), [dict(m) for m in steps.metrics]
        metrics = [float(np.asarray(v)) for m in metrics for v in m.values()]
        steps.close()
    return losses, values, metrics


@pytest.mark.slow
def test_what_is_recomputed_drops_the_same() -> None:
    """Less memory, the same statistics of batch norm, metrics and gradients."""
    torch.manual_seed(0)
    module = pcp.from_torch(Normed(), torch.zeros(ROWS, 32), torch.zeros(ROWS))
    lines: list[str] = []
    options = CompileOptions(("cpu",), "train", "sgd{lr=0.1}", "none")
    plain = driver.compile(module, options)
    least = 1
    for _ in range(2):  # what @main holds at least, then what @grad does
        with pytest.raises(DoesNotFit) as error:
            driver.compile(module, replace(options, memory=f"{least}B"))
        least = error.value.least
    limit = f"{least * 21 // 20}B"
    tight = driver.compile(module, replace(options, memory=limit, report=lines.append))
    assert any("ops of the forward half run again" in line for line in lines), lines
    wanted, found = _three_steps(plain), _three_steps(tight)
    for a, b in zip(found, wanted, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
