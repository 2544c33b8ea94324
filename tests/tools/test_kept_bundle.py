"""Whole bundles that are kept: by all that decides them, and by nothing less."""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from helpers.models.stablehlo_small import FORWARD

from pcp.bundle import Bundle
from pcp.compiler import cache, driver
from pcp.compiler.cache import FREE, bundle_key
from pcp.compiler.options import CompileOptions
from pcp.tools import extension, kept_bundle
from pcp.tools.cli import main as pcp
from pcp.tools.compile import main

Captured = pytest.CaptureFixture[str]
FLAGS = ("model.mlir", "--target", "cpu")
SHARDING = {"tensors": {"x": [["dp"]]}}
DEVICE = {"host": "a", "target": "cpu"}
AGAIN = "the bundle is from the cache"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PCP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(extension, "_loaded", {})  # those of other tests here
    Path("model.mlir").write_text(FORWARD)
    Path("sharding.json").write_text(json.dumps(SHARDING))
    return tmp_path


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[CompileOptions]:
    """What reaches the driver, which gives one bundle for all."""
    made = Bundle.read(_made())
    asked = list[CompileOptions]()

    def compile(module: object, options: CompileOptions) -> Bundle:
        asked.append(options)
        options.report("this was decided")
        return made

    monkeypatch.setattr(driver, "compile", compile)
    return asked


def _made() -> Path:
    assert main([*FLAGS, "-q", "-o", "made.pcp", "--cache", "off"]) == 0
    return Path("made.pcp")


def _compiles_again(asked: list[CompileOptions], *words: str) -> bool:
    """Whether the driver is asked when the same command comes a second time."""
    assert main([*FLAGS, *words]) == 0
    before = len(asked)
    assert main([*FLAGS, *words]) == 0
    return len(asked) > before


# --- the second time ---------------------------------------------------------


AS_A_USER = """
import os, sys
opened = []
sys.addaudithook(lambda name, given: name == "open" and opened.append(given[0]))
from pcp.tools.compile import main
code = main(sys.argv[1:])
files = (p for p in opened if not isinstance(p, int) and os.path.isfile(p))
print(*{os.path.realpath(p) for p in files}, sep="\\n")
print([m for m in sys.modules if "mlir" in m or m == "iree"])
sys.exit(code)
"""


