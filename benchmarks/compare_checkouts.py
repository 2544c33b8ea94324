"""Whether two checkouts compile alike: lit inputs and examples, byte for byte.

    python benchmarks/compare_checkouts.py OLD NEW              # all, minutes
    python benchmarks/compare_checkouts.py OLD NEW --quick -j 4 # a part of them
    python benchmarks/compare_checkouts.py OLD NEW --only '*tp=2*'

Each RUN line of `OLD/lit_tests` runs with a `filecheck` that copies its input, and each
command line of `compare_cases.py` with an iree-compile that copies its text: what pcp
wrote is compared, not what IREE makes of it. Both checkouts read OLD's inputs with this
interpreter; `[project.scripts]` of each says what its commands are. Names of the
checkouts and of scratch folders are left out of the comparison.

Prints the cases that differ and where, and exits 1 if there are any.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from compare_cases import COMMANDS, EXPORTS, FILES, QUICK

#: Of the lit files, `--quick` takes one in so many.
SOME = 6
TIMEOUT_S = 900
_ALWAYS = "--keep-ir ir --cache off --jobs 1 -o out.pcp"
_SECONDS = re.compile(rb" in \d+\.\d s\b")
_TEMPORARY = "temporary"
_REPRODUCER = re.compile(rb"pcp-repro-\w+\.mlir")
_RUN = re.compile(r"RUN:\s*(.*)$", re.MULTILINE)
_ROUNDTRIP = "pcp-opt %s --mlir-print-op-generic | pcp-opt -"

Outputs = dict[str, bytes]

#: Runs a command of a checkout. The text for IREE becomes its module, uncompiled.
_LAUNCHER = """#!{python}
import importlib, sys
if {stub!r}:
    from pcp.compiler import iree
    def copied(text, flags, **_):
        return "\\n".join([*flags, text]).encode()
    iree.compile_text = copied
sys.argv[0] = {name!r}
sys.exit(getattr(importlib.import_module({module!r}), {function!r})())
"""
_NOT = '#!/bin/sh\n"$@"\n[ $? -ne 0 ]\n'
_FILECHECK = "#!/bin/sh\nexec cat\n"


@dataclass(frozen=True)
class Case:
    """A shell script that runs in a folder of its own, with `files` copied into it."""

    name: str
    script: str
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Checkout:
    """A checkout and the folder of the commands that run its code."""

    root: Path
    commands: Path

    @classmethod
    def of(cls, root: Path, commands: Path) -> "Checkout":
        """Write the commands of the checkout at `root` into the folder `commands`."""
        commands.mkdir()
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        texts = {
            name: _LAUNCHER.format(
                python=sys.executable,
                name=name,
                module=place.partition(":")[0],
                function=place.partition(":")[2],
                stub=name == "pcp-compile",
            )
            for name, place in project["scripts"].items()
        }
        for name, text in (texts | {"filecheck": _FILECHECK, "not": _NOT}).items():
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        return cls(root, commands)

    def run(self, case: Case) -> Outputs:
        """What the case prints, its exit status and the files it leaves, by name."""
        with tempfile.TemporaryDirectory(prefix="pcp-compare-") as text:
            folder = Path(text)
            for file in case.files:
                shutil.copy(file, folder)
            (folder / _TEMPORARY).mkdir()
            inputs = {path.name for path in folder.iterdir()}
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", case.script],
                cwd=folder,
                env={**self._environment(), "TMPDIR": str(folder / _TEMPORARY)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            found = {"stdout": done.stdout, "stderr": done.stderr}
            found["status"] = str(done.returncode).encode()
            found |= _left(folder, inputs)
            return {name: self._plain(data, text) for name, data in found.items()}

    def _environment(self) -> Mapping[str, str]:
        path = f"{self.commands}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PYTHONPATH": str(self.root), "PATH": path}

    def _plain(self, data: bytes, folder: str) -> bytes:
        for path in (folder, str(self.commands), str(self.root)):
            data = data.replace(path.encode(), b"FOLDER")
        data = _REPRODUCER.sub(b"REPRODUCER", data)
        return _SECONDS.sub(b" in SECONDS", data)


def _left(folder: Path, inputs: set[str]) -> Outputs:
    """The files of a folder but its inputs; of a bundle its members."""
    found: Outputs = {}
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        name = str(inner)
        if not path.is_file() or inner.parts[0] in inputs:
            continue
        if not zipfile.is_zipfile(path):
            found[name] = path.read_bytes()
            continue
        with zipfile.ZipFile(path) as archive:
            found |= {
                f"{name}/{inner}": archive.read(inner) for inner in archive.namelist()
            }
    return found


# --- what is run ---


def lit_cases(root: Path, quick: bool = False) -> list[Case]:
    """A case for each lit file of the checkout: its RUN lines in their order."""
    files = sorted(root.glob("lit_tests/*/*.mlir"))
    return [
        Case(str(file.relative_to(root)), script, (file,))
        for file in (files[::SOME] if quick else files)
        if (script := _lit_script(file))
    ]


def _lit_script(file: Path) -> str:
    lines = "\n".join(_RUN.findall(file.read_text())).replace("\\\n", " ")
    lines = lines.replace("PCP_ROUNDTRIP", _ROUNDTRIP).replace(
        "%python", sys.executable
    )
    return lines.replace("%s", file.name).replace("%t", "./t")


def compile_cases(root: Path, folder: Path, quick: bool = False) -> list[Case]:
    """A case for each command line of the table; `folder` has the models."""
    cases = []
    for model, flags in COMMANDS:
        if quick and (model, flags) not in QUICK:
            continue
        source = root / "examples/models" / model
        files = [source if source.exists() else folder / model]
        files += [root / "examples/megatron.json", *(folder / name for name in FILES)]
        script = f"pcp-compile {model} {flags} {_ALWAYS}"
        cases.append(Case(f"{model} {flags}", script, tuple(files)))
    return cases


def write_inputs(old: Checkout, folder: Path, wanted: set[str]) -> None:
    """The table's own files, and the examples' models as OLD exports them."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    for model, flags in EXPORTS.items():
        if model in wanted:
            case = Case(
                model, f"pcp export {flags.format(root=old.root)} -o {folder}/{model}"
            )
            if (found := old.run(case))["status"] != b"0":
                raise SystemExit(f"{model}: {found['stderr'].decode()}")


