"""The plain install: every command is there, and a worker lives on it.

`core` has numpy, IREE's runtime, pydantic and xxhash, and pcp as a wheel lays it out.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.models.bigram_stablehlo import MODEL, write_experiment
from helpers.models.stablehlo_small import TANH_SUM
from helpers.repository.installation import (
    FILE,
    PROJECT,
    Installation,
    Said,
    as_editable,
    as_wheel,
    bare,
)
from helpers.repository.sources import ROOT
from helpers.servers.processes import Processes, free_port

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.tools.cli import COMMANDS
from pcp.tools.commands import inspect

COMPILER = "'pcp-mlir[compiler]'"
"""What pip is to install: an extra of the pcp that is there."""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return as_wheel(bare(tmp_path_factory.mktemp("core")))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gradients over two devices, compiled where a compiler is."""
    options = CompileOptions(mode="grad", mesh="dp=2")
    made = driver.compile(parse(TANH_SUM), options)
    return made.write(tmp_path_factory.mktemp("bundle") / "m.pcp")


def test_nothing_of_the_compiler_is_there(core: Installation, tmp_path: Path) -> None:
    """Else the other tests here would show nothing."""
    names = ["torch_mlir", "iree.compiler", "torch", "jax", "ray", "rich", "yaml"]
    code = (
        "import importlib.util as u, iree.runtime\n"
        f"print([name for name in {names} if u.find_spec(name)])"
    )
    assert core.run("python", "-c", code, cwd=tmp_path).stdout == "[]\n"
    assert core.run("python", "-c", "import tests", cwd=tmp_path).returncode == 1
    code = "import pcp.dialect.bindings"
    done = core.run("python", "-c", code, cwd=tmp_path)
    assert done.stderr.rstrip().endswith(f"pip install {COMPILER}")


def test_every_command_has_its_help(core: Installation, tmp_path: Path) -> None:
    """Those of the table, whatever stands in it."""
    modules = [module for module, _ in COMMANDS.values()]
    modules += [target.partition(":")[0] for target in PROJECT["scripts"].values()]
    commands = [(module, ["--help"]) for module in modules]
    for module, said in zip(modules, core.mains(commands, tmp_path), strict=True):
        assert (said.code, said.err) == (0, ""), module
        assert said.out.startswith("usage: pcp"), module