def _by_a_user(output: str) -> str:
    """What the command prints, then the files it opened, then its modules of MLIR."""
    words = ["--mesh", "dp=2", "--sharding", "sharding.json", "-o", output]
    command = [sys.executable, "-c", AS_A_USER, *FLAGS, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_pass_runs_and_mlir_is_not_imported(folder: Path) -> None:
    """And the first time no file is read that is not in the key."""
    named = FORWARD.replace("x8xf32>,", 'x8xf32> {pcp.name = "x"},', 1)
    Path("model.mlir").write_text(named)
    said, again = _by_a_user("a.pcp"), _by_a_user("b.pcp")
    assert Path("a.pcp").read_bytes() == Path("b.pcp").read_bytes()
    assert "mlir" in said.splitlines()[-1]
    assert again.splitlines()[-1] == "[]"
    assert AGAIN in again
    for line in ("pcp-compile: mode forward: @main does not return one ", "forward: "):
        assert line in said
        assert line in again
    of_python = (sys.prefix, sys.base_prefix, str(Path(os.__file__).parent))
    ours = str(cache._HOME.resolve().parent)
    opened = {Path(x) for x in said.splitlines() if x[:1] == "/"}
    inputs = {p for p in opened if not str(p).startswith((*of_python, ours))}
    inputs = {p for p in inputs if folder / "cache" not in p.parents}
    inputs = {p for p in inputs if "pcp-compile-" not in str(p)}  # IREE's folder
    wanted = {folder / "model.mlir", folder / "sharding.json"}
    assert wanted <= inputs
    assert inputs <= wanted | {folder / "a.pcp", Path("/proc/cpuinfo")}


def test_what_was_decided_is_told_again(compiled: Any, capsys: Captured) -> None:
    assert not _compiles_again(compiled)
    first, second = capsys.readouterr().out.split("wrote ")[-3:-1]
    assert "this was decided" in first
    assert "this was decided" in second
    assert AGAIN in second
    assert len(compiled) == 1


def test_a_name_of_its_own_and_a_signature(compiled: Any, capsys: Captured) -> None:
    assert main([*FLAGS, "-q"]) == 0
    assert pcp(["keys", "new", "builder.identity"]) == 0
    number = capsys.readouterr().out.split()[-1]
    words = ["-q", "--sign", "builder.identity"]
    assert main([*FLAGS, *words]) == 0
    assert main([*FLAGS, *words, "-o", "deep/other.pcp"]) == 0
    assert len(compiled) == 1
    for path in ("model.cpu.pcp", "deep/other.pcp"):
        assert pcp(["verify", path, "--trust", number]) == 0


def test_a_damaged_entry_is_made_again(compiled: Any, folder: Path) -> None:
    assert not _compiles_again(compiled)
    (entry,) = (folder / "cache").glob("*/*.bundle")
    entry.write_bytes(entry.read_bytes()[:-1] + b"\0")
    assert not _compiles_again(compiled)
    assert len(compiled) == 2


def test_pcp_cache_shows_and_removes_it(compiled: Any, capsys: Captured) -> None:
    assert not _compiles_again(compiled)
    assert pcp(["cache", "ls"]) == 0
    assert "0 modules, 1 bundle, " in capsys.readouterr().out
    assert pcp(["cache", "prune"]) == 0
    assert "removed 1 of 0 modules, 1 bundle in" in capsys.readouterr().out
    assert _compiles_again(compiled) is False
    assert len(compiled) == 2


# --- what decides it ---------------------------------------------------------


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small pcp: to read all of the real one takes 30 ms."""
    home = Path("own").absolute()
    (home / "deep/objects").mkdir(parents=True)
    for name in ("__init__.py", "x.py", "deep/objects/x.o"):
        (home / name).write_bytes(b"1")
    monkeypatch.setattr(cache, "_HOME", home)
    return home


#: Another value for each option, and what must go with it.
OTHERS: dict[str, Any] = {
    "targets": ("cpu", "vulkan"),
    "mode": "grad",
    "optimizer": "sgd{lr=0.1}",
    "algorithm": "average",
    "entry": "other",
    "kernels": "none",
    "opt_level": "O2",
    "source": "same.mlir",
    "mesh": "dp=2",
    "split": "dp=2,1",
    "cluster": Path("cluster.json"),
    "sharding": "none",
    "zero": 1,
    "microbatches": 2,
    "schedule": "gpipe",
    "batch": 4,
    "tied": True,
    "bucket_bytes": 1,
    "inflight": 1,
    "wire": "bf16",
    "memory": "1GiB",
    "precision": "params=f32,compute=bf16,reduce=f32",
    "layers": "rolled",
    "lora": "r=8",
    "freeze": "*",
    "ema": 0.5,
    "checkpoints": True,
    "unlike": True,
    "tuning": Path("tuning.json"),
}


def test_every_option_has_another_value_here() -> None:
    """A new one does, too: without, nobody has thought of it."""
    assert {f.name for f in fields(CompileOptions)} == OTHERS.keys() | FREE


def test_every_option_is_in_the_key(own: Path) -> None:
    Path("same.mlir").write_text(FORWARD)
    for file in ("cluster.json", "tuning.json"):
        Path(file).write_text("{}")
    usual = CompileOptions(source="model.mlir")
    keys = {bundle_key(usual, {})}
    for name, value in OTHERS.items():
        keys.add(bundle_key(replace(usual, **{name: value}), {}))
    assert None not in keys
    assert len(keys) == 1 + len(OTHERS)


def test_what_decides_nothing_is_not() -> None:
    usual = CompileOptions(source="model.mlir")
    other = replace(usual, jobs=1, timeout=1.0, cache=Path("x"), report=print)
    assert bundle_key(usual, {}) == bundle_key(other, {"PATH": "x", "HOME": "y"})


def _another_model(_: pytest.MonkeyPatch) -> None:
    Path("model.mlir").write_text(f"{FORWARD}\n// a comment")


def _another_sharding(_: pytest.MonkeyPatch) -> None:
    Path("sharding.json").write_text(json.dumps(SHARDING, indent=1))


def _another_cluster(_: pytest.MonkeyPatch) -> None:
    Path("cluster.json").write_text('{"devices": {}}')


def _another_line_of_ours(_: pytest.MonkeyPatch) -> None:
    (cache._HOME / "x.py").write_text("X = 1")


def _another_processor(patch: pytest.MonkeyPatch) -> None:
    Path("cpuinfo").write_text("model name: other\nflags: fpu\n\nmodel name: x\n")
    patch.setattr(cache, "_CPUINFO", Path("cpuinfo").absolute())


def _no_word_of_the_processor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cache, "_CPUINFO", Path("absent"))


def _another_compiler(patch: pytest.MonkeyPatch) -> None:
    """The same version, installed from other files."""
    found = importlib.metadata.distribution

    class Other:
        version = found("iree-base-compiler").version

        def read_text(self, _: str) -> str:
            return "another file,sha256=0,1"

    def distribution(name: str) -> Any:
        return Other() if name == "iree-base-compiler" else found(name)

    patch.setattr(cache, "distribution", distribution)


def _another_python(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cache.sys, "version", "4.0")


CHANGES = (
    _another_model,
    _another_sharding,
    _another_cluster,
    _another_line_of_ours,
    _another_processor,
    _no_word_of_the_processor,
    _another_compiler,
    _another_python,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_what_else_is_in_the_key(
    change: Callable[[pytest.MonkeyPatch], None],
    own: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("cluster.json").write_text("{}")
    asked = CompileOptions(
        source="model.mlir", sharding="sharding.json", cluster=Path("cluster.json")
    )
    before = bundle_key(asked, {})
    assert before == bundle_key(asked, {})
    change(monkeypatch)
    assert bundle_key(asked, {}) not in (before, None)


@pytest.mark.parametrize("changed", ["x.py", "deep/objects/x.o", "y.py"])
def test_each_file_of_ours_counts(changed: str, own: Path) -> None:
    """Its content, and that it is there; what Python compiled of it does not."""
    asked = CompileOptions(source="model.mlir")
    before = bundle_key(asked, {})
    (own / "__pycache__").mkdir()
    (own / "__pycache__/x.pyc").write_bytes(b"1")
    assert bundle_key(asked, {}) == before
    (own / changed).write_bytes(b"2")
    assert bundle_key(asked, {}) != before


@pytest.mark.parametrize("name", ["IREE_X", "LLVM_X", "MLIR_X", "CUDA_HOME", "ROCM_P"])
def test_variables_of_compilers_are_in_the_key(name: str, own: Path) -> None:
    asked = CompileOptions(source="model.mlir")
    assert len({bundle_key(asked, e) for e in ({}, {name: ""}, {name: "1"})}) == 3


# --- what is not kept --------------------------------------------------------

EXTENSION = "import pcp\nEXTENSION = pcp.Extension()\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--keep-ir", "ir"),
        ("--emit", "vmfb"),
        ("--cache", "off"),
        ("--load", "mine.py"),
    ],
    ids=" ".join,
)
def test_by_flags(words: tuple[str, ...], compiled: Any) -> None:
    Path("mine.py").write_text(EXTENSION)
    assert _compiles_again(compiled, *words)


def test_an_extension_that_is_there_in_any_way(
    compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its passes may read what they want, and import what they want."""
    assert not _compiles_again(compiled)
    with monkeypatch.context() as patch:
        patch.setattr(kept_bundle, "entry_points", lambda **_: ["one"])
        assert _compiles_again(compiled)
    assert not _compiles_again(compiled)
    with monkeypatch.context() as patch:
        patch.setattr(extension, "_loaded", {"mine.py": extension.Extension()})
        assert _compiles_again(compiled)


def test_what_cannot_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package without a record of its files; a model that is not there."""
    asked = CompileOptions(source="model.mlir")
    assert bundle_key(replace(asked, source="absent.mlir"), {}) is None
    assert bundle_key(replace(asked, sharding="absent.json"), {}) is None

    class Bare:
        version = "1"

        def read_text(self, _: str) -> None:
            return None

    monkeypatch.setattr(cache, "distribution", lambda _: Bare())
    assert bundle_key(asked, {}) is None


@pytest.mark.parametrize("change", [_another_model, _another_line_of_ours])
def test_what_changed_while_it_was_compiled(
    change: Callable[[pytest.MonkeyPatch], None],
    compiled: Any,
    own: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
) -> None:
    """Nobody knows which of the two was compiled."""
    compile = driver.compile

    def meanwhile(module: Any, options: CompileOptions) -> Bundle:
        change(monkeypatch)
        return compile(module, options)

    monkeypatch.setattr(driver, "compile", meanwhile)
    assert main([*FLAGS]) == 0
    assert not [*(folder / "cache").glob("*/*.bundle")]


def test_a_failure(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    Path("model.mlir").write_text("no program")
    for _ in range(2):
        assert main([*FLAGS]) == 1
    assert not [*(folder / "cache").glob("*/*")]
