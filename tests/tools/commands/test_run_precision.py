"""`pcp run` of devices with different compute types: two processes over TCP."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.models import stablehlo_small
from helpers.oracles import pipelines
from helpers.worlds.bundle_runs import save_npz

from pcp.tools import cli, compile

MODEL = stablehlo_small.tanh_sum(8, 16, 6)


def _cluster() -> str:
    common = {"target": "cpu", "memory": 10**9, "membw": 1e10}
    half = common | {"throughput": {"f32": 1e10, "bf16": 2e10}, "compute": "bf16"}
    full = common | {"throughput": {"f32": 1e10}, "ordinal": 1}
    link = {"ends": ["half", "full"], "bandwidth": 1e9, "latency_ns": 1000}
    return json.dumps({"devices": {"half": half, "full": full}, "links": [link]})


def _compile(folder: Path, *flags: str, model: str = MODEL) -> int:
    (folder / "m.mlir").write_text(model)
    (folder / "c.json").write_text(_cluster())
    (folder / "r.json").write_text('{"tensors": {"x": [["dp"]]}}')
    files = [str(folder / "m.mlir"), "--cluster", str(folder / "c.json")]
    out = ["-q", "-o", str(folder / "m.pcp"), "--cache", "off"]
    return compile.main([*files, *out, *flags])


def _bf16(x: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bf16, ties to even, by its bits."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def _part(x: np.ndarray, w: np.ndarray) -> tuple[float, np.ndarray]:
    hidden = np.tanh(_bf16(x) @ _bf16(w))
    return hidden.sum(), _bf16(x).T @ _bf16(1 - hidden**2)


@pytest.mark.slow  # two programs
def test_one_process_computes_in_bf16_and_one_in_f32(tmp_path: Path) -> None:
    rules = ["--sharding", f"{tmp_path}/r.json", "--split", "dp=1,1"]
    assert _compile(tmp_path, "--mesh", "dp=2", *rules) == 0
    random = np.random.default_rng(0)
    x, w = (random.normal(size=s).astype(np.float32) for s in ((8, 16), (16, 6)))
    np.savez(tmp_path / "in.npz", x=x, w=w)
    flags = ["--inputs", str(tmp_path / "in.npz"), "--out", str(tmp_path / "o.npz")]
    assert cli.main(["run", str(tmp_path / "m.pcp"), "--function", "grad", *flags]) == 0
    hidden = np.tanh(x @ w)
    loss, gradient = _part(x[:4], w)
    with np.load(tmp_path / "o.npz") as out:
        mixed = loss + hidden[4:].sum()
        np.testing.assert_allclose(out["loss"], mixed, rtol=1e-5, atol=1e-5)
        assert abs(out["loss"] - hidden.sum()) > 1e-4  # not what f32 gives
        # A value next to a tie of bf16 may be rounded the other way.
        step = 2.0**-8 * np.abs(x).max()
        found = out["w"] - x[4:].T @ (1 - hidden[4:] ** 2)
        assert np.abs(found - gradient).max() < 2 * step


@pytest.mark.slow
def test_a_stage_in_bf16_sends_f32_to_a_stage_in_f32(tmp_path: Path) -> None:
    stages = ["--mesh", "pp=2", "--microbatches", "2", "--mode", "grad"]
    assert _compile(tmp_path, *stages, model=pipelines.chain_text(2, 8)) == 0
    random = np.random.default_rng(0)
    shapes = {"x": (8, 4), "w0": (4, 4), "w1": (4, 4)}
    inputs = {n: random.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    save_npz(tmp_path / "in.npz", inputs)
    flags = ["--inputs", str(tmp_path / "in.npz"), "--out", str(tmp_path / "o.npz")]
    assert cli.main(["run", str(tmp_path / "m.pcp"), "--function", "grad", *flags]) == 0
    x, w0, w1 = inputs.values()
    with np.load(tmp_path / "o.npz") as out:
        wanted = _chain(x @ w0, w1), _chain(_bf16(x) @ _bf16(w0), w1)
        for name, exact, mixed in zip(("loss", "w1"), *wanted, strict=True):
            rounding = np.linalg.norm(mixed - exact)
            assert rounding > 1e-4 * np.linalg.norm(exact)
            assert np.linalg.norm(out[name] - mixed) < 0.02 * rounding


def _chain(first: np.ndarray, w1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The loss and the second weight's gradient, of the first layer's product."""
    hidden = np.tanh(first)
    last = np.tanh(hidden @ w1)
    return last.sum(), hidden.T @ (1 - last**2)
