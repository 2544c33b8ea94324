"""What pip makes of pcp: the questions of `test_install.py` to the real thing."""

import json
import re
import shutil
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.models.stablehlo_small import TANH_SUM
from helpers.repository.installation import PROJECT, Installation, as_editable, bare
from helpers.repository.sources import ROOMS, ROOT

BESIDE = (
    *("pcp/py.typed", "tools/start/demo.json", "tools/start/nanogpt_small.mlir"),
    *(f"training/observe/{each}" for each in ("*.html", "*.css", "*.js", "vendor/*")),
    *("passes/kernels/objects/*.o", "passes/kernels/objects/*.xz"),
    *("serving/gateway/*.html", "runtime/transport/_*.[ch]"),
)
DATA = {str(file.relative_to(ROOT)) for each in BESIDE for file in ROOT.glob(each)}
"""What is installed beside the sources."""
COMPILED = "pcp/runtime/transport/_mover.abi3.so"
"""What a C compiler makes when pcp is installed; without one it is not there."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # pip and the network

PIP_S = 900
LISTED = """\
import json
from importlib.metadata import files
print(json.dumps(sorted(str(f) for f in files("pcp-mlir") if f.parts[0] == "pcp")))
"""


def with_pip(folder: Path) -> Installation:
    venv.EnvBuilder(symlinks=True, with_pip=True).create(folder)
    return Installation(folder)


def pip(made: Installation, *arguments: object, cwd: Path) -> None:
    command = ["python", "-m", "pip", "--disable-pip-version-check", *arguments]
    done = made.run(*command, cwd=cwd, timeout=PIP_S)
    assert done.returncode == 0, done.stdout + done.stderr


def known() -> list[Path]:
    """The files that git knows or would add, links as links, from the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    names = sorted(set(listed.stdout.decode().split("\0")) - {""})
    files = [Path(name) for name in names]
    return [f for f in files if (ROOT / f).is_symlink() or (ROOT / f).is_file()]


