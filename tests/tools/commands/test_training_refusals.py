"""What the commands of training refuse, in one line."""

import socket

import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.said import one_line
from helpers.servers.processes import free_port

from pcp.bundle import Bundle
from pcp.manifest import Manifest
from pcp.tools.cli import main
from pcp.training.process.supervisor import HOPELESS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model_path": "none.mlir"}, "model_path: no file 'none.mlir'"),
        (
            {"lerning_rate": 1},
            "unknown key 'lerning_rate'. Did you mean 'learning_rate'",
        ),
        ({"tau": -1}, "x.json: tau: Input should be greater than 0"),
        ({"optimizer": "adam"}, "x.json: optimizer: no optimizer 'adam'"),
        ({"algorithm": "dilco"}, "x.json: algorithm: no algorithm 'dilco'"),
        ({"learning_rate": 1e40}, "x.json: learning_rate: 1e+40 is inf as f32"),
        ({"epsilon": 1e-50}, "x.json: epsilon: 1e-50 is 0 as f32"),
        ({"data_path": "builtin:pyton-docs"}, "Did you mean 'python-docs'"),
        ({"tokenizer": "u16"}, "no whole number of u16 tokens"),
        ({"freeze": "*"}, "freeze: values of frozen parameters come with the model"),
    ],
)
def test_a_bad_experiment_is_one_line(folder, capsys, changes, line):
    write_experiment(folder, **changes)
    (folder / "text").write_text("odd" * 5)
    assert main(["train", "x.json"]) == 1
    assert line in one_line(capsys)


TWO, ONE = {"mesh": "tp=2"}, {"mesh": "tp=1"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"islands": [TWO, TWO]}, 'are all alike: say mesh "tp=2" and workers 2'),
        ({"islands": [TWO, ONE], "mesh": "tp=2"}, "and mesh says tp=2; say one"),
        ({"islands": [TWO, ONE], "workers": 3}, "leave workers out"),
        ({"islands": [{"mesh": "pp=2"}, ONE]}, "leave pp out, or take one mesh for"),
        ({"islands": [TWO, ONE], "model_path": "m.pcp"}, "m.pcp is one; name the"),
        ({"islands": [TWO, {"mash": "x"}]}, "islands"),
    ],
)
def test_islands_that_cannot_be_are_one_line(folder, capsys, changes, line):
    (folder / "m.pcp").write_bytes(b"")
    write_experiment(folder, **changes)
    assert main(["train", "x.json"]) == 1
    assert line in one_line(capsys)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            "--mesh tp=2 --mesh tp=1 --islands 3",
            "is given 2 times, once for each island",
        ),
        ("--mesh tp=2 --mesh tp=2", "all alike; say --mesh tp=2 --islands 2"),
    ],
)
def test_a_mesh_for_each_island_says_their_number(folder, capsys, flags, line):
    assert main(["train", "x.json", *flags.split()]) == 2
    assert line in one_line(capsys)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("m.mlir", b"func.func @main() {\n  stablehlo.foo\n}", "m.mlir:2:"),
        (
            "m.mlir",
            b"func.func @main(%a: tensor<2xf32>, %b: tensor<2xi32>) -> tensor<2xf32> {"
            b"\n  return %a : tensor<2xf32>\n}",
            "m.mlir:1:1: @main returns tensor<2xf32>",
        ),
        ("m.pcp", b"PK\x03\x04 and no more", "truncated or damaged"),
        ("m.pcp", b"nothing", "not a pcp bundle"),
    ],
)
def test_a_bad_model_is_one_line(folder, capsys, name, content, line):
    (folder / name).write_bytes(content)
    write_experiment(folder, model_path=name)
    assert main(["train", "x.json"]) == 1
    assert line in one_line(capsys)
    assert not list((folder / "runs").iterdir())


def test_a_bundle_without_training_functions_is_refused(folder, capsys):
    bundle = Bundle.build(Manifest(mode="forward", functions={}), {})
    bundle.write(folder / "m.pcp")
    write_experiment(folder, model_path="m.pcp")
    assert main(["train", "x.json"]) == 1
    assert "no module for target 'cpu'" in one_line(capsys)


@pytest.mark.parametrize(
    ("line", "hint", "code"),
    [
        ("train", "demo.json: cannot read the experiment", 1),
        ("train x.json --worker 2", "Did you mean '--workers'?", 2),
        ("train x.json --workers 0", "--workers: at least one", 2),
        ("train x.json --port 99999", "expected 0 to 65535, not '99999'", 2),
        ("worker --port 65536", "expected 0 to 65535, not '65536'", 2),
        ("train x.json --backend cud", "Did you mean 'cuda'?", 2),
        ("train x.json --target sm_999", "target 'sm_999': unknown", 1),
        ("train x.json --target sm_90a", "its code is for a cuda device", 2),
        ("train x.json --device none", "no driver 'none' here; there are", 1),
        ("train x.json --device local-sync://9", "cannot be opened", 1),
        ("worker --cage off --device local-sync://9", "cannot be opened", HOPELESS),
        ("--shepherd --config x.json --prot 1", "Did you mean '--port'?", 2),
        ("--worker --connect nowhere", "expected HOST:PORT", 2),
        ("worker --backend rocmm", "Did you mean 'rocm'?", 2),
        ("node --scale 0", "--scale: at least one", 2),
        ("supervise", "nothing to run", 2),
        ("ledger check none", "no ledger there", 1),
        ("ledger replay none --rounds 0", "--rounds 0: at least one", 2),
        ("control pause", "runs/latest/control.json: No such file", 1),
        ("control drain", "drain needs a number", 1),
        ("control pause 3", "pause takes no number", 1),
        ("control stop", "invalid choice: 'stop'", 2),
        ("control puase", "Did you mean 'pause'?", 2),
        ("status --port 1", "no shepherd at 127.0.0.1:1", 1),
    ],
)
def test_wrong_usage_is_one_line(folder, capsys, line, hint, code):
    assert main(line.split()) == code
    assert hint in one_line(capsys)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("command", ["--shepherd --config x.json", "train x.json"])
def test_a_port_in_use_is_one_line(folder, capsys, command):
    """No folder of a run that never began stays; one that was there does."""
    mine = folder / "mine"
    mine.mkdir()
    (mine / "experiment.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = f"{command} --port {port} --no-dashboard"
        for where in ("", " --run new", " --run mine"):
            assert main((line + where).split()) == 1
            assert f"cannot listen on 127.0.0.1:{port}" in one_line(capsys)
    assert not list((folder / "runs").iterdir())
    assert not (folder / "new").exists()
    assert (mine / "experiment.json").read_text() == "{}"


def test_a_worker_without_a_shepherd_gives_up(folder, capsys):
    line = f"worker --cage off --connect 127.0.0.1:{free_port()} --patience 0.2"
    assert main(line.split()) == 1
    assert "no shepherd at 127.0.0.1" in one_line(capsys)