# --- what differs ---


def differences(old: Outputs, new: Outputs) -> list[str]:
    """A line for each output that is not the same."""
    lines = []
    for name in dict.fromkeys([*old, *new]):
        if name not in new:
            lines.append(f"{name}: not written any more")
        elif name not in old:
            lines.append(f"{name}: new")
        elif old[name] != new[name]:
            lines.append(f"{name}: {_first(old[name], new[name])}")
    return lines


def _first(old: bytes, new: bytes) -> str:
    """The first line in which two outputs differ."""
    before, after = old.split(b"\n"), new.split(b"\n")
    places = range(min(len(before), len(after)))
    number = next((i for i in places if before[i] != after[i]), len(places))
    texts = [
        lines[number][:160].decode(errors="replace") if number < len(lines) else "(end)"
        for lines in (before, after)
    ]
    return f"line {number + 1}\n      - {texts[0]}\n      + {texts[1]}"


def compare(case: Case, old: Checkout, new: Checkout) -> list[str]:
    """How the two checkouts differ in a case."""
    try:
        return differences(old.run(case), new.run(case))
    except subprocess.TimeoutExpired:
        return [f"not done after {TIMEOUT_S} s"]


def _flags(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, help="at once")
    parser.add_argument("--quick", action="store_true", help="a part of the cases")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="of case names")
    parser.add_argument("--list", action="store_true", help="the cases, and no more")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    flags = _flags(argv)
    with tempfile.TemporaryDirectory(prefix="pcp-compare-") as text:
        folder = Path(text)
        old = Checkout.of(flags.old.resolve(), folder / "old")
        new = Checkout.of(flags.new.resolve(), folder / "new")
        cases = lit_cases(old.root, flags.quick)
        cases += compile_cases(old.root, folder, flags.quick)
        cases = [case for case in cases if fnmatchcase(case.name, flags.only)]
        if flags.list or not cases:
            print("\n".join(case.name for case in cases) or f"no case {flags.only}")
            return 0 if cases else 2
        write_inputs(old, folder, {case.name.split()[0] for case in cases})
        return _compare_all(cases, old, new, flags.j)


def _compare_all(cases: Sequence[Case], old: Checkout, new: Checkout, jobs: int) -> int:
    differing = 0
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda case: compare(case, old, new), cases)
        for case, lines in zip(cases, results, strict=True):
            if lines:
                differing += 1
                print(f"DIFFERS {case.name}")
                print("".join(f"    {line}\n" for line in lines), end="", flush=True)
    print(f"{len(cases)} cases, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
