"""pcp inspect: a bundle in words, as JSON, and taken apart."""

import json
from pathlib import Path

import pytest

from pcp.bundle import (
    Bundle,
    Collective,
    Function,
    Manifest,
    Mesh,
    Method,
    Module,
    Parameter,
    TensorSpec,
)
from pcp.tools.commands.inspect import describe, main
from pcp.training_plan import EveryRound

W = TensorSpec(name="w", role="param", shape=(2, 3), dtype="f32")
X = TensorSpec(name="x", role="data", shape=(4,), dtype="i64")
LOSS = TensorSpec(name="loss", role="loss", shape=(), dtype="f32")

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    manifest = Manifest(
        producer={"pcp": "0.1.0"},
        mode="train",
        functions={"main": Function(inputs=(W, X), results=(LOSS,), donates=(0,))},
        parameters=(Parameter(name="w", init="zeros", shape=(2, 3), dtype="f32"),),
        collectives={
            "all_reduce_0_f32_6": Collective(
                kind="all_reduce",
                reduction="sum",
                axes=("workers",),
                shape=(6,),
                dtype="f32",
                bytes=24,
            )
        },
        mesh={"group": Mesh(axes={"workers": -1})},
        optimizer=Method(kind="adamw", hyper={"lr": 1e-3}),
        modules={
            "sm_90a": Module(
                file="modules/sm_90a.vmfb",
                target="sm_90a",
                backend="cuda",
                driver="cuda",
            )
        },
    )
    members = {
        "modules/sm_90a.vmfb": b"x\n.version 8.4\n.target sm_90a\n" + bytes(2000),
        "ir/source.mlir": b"module {}\n",
    }
    return Bundle.build(manifest, members).write(tmp_path / "m.pcp")


def test_in_words(file: Path, capsys: Captured) -> None:
    assert main([str(file)]) == 0
    text = capsys.readouterr().out
    for line in [
        "m.pcp: train bundle of @main, 2.0 KiB, whole",
        "parameters  1 tensors, 6 numbers (f32)",
        "optimizer   adamw lr=0.001",
        "mesh        group: workers=elastic",
        "main  1 param, 1 data -> 1 loss; consumes 1",
        "all_reduce_0_f32_6  all_reduce sum over workers  f32[6]  24 B",
        "sm_90a  cuda, runs on cuda, 2.0 KiB, PTX for sm_90a",
        "ir          source",
    ]:
        assert line in text
    assert "<- param" not in text


def test_what_members_exchange() -> None:
    functions = {"outer_step": Function(inputs=(), results=())}
    plan = EveryRound(parameters="gossip", seed=5)
    manifest = Manifest(mode="train", functions=functions, training=plan)
    lines = describe(Bundle.build(manifest, {}), "m.pcp")
    assert "exchange    round parameters=gossip seed=5" in lines


def test_every_tensor(file: Path, capsys: Captured) -> None:
    assert main([str(file), "--tensors"]) == 0
    text = capsys.readouterr().out
    assert "<- param    w  f32[2,3] consumed\n" in text
    assert "<- data     x  i64[4]\n" in text
    assert "-> loss     loss  f32[]\n" in text


def test_json_is_the_manifest(file: Path, capsys: Captured) -> None:
    assert main([str(file), "--json"]) == 0
    printed = Manifest.model_validate(json.loads(capsys.readouterr().out))
    assert printed == Bundle.read(file).manifest


def test_ir(file: Path, capsys: Captured) -> None:
    assert main([str(file), "--ir", "source"]) == 0
    assert capsys.readouterr().out == "module {}\n"
    assert main([str(file), "--ir", "programm"]) == 1
    assert "it has: source" in capsys.readouterr().err


def test_extract(file: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main([str(file), "--extract", str(tmp_path / "out")]) == 0
    bundle = Bundle.read(file)
    for name, content in bundle.members.items():
        assert (tmp_path / "out" / name).read_bytes() == content
    assert (tmp_path / "out" / "manifest.json").is_file()
    assert main([str(file), "--extract", str(tmp_path / "out")]) == 1
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-100], "truncated or"),
        (lambda content: content.replace(b"sm_90a\n", b"sm_80a\n"), ""),
        (lambda content: b"text", "not a pcp bundle"),
    ],
)
def test_a_file_that_is_not_whole(
    file: Path, capsys: Captured, change, message: str
) -> None:
    file.write_bytes(change(file.read_bytes()))
    assert main([str(file)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(file) in error
    assert message in error


def test_a_missing_file(capsys: Captured) -> None:
    assert main(["no.pcp"]) == 1
    assert "no.pcp: cannot read the bundle" in capsys.readouterr().err