def cloned(folder: Path) -> Path:
    """A copy of them in `folder`."""
    for file in known():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cloned(tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    made = with_pip(tmp_path_factory.mktemp("builder"))
    pip(made, "install", "-q", "setuptools>=77", cwd=made.root)
    return made


def wheel(clone: Path, builder: Installation, folder: Path) -> Path:
    pip(builder, "wheel", "-q", "--no-deps", "-w", folder, clone, cwd=folder)
    return next(folder.glob("*.whl"))


def sdist(clone: Path, builder: Installation, folder: Path) -> Path:
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    done = builder.run("python", "-c", code, cwd=clone, timeout=PIP_S)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.tar.gz"))


def itself(clone: Path, builder: Installation, folder: Path) -> Path:
    return clone


def belongs_in() -> list[str]:
    """What is to be installed: the rooms' and the door's sources, and data."""
    files = [f for f in known() if f.parts[0] in ("pcp", *ROOMS)]
    wanted = [f for f in files if f.suffix == ".py" or f.as_posix() in DATA]
    names = [f"pcp/{f.as_posix().removeprefix('pcp/')}" for f in wanted]
    return sorted([*names, COMPILED] if shutil.which("cc") else names)


@pytest.mark.parametrize("way", [wheel, sdist, itself])
def test_a_plain_install_is_whole(
    clone: Path, builder: Installation, tmp_path: Path, way
) -> None:
    (tmp_path / "dist").mkdir()
    made = with_pip(tmp_path / "env")
    pip(made, "install", "-q", way(clone, builder, tmp_path / "dist"), cwd=tmp_path)
    listed = made.run("python", "-c", LISTED, cwd=tmp_path)
    found = [f for f in json.loads(listed.stdout) if "__pycache__" not in f]
    assert found == belongs_in()
    for script in PROJECT["scripts"]:
        done = made.run(script, "--help", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    done = made.run("pcp", "doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("\nready (for: worker)\n")


def test_the_advice_brings_the_compiler(
    clone: Path, builder: Installation, tmp_path: Path
) -> None:
    """And no other pcp: pip keeps the one that is there."""
    (tmp_path / "dist").mkdir()
    (tmp_path / "m.mlir").write_text(TANH_SUM)
    made = with_pip(tmp_path / "env")
    pip(made, "install", "-q", wheel(clone, builder, tmp_path / "dist"), cwd=tmp_path)
    said = made.run("pcp-opt", "m.mlir", cwd=tmp_path)
    assert said.returncode == 2
    _, _, advice = said.stderr.strip().rpartition(": pip install ")
    pip(made, "install", "-q", advice.strip("'"), cwd=tmp_path)
    assert made.run("pcp-opt", "m.mlir", cwd=tmp_path).returncode == 0
    done = made.run("pcp-compile", "m.mlir", "--target", "cpu", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = made.run("pcp", "doctor", cwd=tmp_path)
    assert done.stdout.endswith("\nready (for: worker, shepherd, compile)\n")


MOST_BYTES = 150e6
"""Of a worker's packages, IREE's build for Tracy included."""


def size(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(p.lstat().st_size for p in folder.rglob("*") if not p.is_dir())


def extra(name: str) -> list[str]:
    """The packages of an extra, and those of the extras that it names."""
    own = PROJECT["optional-dependencies"][name]
    inner = [re.match(r"pcp-mlir\[(.*)\]", line) for line in own]
    named = [part for one in inner if one for part in one[1].split(",")]
    return own + [line for part in named for line in extra(part)]


def bounds(extras: Sequence[str], oldest: bool) -> list[str]:
    """For pip: the oldest versions that ours may be beside, or nothing."""
    lines = [*PROJECT["dependencies"], *(line for e in extras for line in extra(e))]
    found = [re.match(r"([\w-]+)>=([\d.]+)", line) for line in lines]
    return [f"{one[1]}=={one[2]}.*" for one in found if one] if oldest else []


@pytest.mark.parametrize("oldest", [True, False], ids=["oldest", "newest"])
def test_both_ends_of_what_may_be_beside_it(
    clone: Path, builder: Installation, tmp_path: Path, oldest: bool
) -> None:
    """They train the demo; and a worker's packages alone are small."""
    (tmp_path / "dist").mkdir()
    file = wheel(clone, builder, tmp_path / "dist")
    made = with_pip(tmp_path / "env")
    before = size(made.site)
    pip(made, "install", "-q", "--no-compile", file, *bounds((), oldest), cwd=tmp_path)
    assert size(made.site) - before < MOST_BYTES
    known = bounds(("train",), oldest)
    pip(made, "install", "-q", f"{file}[train]", *known, cwd=tmp_path)
    assert made.run("pcp", "init", "demo", cwd=tmp_path).returncode == 0
    words = ["demo/demo.json", "--workers", "2", "--set", "outer_loop_steps=2"]
    done = made.run("pcp", "train", *words, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


JAX_GRADIENT = """
import jax, jax.numpy as jnp, numpy as np, pcp
def loss(w, x):
    return jnp.mean(jax.nn.gelu(x @ w) ** 2)
w, x = np.linspace(-1, 1, 12).reshape(4, 3), np.ones((2, 4))
w, x = w.astype(np.float32), x.astype(np.float32)
bundle = pcp.compile(pcp.from_jax(loss, w, x), mode="grad", targets=("cpu:host",))
value, gradient = pcp.Program.load(bundle)["grad"](w, x)
wanted, by_jax = jax.value_and_grad(loss)(w, x)
np.testing.assert_allclose(value, wanted, rtol=1e-6)
np.testing.assert_allclose(gradient, by_jax, rtol=1e-5, atol=1e-7)
print(jax.__version__)
"""


@pytest.mark.parametrize("oldest", [True, False], ids=["oldest", "newest"])
def test_both_ends_of_jax(
    clone: Path, builder: Installation, tmp_path: Path, oldest: bool
) -> None:
    """A gradient of a function of JAX is JAX's."""
    (tmp_path / "dist").mkdir()
    file = wheel(clone, builder, tmp_path / "dist")
    made = with_pip(tmp_path / "env")
    known = bounds(("jax",), oldest)
    pip(made, "install", "-q", f"{file}[jax]", *known, cwd=tmp_path)
    done = made.run("python", "-c", JAX_GRADIENT, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.strip() == "0.10.0") == oldest


def test_an_editable_install_beside_a_script(tmp_path: Path) -> None:
    """And what `as_editable` says it leaves is what it leaves."""
    clone = cloned(tmp_path / "pcp")
    (tmp_path / "train.py").write_text("import pcp\nprint(pcp.__file__)\n")
    made = with_pip(tmp_path / "env")
    pip(made, "install", "-q", "--no-deps", "-e", "pcp", cwd=tmp_path)
    for command in (["train.py"], ["-c", "import pcp; print(pcp.__file__)"]):
        done = made.run("python", *command, cwd=tmp_path)
        assert done.stdout == f"{clone / 'src' / 'pcp' / '__init__.py'}\n", done.stderr
    said = as_editable(bare(tmp_path / "said"), clone)
    (left,) = made.site.glob("__editable__*pcp*.pth")
    (named,) = said.site.glob("__editable__*pcp*.pth")
    assert left.read_text().strip() == named.read_text().strip()
    assert not list(made.site.glob("__editable__*finder*"))
