"""Training on a Vulkan device, alone and beside a CPU, where there is one."""

from pathlib import Path

import numpy as np
import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.servers.processes import Processes, free_port
from helpers.servers.vulkan import DEVICE, THREADS, Vulkan

from pcp.bundle import Bundle
from pcp.tools import compile
from pcp.training.storage.ledger import read

ROOT = Path(__file__).parents[3]
STEPS = 20
COMMAND = "pcp.tools.cli"


@pytest.mark.slow  # lavapipe compiles for half a minute
@pytest.mark.usefixtures("vulkan")
@pytest.mark.timeout(600)
def test_a_cpu_and_a_vulkan_device_train_as_one(tmp_path: Path, monkeypatch) -> None:
    """A round is committed when both report the same digest of its outcome."""
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, outer_loop_steps=3)
    port = free_port()
    with Processes() as processes:
        line = f"shepherd --config x.json --workers 2 --port {port} --no-dashboard"
        shepherd = processes.start(COMMAND, *line.split())
        shepherd.wait_for("listens on")
        line = f"worker --connect 127.0.0.1:{port} --backend"
        workers = [
            processes.start(COMMAND, *line.split(), backend, **THREADS)
            for backend in ("cpu", "vulkan")
        ]
        assert shepherd.wait(500) == 0, shepherd.text
        assert [worker.wait(30) for worker in workers] == [0, 0]
    (run,) = (tmp_path / "runs").glob("run_*")
    lines = read(run / "ledger.jsonl")[0]
    targets = {r["target"] for r in lines if r["kind"] == "joined"}
    assert "vulkan" in targets
    assert len(targets) == 2
    assert [r["round"] for r in lines if r["kind"] == "commit"] == [1, 2, 3]
    assert all(len(r["consumed"]) == 2 for r in lines if r["kind"] == "commit")


def _losses(bundle: Path, inputs: Path, device: str) -> np.ndarray:
    out = bundle.with_name(f"{device.partition(':')[0]}.npz")
    line = ["run", bundle, "--inputs", inputs, "--out", out, "--steps", STEPS]
    with Processes() as processes:
        run = processes.start(
            COMMAND, *line, "--seed", 7, "--device", device, **THREADS
        )
        assert run.wait(1500) == 0, run.text
    with np.load(out) as archive:
        return archive["losses"]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_nanogpt_trains_as_on_a_cpu(vulkan: Vulkan, tmp_path: Path) -> None:
    model = ROOT / "examples" / "models" / "nanogpt_small.mlir"
    bundle = tmp_path / "m.pcp"
    line = f"{model} --mode train --algorithm none --optimizer adamw{{lr=1e-3}} -q"
    targets = ["--target", "cpu:host", "--target", "vulkan"]
    assert compile.main([*line.split(), *targets, "-o", str(bundle)]) == 0
    data = [
        x
        for x in Bundle.read(bundle).manifest.function("grad").inputs
        if x.role == "data"
    ]
    text = np.random.default_rng(0).integers(97, 123, (4, *data[0].shape))
    batches = {x.name: text for x in data}
    np.savez(tmp_path / "in.npz", **batches)  # pyright: ignore[reportArgumentType]
    wanted, found = (
        _losses(bundle, tmp_path / "in.npz", d) for d in ("local-task", DEVICE)
    )
    assert wanted[-1] < 0.95 * wanted[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-3)
