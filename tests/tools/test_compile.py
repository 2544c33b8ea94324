"""pcp-compile as a user meets it: flags, files, messages, exit codes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers.models.stablehlo_small import FORWARD, TRAIN
from helpers.worlds.communicators import eventually

from pcp.bundle import Bundle
from pcp.passes.collectives.overlap_collectives import usual_inflight
from pcp.tools.cli import main as main_of_all
from pcp.tools.compile import main
from pcp.tools.support.cache_folder import cache_folder
from pcp.tools.support.compile_job import output_name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with two models and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PCP_CACHE", str(tmp_path / "cache"))
    Path("train.mlir").write_text(TRAIN)
    Path("forward.mlir").write_text(FORWARD)
    return tmp_path


Captured = pytest.CaptureFixture[str]


def test_one_target_and_no_other_flag(folder: Path, capsys: Captured) -> None:
    (folder / "elsewhere").mkdir()
    os.chdir(folder / "elsewhere")
    assert main(["../train.mlir", "--target", "sm_90a"]) == 0
    bundle = Bundle.read("train.sm_90a.pcp")
    assert bundle.manifest.mode == "train"
    assert b".target sm_90a\n" in bundle.module()
    out = capsys.readouterr().out
    assert "mode train: @main returns a scalar loss and has parameters" in out
    assert "optimizer adamw{lr=1e-3}: the default" in out
    assert "wrote train.sm_90a.pcp" in out


def test_several_targets_make_one_bundle(folder: Path, capsys: Captured) -> None:
    flags = ["forward.mlir", "--target", "cpu,vulkan", "--target", "cpu", "-q"]
    assert main([*flags, "--jobs", "1"]) == 0
    assert Bundle.read("forward.pcp").targets == ("cpu", "vulkan")
    assert capsys.readouterr().out.startswith("wrote forward.pcp")


def test_a_signed_bundle_is_one_that_its_signer_made(folder: Path, capsys) -> None:
    assert main_of_all(["keys", "new", "builder.identity"]) == 0
    number = capsys.readouterr().out.strip()
    flags = ["forward.mlir", "--target", "cpu", "-q", "-o", "x.pcp"]
    assert main(flags) == 0
    assert main_of_all(["verify", "x.pcp"]) == 1
    assert "nobody has signed it" in capsys.readouterr().err
    assert main([*flags, "--sign", "builder.identity"]) == 0
    assert main_of_all(["verify", "x.pcp", "--trust", number]) == 0
    assert f"x.pcp: whole, signed by {number}" in capsys.readouterr().out
    assert main_of_all(["verify", "x.pcp", "--trust", "a" * 32]) == 1
    assert "is not one that was named with --trust" in capsys.readouterr().err
    assert main([*flags, "--sign", "builder.identity", "--emit", "vmfb"]) == 2


def test_the_help_says_what_is_usual(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    usual, zero = usual_inflight(0), usual_inflight(3)
    assert f"0 none; default {usual}, {zero} with --zero 3" in said


def test_optimizer_and_algorithm(folder: Path) -> None:
    flags = ["train.mlir", "--target", "cpu", "-o", "out/x.pcp", "-q"]
    methods = ["--optimizer", "sgd{lr=0.1}", "--algorithm", "average"]
    assert main([*flags, *methods]) == 0
    manifest = Bundle.read("out/x.pcp").manifest
    assert manifest.optimizer is not None
    assert manifest.algorithm is not None
    assert (manifest.optimizer.kind, manifest.algorithm.kind) == ("sgd", "average")
    assert manifest.optimizer.hyper["lr"] == 0.1


@pytest.mark.parametrize(("emit", "start"), [("mlir", b"module"), ("vmfb", b"")])
def test_emit(folder: Path, emit: str, start: bytes) -> None:
    assert main(["forward.mlir", "--target", "cpu", "--emit", emit, "-q"]) == 0
    content = Path(f"forward.cpu.{emit}").read_bytes()
    assert content.startswith(start)
    assert len(content) > 300
    assert (b"hal.device.targets" in content) == (emit == "mlir")


def test_keep_ir_and_entry(folder: Path) -> None:
    Path("other.mlir").write_text(FORWARD.replace("@main", "@step"))
    flags = ["other.mlir", "--target", "cpu", "--entry", "step", "--keep-ir", "ir"]
    assert main([*flags, "-q"]) == 0
    assert Bundle.read("other.cpu.pcp").manifest.entry == "step"
    assert (folder / "ir" / "target-cpu.mlir").is_file()


def test_the_cache_is_where_it_was_asked_for(folder: Path, capsys: Captured) -> None:
    flags = ["forward.mlir", "--target", "cpu"]
    assert main([*flags, "--cache", "here"]) == 0
    assert list(folder.glob("here/*/*.vmfb"))
    assert main([*flags, "--cache", "off"]) == 0
    assert not (folder / "cache").exists()
    capsys.readouterr()
    assert main([*flags, "--cache", "here"]) == 0
    assert "from the cache" in capsys.readouterr().out


# --- errors: one line, the exit code, nothing written ------------------------

ERRORS: dict[str, tuple[list[str], int, str]] = {
    "missing file": (["no.mlir", "--target", "cpu"], 1, "no.mlir: cannot read"),
    "syntax": (["syntax.mlir", "--target", "cpu"], 1, "syntax.mlir:3:8: "),
    "not text": (["binary.mlir", "--target", "cpu"], 1, "binary.mlir:1: "),
    "unknown target": (
        ["train.mlir", "--target", "sm_99"],
        1,
        "known: cpu, cpu:host, aarch64",
    ),
    "unknown processor": (
        ["forward.mlir", "--target", "cpu:pentium99"],
        1,
        "no processor 'pentium99'",
    ),
    "no target": (["train.mlir"], 2, "--target"),
    "no model": (["--target", "cpu"], 2, "MODEL.mlir"),
    "unknown flag": (
        ["train.mlir", "--target", "cpu", "--optimiser", "sgd"],
        2,
        "Did you mean '--optimizer'?",
    ),
    "unknown optimizer key": (
        ["train.mlir", "--target", "cpu", "--optimizer", "adamw{lrr=1}"],
        1,
        "Did you mean 'lr'?",
    ),
    "not a scalar": (
        ["forward.mlir", "--target", "cpu", "--mode", "train"],
        1,
        "forward.mlir",
    ),
    "mode": (["train.mlir", "--target", "cpu", "--mode", "trian"], 2, "mean 'train'?"),
    "mesh": (["train.mlir", "--target", "cpu", "--mesh", "dp"], 1, "--mesh dp"),
    "split of what": (
        ["train.mlir", "--target", "cpu", "--split", "dp=2,1"],
        1,
        "say one with --mesh",
    ),
    "split of another axis": (
        ["train.mlir", "--target", "cpu", "--mesh", "dp=2", "--split", "tp=2,1"],
        1,
        'no axis "tp" (dp)',
    ),
    "split of too many": (
        ["train.mlir", "--target", "cpu", "--mesh", "dp=2", "--split", "dp=5,2,1"],
        1,
        '3 shares for the 2 members of axis "dp"',
    ),
    "split of nothing": (
        ["train.mlir", "--target", "cpu", "--mesh", "dp=2", "--split", "dp=0,0"],
        1,
        "some member has to have a share",
    ),
    "split by words": (
        ["train.mlir", "--target", "cpu", "--mesh", "dp=2", "--split", "dp=a,b"],
        1,
        "write it as axis=share,share: dp=5,2,1",
    ),
    "cluster": (["train.mlir", "--cluster", "c"], 1, "c: cannot"),
    "target and cluster": (
        ["train.mlir", "--target", "sm_90a", "--cluster", "c"],
        1,
        "target 'sm_90a': the devices of a cluster file have their own",
    ),
    "sharding": (
        ["train.mlir", "--target", "cpu", "--mesh", "dp=2", "--sharding", "x.json"],
        1,
        "x.json",
    ),
    "emit of two": (
        ["train.mlir", "--target", "cpu,vulkan", "--emit", "vmfb"],
        2,
        "writes one target, not 2",
    ),
    "jobs": (
        ["train.mlir", "--target", "cpu", "--jobs", "0"],
        1,
        "--jobs 0: at",
    ),
    "output folder is a file": (
        ["forward.mlir", "--target", "cpu", "-o", "train.mlir/x.pcp"],
        1,
        "train.mlir",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str, folder: Path, capsys: Captured) -> None:
    Path("syntax.mlir").write_text(FORWARD.replace("dot_general", "dot_genral"))
    Path("binary.mlir").write_bytes(b"\xff\xfe\x00")
    argv, code, message = ERRORS[case]
    assert main(argv) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("pcp-compile: error: ")
    assert message in error
    assert not list(folder.glob("*.pcp"))


def test_the_elastic_mesh_is_what_training_has(folder: Path) -> None:
    flags = ["train.mlir", "--target", "cpu", "--emit", "mlir", "-q"]
    assert main([*flags, "--mesh", "workers=elastic"]) == 0


def test_help_shows_an_example(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    assert "pcp-compile model.mlir --target sm_90a" in capsys.readouterr().out


def test_output_names() -> None:
    assert output_name("a/b.mlir", ["sm_90a"]) == "b.sm_90a.pcp"
    assert output_name("b.mlir", ["cpu:host"]) == "b.cpu-host.pcp"
    assert output_name("b.mlir", ["cpu", "vulkan"]) == "b.pcp"
    assert output_name("b.mlir", ["cpu"], "vmfb") == "b.cpu.vmfb"


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder("off", {}) is None
    assert cache_folder("x", {"PCP_CACHE": "off"}) == Path("x")
    assert cache_folder(None, {"PCP_CACHE": "off"}) is None
    assert cache_folder(None, {"PCP_CACHE": "y"}) == Path("y")
    assert cache_folder(None, {"XDG_CACHE_HOME": "z"}) == Path("z/pcp/modules")
    assert cache_folder(None, {}) == Path.home() / ".cache/pcp/modules"
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    assert cache_folder(None, {}) is None


@pytest.mark.slow  # test_interrupts.py has that of train
def test_a_terminated_command_leaves_no_compiler(folder: Path) -> None:
    fake = folder / "iree-compile"
    fake.write_text(f"#!/bin/sh\necho $$ > {folder}/pid\nexec sleep 60\n")
    fake.chmod(0o755)
    code = (
        "import pathlib, sys; from pcp.compiler import iree; "
        f"iree.binary = lambda: pathlib.Path({str(fake)!r}); "
        "from pcp.tools.compile import main; "
        "sys.exit(main(['forward.mlir', '--target', 'cpu,vulkan', '--cache', 'off']))"
    )
    command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    try:
        at = folder / "pid"
        pid = int(eventually(lambda: at.is_file() and at.read_text(), 30))
        command.terminate()
        assert command.wait(20) == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        command.kill()
        command.wait()
