"""Environments of their own: what `pip install` of pcp brings, and nothing else.

`bare` makes one without pip and without a network: links to the distributions that the
core requires, as this environment has them, and on top either what a wheel holds
(`as_wheel`) or the path that an editable install leaves (`as_editable`). The slow tests
have pip do it (`tests/test_install_pip.py`) and ask the same questions.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from textwrap import dedent

from helpers.repository.sources import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = ROOT / "src"
FILE = f"{PROJECT['name'].replace('-', '_')}-{PROJECT['version']}"
"""What the files of an installation are called."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def packages() -> set[str]:
    """The packages that setuptools finds: folders with an `__init__.py`."""
    found = set()
    for folder, inner, files in os.walk(SOURCE, followlinks=True):
        if "__init__.py" in files:
            found.add(".".join(Path(folder).relative_to(SOURCE).parts))
        elif Path(folder) != SOURCE:
            inner.clear()
    return found


@dataclass(frozen=True)
class Installation:
    """A virtual environment."""

    root: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / "bin" / "python"

    @property
    def site(self) -> Path:
        """Where its packages are."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.root / "lib" / version / "site-packages"

    def environment(self) -> dict[str, str]:
        """The variables of a shell that has activated it: ours lead nowhere else."""
        ours = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV"}
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        path = f"{self.root / 'bin'}{os.pathsep}{kept['PATH']}"
        return kept | {"PATH": path, "PYTHONNOUSERSITE": "1"}

    def run(
        self, *command: object, cwd: Path, text: str | None = None, timeout: int = 120
    ) -> subprocess.CompletedProcess[str]:
        """A command of it, by name; what it says is in the result."""
        words = [str(word) for word in command]
        words[0] = str(self.root / "bin" / words[0])
        return subprocess.run(
            words,
            cwd=cwd,
            env=self.environment(),
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def mains(
        self, commands: Sequence[tuple[str, Sequence[str]]], cwd: Path
    ) -> list["Said"]:
        """What `main(argv)` of each module says, one after the other in one process."""
        done = self.run("python", "-c", _MAINS, cwd=cwd, text=json.dumps(commands))
        assert done.returncode == 0, done.stderr
        return [Said(*said) for said in json.loads(done.stdout)]


@dataclass(frozen=True)
class Said:
    """The exit code and the output of one command."""

    code: int
    out: str
    err: str


_MAINS = dedent(
    """
    import contextlib, importlib, io, json, sys

    def said(module, argv):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = importlib.import_module(module).main(argv)
        return code or 0, out.getvalue(), err.getvalue()

    print(json.dumps([said(*command) for command in json.load(sys.stdin)]))
    """
)


def bare(
    folder: Path, extras: Sequence[str] = (), others: Sequence[str] = ()
) -> Installation:
    """An environment with the core's distributions, extras' and others, without pcp."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    made = Installation(folder)
    for one in _core([*PROJECT["dependencies"], *of_extras(extras), *others]):
        _link(one, made.site)
    return made


def as_wheel(made: Installation) -> Installation:
    """What a wheel of pcp leaves there: copies, metadata, scripts."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCE / "pcp", made.site / "pcp", ignore=ignored)
    return _registered(made)


def as_editable(made: Installation, clone: Path = ROOT) -> Installation:
    """What `pip install -e` leaves there, for this `package-dir`: a path."""
    (made.site / f"__editable__.{FILE}.pth").write_text(f"{clone / 'src'}\n")
    return _registered(made)


def _registered(made: Installation) -> Installation:
    info = made.site / f"{FILE}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(_metadata()) + "\n")
    for name, target in PROJECT["scripts"].items():
        module, _, function = target.partition(":")
        script = made.root / "bin" / name
        script.write_text(
            f"#!{made.python}\nimport sys\nfrom {module} import {function}\n"
            f"sys.exit({function}())\n"
        )
        script.chmod(0o755)
    return made


def _metadata() -> Iterator[str]:
    yield from ("Metadata-Version: 2.1", f"Name: {PROJECT['name']}")
    yield f"Version: {PROJECT['version']}"
    yield from (f"Requires-Dist: {line}" for line in requirements())
    yield from (
        f"Provides-Extra: {extra}" for extra in PROJECT["optional-dependencies"]
    )


def requirements() -> Iterator[str]:
    """The requirements in the metadata of an installation, with those of its extras."""
    yield from PROJECT["dependencies"]
    for extra, lines in PROJECT["optional-dependencies"].items():
        yield from (f'{line}; extra == "{extra}"' for line in lines)


def of_extras(extras: Sequence[str]) -> Iterator[str]:
    """What these extras require of others, with the extras that they name."""
    own = re.compile(rf"{PROJECT['name']}\[([\w,]+)\]")
    for line in (line for e in extras for line in PROJECT["optional-dependencies"][e]):
        named = own.match(line)
        yield from of_extras(named[1].split(",")) if named else [line]


def _core(lines: Sequence[str]) -> list[Distribution]:
    """The distributions of these requirements and, without extras, of theirs."""
    found: dict[str, Distribution] = {}
    waiting = list(lines)
    while waiting:
        line = waiting.pop()
        name = _NAME.match(line)
        if name is None or "extra ==" in line or name[0] in found:
            continue
        try:
            found[name[0]] = distribution(name[0])
        except PackageNotFoundError:  # for another Python or system
            continue
        waiting += found[name[0]].requires or []
    return list(found.values())


def _link(one: Distribution, site: Path) -> None:
    """Link what it installed; of a folder that several share (iree), only its part."""
    for file in one.files or ():
        top = file.parts[0]
        if top in ("..", "__pycache__"):
            continue
        own = Path(str(one.locate_file(top)))
        shared = own.is_dir() and not any(
            (own / mark).exists() for mark in ("__init__.py", "METADATA")
        )
        part = Path(*file.parts[: 1 + shared])
        if not (site / part).exists():
            (site / part).parent.mkdir(exist_ok=True)
            (site / part).symlink_to(str(one.locate_file(part)))