@pytest.mark.parametrize("script", PROJECT["scripts"])
def test_scripts_start(core: Installation, tmp_path: Path, script: str) -> None:
    done = core.run(script, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {script} ")


NEEDS_COMPILER = {
    "pcp-opt": ["m.mlir", "--cse"],
    "pcp-opt --list-passes": ["--list-passes"],
    "pcp-compile": ["m.mlir", "--target", "cpu"],
    "plan": ["m.mlir", "--cluster", "c.json"],
    "probe": [],
    "schema": ["cluster"],
    "inspect": ["--plan", "m.mlir"],
    "train": ["x.json"],
    "shepherd": ["--config", "x.json"],
    "simulate": ["x.json", "--workers", "2", "--step-seconds", "1"],
    "export": ["--jax", "m.py:f"],
}


def test_what_needs_the_compiler_says_what_to_install(
    core: Installation, tmp_path: Path
) -> None:
    """In one line, as wrong usage, and before anything is written or waited for."""
    write_experiment(tmp_path)
    (tmp_path / "m.mlir").write_text(TANH_SUM)
    (tmp_path / "m.py").write_text("")
    modules = {name: module for name, (module, _) in COMMANDS.items()} | {
        name: target.partition(":")[0] for name, target in PROJECT["scripts"].items()
    }
    commands = [(modules[n.split()[0]], argv) for n, argv in NEEDS_COMPILER.items()]
    before = sorted(path.name for path in tmp_path.iterdir())
    said = dict(zip(NEEDS_COMPILER, core.mains(commands, tmp_path), strict=True))
    for name, one in said.items():
        assert one.code == 2, (name, one)
        (line,) = one.err.splitlines()
        extra = COMPILER.replace("compiler", "jax") if name == "export" else COMPILER
        assert line.endswith(f": pip install {extra}"), name
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_python_says_it_too(core: Installation, tmp_path: Path) -> None:
    code = (
        "import pcp\n"
        "print(pcp.Bundle, pcp.Program, pcp.Communicator, pcp.AdamW)\n"
        "try:\n    pcp.compile\n"
        "except ImportError as error:\n    print(error)"
    )
    done = core.run("python", "-c", code, cwd=tmp_path)
    assert done.stdout.endswith(f"pip install {COMPILER}\n"), done.stderr


@pytest.mark.slow  # test_inspect.py says it where all is there
def test_inspect_says_all_of_a_bundle(
    core: Installation, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Just what it says where the compiler is."""
    views = [[], ["--tensors"], ["--json"], ["--ir", "program"]]
    commands = [("pcp.tools.commands.inspect", [str(bundle), *view]) for view in views]
    for command, said in zip(commands, core.mains(commands, tmp_path), strict=True):
        assert inspect.main(command[1]) == 0
        assert said == Said(0, capsys.readouterr().out, "")
    pages = [tmp_path / "here.html", tmp_path / "core.html"]
    draw = [str(bundle), "--plan", "-o"]
    assert inspect.main([*draw, str(pages[0])]) == 0
    core.mains([("pcp.tools.commands.inspect", [*draw, str(pages[1])])], tmp_path)
    assert pages[0].read_text() == pages[1].read_text()


@pytest.mark.slow
def test_a_bundle_runs(core: Installation, bundle: Path, tmp_path: Path) -> None:
    flags = ["--function", "grad", "--inputs", "random:0", "--out", "g.npz"]
    done = core.run("pcp", "run", bundle, *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "g.npz") as found:
        assert all(np.isfinite(found[name]).all() for name in found.files)
        assert any(found[name].any() for name in found.files)


def test_doctor_finds_a_worker_ready(core: Installation, tmp_path: Path) -> None:
    done = core.run("pcp", "doctor", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.endswith("\nready (for: worker)\n")
    assert f"-> pip install {COMPILER}\n" in done.stdout


@pytest.mark.slow  # below, all is of one installation
def test_a_worker_trains_for_a_shepherd_that_has_it_all(
    core: Installation, tmp_path: Path
) -> None:
    short = {
        "outer_loop_steps": 2,
        "max_epochs": 1,
        "checkpoint_dir": str(tmp_path / "runs"),
    }
    path = write_experiment(tmp_path, **short)
    port = free_port()
    flags = ["--config", path, "--port", port, "--workers", 1, "--no-dashboard"]
    with Processes() as processes:
        shepherd = processes.start("pcp.tools.cli", "shepherd", *flags)
        shepherd.wait_for("listens on", 60)
        worker = core.run(
            "pcp", "worker", "--connect", f"127.0.0.1:{port}", cwd=tmp_path
        )
        assert worker.returncode == 0, worker.stdout + worker.stderr
        assert shepherd.wait(60) == 0, shepherd.text
    (run,) = (tmp_path / "runs").glob("run_*")
    checked = core.run("pcp", "ledger", "check", run, cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.endswith("ledger ok\n")


def test_a_bundle_is_trained_without_the_compiler(
    core: Installation, tmp_path: Path
) -> None:
    """Shepherd, supervisor and worker; the plot needs more, and the run does not."""
    short = {"outer_loop_steps": 2, "max_epochs": 1, "model_path": "model.pcp"}
    path = write_experiment(tmp_path, **short)
    options = CompileOptions(mode="train")
    driver.compile(parse(MODEL), options).write(tmp_path / "model.pcp")
    flags = ["--workers", 1, "--target", "cpu", "--no-dashboard"]
    done = core.run("pcp", "train", path, *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    plot = "'pcp-mlir[train]'"
    assert f"none: the loss plot needs matplotlib: pip install {plot}\n" in done.stdout
    assert "final loss" in done.stdout


# --- a clone called pcp beside the script ---

SCRIPT = """\
import importlib.metadata, json, sys
import pcp
named = getattr(pcp, "__version__", None)
print(json.dumps([pcp.__file__, named, importlib.metadata.version("pcp-mlir")]))
"""


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A home: the clone `pcp`, and a script that says `import pcp`."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "pcp").symlink_to(ROOT)
    (tmp_path / "home" / "train.py").write_text(SCRIPT)
    return tmp_path / "home"


def imported(made: Installation, *command: object, cwd: Path) -> list[str | None]:
    done = made.run("python", *command, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", ["script", "-c", "-m"])
@pytest.mark.parametrize("install", [as_wheel, as_editable])
def test_a_clone_beside_a_script_does_not_hide_the_installed_pcp(
    tmp_path: Path, beside: Path, install, how: str
) -> None:
    made = install(bare(tmp_path / "env"))
    words = {"script": ["train.py"], "-c": ["-c", SCRIPT], "-m": ["-m", "train"]}
    file, version, installed = imported(made, *words[how], cwd=beside)
    home = made.site if install is as_wheel else ROOT / "src"
    assert file == str(home / "pcp" / "__init__.py")
    assert version == installed == PROJECT["version"]


FINDER = """\
import sys
from importlib.machinery import PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [PLACE]) if name == "pcp" else None

sys.meta_path.append(Finder)
"""


def test_a_finder_of_setuptools_would_be_asked_too_late(
    tmp_path: Path, beside: Path
) -> None:
    """What an editable install makes where `package-dir` maps single packages."""
    made = as_editable(bare(tmp_path / "env"))
    code = FINDER.replace("PLACE", repr(str(ROOT / "src")))
    (made.site / "pcp_finder.py").write_text(code)
    (made.site / f"__editable__.{FILE}.pth").write_text("import pcp_finder\n")
    assert imported(made, "-c", SCRIPT, cwd=tmp_path)[0] is not None
    assert imported(made, "train.py", cwd=beside)[0] is None
