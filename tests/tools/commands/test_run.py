"""`pcp run`: partitioned programs as one real process for each device, over TCP."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.models import sharded, stablehlo_small
from helpers.oracles import chrome_trace
from helpers.servers.interpreter import Interpreter
from helpers.servers.processes import alive
from helpers.worlds.bundle_runs import save_npz
from helpers.worlds.communicators import eventually

from pcp.errors import UsageError
from pcp.tools import cli, compile
from pcp.tools.commands import run
from pcp.tools.support import tensor_files
from pcp.tools.support.tensor_files import save

#: The models' gradients under these plans, compiled by IREE: thirty of them,
#: images cut along rows and columns, and a sequence.
EVERY = [
    (model, plan)
    for model in ("mlp", "cnn", "gpt", "llama")
    for plan, (axes, cut) in sharded.PLANS.items()
    if sharded.fits(model, axes, cut)
]
EVERY += [("cnn", "rows4"), ("scene", "rows2-columns2"), ("gpt", "sp4")]
FAST = {("mlp", "zero3-tp2")}


def _compile(model: str, plan: str, folder: Path) -> Path:
    plans = sharded.PLANS | sharded.SPATIAL | sharded.SEQUENCES
    axes, cut = plans[plan]
    text = folder / "model.mlir"
    text.write_text(sharded.annotate(model, axes, cut))
    bundle = folder / "model.pcp"
    flags = ["--target", "cpu:host", "--mode", "forward", "-q", "-o", str(bundle)]
    assert compile.main([str(text), *flags, "--cache", "off"]) == 0
    return bundle


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        pytest.param(*case, marks=() if case in FAST else pytest.mark.slow)
        for case in EVERY
    ],
)
def test_processes_agree_with_the_whole(
    model: str, plan: str, tmp_path: Path, interpreter: Interpreter
) -> None:
    bundle = _compile(model, plan, tmp_path)
    arguments = sharded.models()[model].arguments
    names = [f"arg{i}" for i in range(len(arguments))]
    save(tmp_path / "in.npz", names, arguments)
    out = tmp_path / "out.npz"
    flags = ["--inputs", str(tmp_path / "in.npz"), "--out", str(out)]
    assert cli.main(["run", str(bundle), *flags]) == 0
    with np.load(out) as archive:
        found = [archive[name] for name in archive.files]
    for a, b in zip(found, sharded.whole_gradient(model, interpreter), strict=True):
        assert np.abs(a - b).max() <= 1e-5 * (1e-3 + np.abs(b).max())


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A training bundle of TANH_SUM for dp=2, with the weight cut as well."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "m.mlir").write_text(stablehlo_small.TANH_SUM)
    rules = {"tensors": {"x": [["dp"]], "w": [[], ["dp"]]}}
    (folder / "rules.json").write_text(json.dumps(rules))
    flags = ["--target", "cpu", "--mesh", "dp=2", "-q", "-o", str(folder / "m.pcp")]
    flags += ["--sharding", str(folder / "rules.json"), "--cache", "off"]
    assert compile.main([str(folder / "m.mlir"), *flags]) == 0
    return folder / "m.pcp"


@pytest.mark.slow  # one has its own test
def test_a_trace_of_all_processes(trained: Path, tmp_path: Path, capsys) -> None:
    trace = tmp_path / "trace.json"
    flags = ["--inputs", "random:1", "--out", str(tmp_path / "o.npz"), "--steps", "3"]
    assert cli.main(["run", str(trained), *flags, "--trace", str(trace)]) == 0
    *said, summary, _ = capsys.readouterr().out.splitlines()
    losses = np.load(tmp_path / "o.npz")["losses"]
    assert said == [f"step {i}/3: loss {x:.6g}" for i, x in enumerate(losses, 1)]
    assert summary.endswith("in 3 steps")
    found = json.loads(trace.read_text())
    chrome_trace.check(found)
    members = {e["pid"] for e in found["traceEvents"]}
    assert members == {0, 1}
    for member in members:
        rows = chrome_trace.row_names(found, member)
        assert {"program", "imports", "collectives"} <= rows
        calls = [e for e in chrome_trace.named(found, "grad") if e["pid"] == member]
        assert len(calls) == 3
        done = [
            event
            for event in found["traceEvents"]
            if event["pid"] == member and event.get("args", {}).get("outcome")
        ]
        assert done
        assert all(event["args"]["outcome"] == "committed" for event in done)
    # One clock for all: members wait for each other in every step, so their calls
    # of one step overlap.
    begins = [sorted(e["ts"] for e in chrome_trace.named(found, "grad")
              if e["pid"] == m) for m in members]  # fmt: skip
    ends = [sorted(e["ts"] + e["dur"] for e in chrome_trace.named(found, "grad")
            if e["pid"] == m) for m in members]  # fmt: skip
    for step in range(3):
        assert max(b[step] for b in begins) < min(e[step] for e in ends)


def _damaged() -> bytes:
    """A compressed file in the middle of which bytes are lost."""
    written = io.BytesIO()
    np.savez_compressed(written, x=np.arange(4096.0))
    content = bytearray(written.getvalue())
    content[100:200] = 100 * b"\xff"
    return bytes(content)


@pytest.mark.parametrize(
    "content", [None, b"", b"PK\x03\x04?", b"text", "array", _damaged()]
)
def test_a_file_without_tensors_is_said(content, tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    if content == "array":
        np.save(tmp_path / "inputs.npy", np.zeros(3))
        path = tmp_path / "inputs.npy"
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot read the tensors: .* or random:0"):
        tensor_files.read(path)


def test_a_trace_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(stablehlo_small.TANH_SUM)
    bundle, trace = tmp_path / "m.pcp", tmp_path / "trace.json"
    flags = ["--target", "cpu", "--mode", "grad", "-q", "-o", str(bundle)]
    assert compile.main([str(tmp_path / "m.mlir"), *flags, "--cache", "off"]) == 0
    flags = ["--inputs", "random:1", "--out", str(tmp_path / "o.npz")]
    assert cli.main(["run", str(bundle), *flags, "--trace", str(trace)]) == 0
    found = json.loads(trace.read_text())
    chrome_trace.check(found)
    assert chrome_trace.row_names(found, 0) == {"program"}
    assert len(chrome_trace.named(found, "invoke")) == 1


def test_a_training_bundle_runs_by_its_functions(trained: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, w = (random.normal(size=s).astype(np.float32) for s in ((8, 4), (4, 6)))
    np.savez(tmp_path / "in.npz", x=x, w=w)
    flags = ["--inputs", str(tmp_path / "in.npz"), "--out", str(tmp_path / "o.npz")]
    assert cli.main(["run", str(trained), "--function", "grad", *flags]) == 0
    hidden = np.tanh(x @ w)
    with np.load(tmp_path / "o.npz") as out:
        np.testing.assert_allclose(out["loss"], hidden.sum(), rtol=1e-5)
        np.testing.assert_allclose(
            out["w"], x.T @ (1 - hidden**2), rtol=1e-5, atol=1e-5
        )


@pytest.mark.slow  # four runs
def test_random_inputs_are_the_same_for_one_seed(trained: Path, tmp_path: Path) -> None:
    losses = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        out = str(tmp_path / f"{name}.npz")
        flags = ["--function", "grad", "--inputs", f"random:{seed}", "--out", out]
        assert cli.main(["run", str(trained), *flags]) == 0
        with np.load(out) as archive:
            losses.append(float(archive["loss"]))
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"x": np.zeros((8, 4), np.float32)}, "no tensor 'w'"),
        (
            {"x": np.zeros((8, 5), np.float32), "w": np.zeros((4, 6), np.float32)},
            "x has shape [8, 5], not [8, 4]",
        ),
        (
            {"x": np.zeros((8, 4), np.float32), "w": np.zeros((4, 6))},
            "w holds float64, the function takes f32",
        ),
    ],
)
def test_wrong_inputs_are_named(
    tensors, says: str, trained: Path, tmp_path: Path, capfd
) -> None:
    save_npz(tmp_path / "in.npz", tensors)
    flags = ["--inputs", str(tmp_path / "in.npz"), "--out", str(tmp_path / "o.npz")]
    assert cli.main(["run", str(trained), "--function", "grad", *flags]) == 2
    (line,) = capfd.readouterr().err.splitlines()  # by no member again
    assert says in line


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--mesh", "dp=two"], "is not axis=size"),
        (["--mesh", "dp=2,dp=2"], 'axis "dp" is given twice'),
        (["--mesh", "dp=2", "--algorithm", "muloco"], "it looks at whole tensors"),
        (["--mesh", "dp=2", "--target", "gfx942", "--target", "sm_80"], "3 targets"),
    ],
)
def test_what_a_mesh_cannot_be_is_said(
    flags: list[str], says: str, tmp_path: Path, capfd
) -> None:
    (tmp_path / "m.mlir").write_text(stablehlo_small.TANH_SUM)
    code = compile.main([str(tmp_path / "m.mlir"), "--target", "cpu", *flags])
    assert code == 1
    assert says in capfd.readouterr().err


def test_an_unknown_axis_in_the_sharding_file(tmp_path: Path, capfd) -> None:
    (tmp_path / "m.mlir").write_text(stablehlo_small.TANH_SUM)
    (tmp_path / "r.json").write_text('{"tensors": {"x": [["pd"]]}}')
    flags = [
        "--target",
        "cpu",
        "--mesh",
        "dp=2",
        "--sharding",
        str(tmp_path / "r.json"),
    ]
    assert compile.main([str(tmp_path / "m.mlir"), *flags]) == 1
    assert 'x: axis "pd" is not of the mesh (dp)' in capfd.readouterr().err


@pytest.mark.parametrize("rank", ["-1", "2"])
def test_a_rank_that_the_mesh_has_not(rank: str, trained: Path, capfd) -> None:
    flags = ["--inputs", "random:0", "--out", "o.npz", "--connect", "127.0.0.1:1"]
    code = cli.main(["run", str(trained), "--function", "grad", *flags, "--rank", rank])
    assert code != 0
    assert "the mesh has 2 members, 0 to 1" in capfd.readouterr().err


MEMBER = [sys.executable, "-m", "pcp.tools.cli", "run"]


def _member(trained: Path, folder: Path, rank: int, address: str, timeout: str):
    flags = ["--function", "grad", "--inputs", "random:0", "--rank", str(rank)]
    flags += ["--connect", address, "--out", str(folder / f"{rank}.npz")]
    return subprocess.Popen(
        [*MEMBER, str(trained), *flags, "--timeout", timeout],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("victim", [0, 1])
def test_a_member_that_is_gone_is_named(
    victim: int, trained: Path, tmp_path: Path
) -> None:
    """Stopped before it joins, so that the other waits for it; then killed."""
    members = [_member(trained, tmp_path, 0, "127.0.0.1:0", "1.5")]
    try:
        assert members[0].stdout is not None
        address = members[0].stdout.readline().rpartition(" ")[2].strip()
        if victim == 0:
            members[0].kill()
            members[0].wait(30)
        members.append(_member(trained, tmp_path, 1, address, "1.5"))
        if victim == 1:
            members[1].kill()
        _, said = members[1 - victim].communicate(timeout=60)
        assert members[1 - victim].returncode == 1
        assert "Traceback" not in said
        assert address in said
        assert victim == 0 or "the world of 2 did not come together" in said
    finally:
        for process in members:
            process.kill()
            process.communicate()


_STARTS_A_RANK = """
import sys, time
from pcp.tools.support import processes
rank = processes.start(sys.argv[1:], 0, "127.0.0.1:0")
print(rank.pid, rank.stdout.readline(), flush=True)
time.sleep(60)
"""


def test_a_rank_ends_with_who_started_it(trained: Path, tmp_path: Path) -> None:
    """Even by SIGKILL, and while the rank waits for the others."""
    flags = ["--function", "grad", "--inputs", "random:0", "--timeout", "60"]
    flags += ["--out", str(tmp_path / "out.npz")]
    command = [sys.executable, "-c", _STARTS_A_RANK, "run", str(trained), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            rank, said = parent.stdout.readline().split(maxsplit=1)
            assert run.ADDRESS in said
        finally:
            parent.kill()
    eventually(lambda: not alive(int(rank)), 10)
