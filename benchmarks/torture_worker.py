"""One process of benchmarks/torture.py: it judges the programs that it is named.

A line of standard input is a section and a name; lines of JSON on standard output say
what is being done (`stage`) and then what came of it (`outcome`). After a crash or a
hang the last stage tells where.

With `--elsewhere FOLDER` programs run on another machine: what `benchmarks/gpu_run.py`
needs is written there, and once its results lie there they are judged.
"""

import argparse
import hashlib
import json
import os
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torture_programs
from torture_programs import NotForJax, Program

import pcp
from pcp.bundle import Bundle
from pcp.compiler import iree
from pcp.compiler.targets import find
from pcp.errors import CompileError, PcpError, RuntimeFault
from pcp.runtime.memory.dtypes import bits_dtype
from pcp.runtime.program.executor import Device, open_device

#: Seconds that one run of iree-compile may take.
COMPILE_S = 240


class Judge:
    """Compiles and runs programs for each target; `say` is told the stages."""

    def __init__(
        self,
        targets: list[str],
        cache: Path | None,
        turns: bool,
        say: Callable[[str], None],
        elsewhere: Path | None = None,
    ) -> None:
        self.targets = targets
        self.cache = cache
        self.turns = turns
        self.say = say
        self.elsewhere = elsewhere
        self.device: Device = open_device("local-task")

    def outcome(self, name: str, program: Program) -> dict[str, str]:
        """The worst of all targets, as `outcome`, `target` and `message`."""
        turn = zlib.crc32(name.encode()) % len(self.targets)
        targets = self.targets[turn : turn + 1] if self.turns else self.targets
        found = [self._on(name, program, target) for target in targets]
        return min(found, key=lambda f: SEVERITY.index(f["outcome"]))

    def _on(self, name: str, program: Program, target: str) -> dict[str, str]:
        try:
            self.say(f"compile for {target}")
            if self.elsewhere is None:
                bundle = self._bundle(program, target)
                self.say(f"run on {target}")
                ours = self._run(program, bundle)
            else:
                place = self.elsewhere / _key(target, name)
                if not place.with_suffix(".json").exists():
                    write(place, self._bundle(program, target), program)
                    return _found("prepared", target, place.name)
                ours = read(place, program)
        except RuntimeFault as error:
            return _found("fault", target, error)
        except Elsewhere as error:
            return _found(error.outcome, target, error)
        except PcpError as error:
            return self._refused(program, target, error)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            return _found("raised", target, f"{where}: {type(error).__name__}: {error}")
        wrong = program.difference(ours)
        return _found("wrong" if wrong else "equal", target, wrong)

    def _bundle(self, program: Program, target: str) -> Bundle:
        return pcp.compile(
            program.module(),
            target,
            mode=program.mode,
            cache=self.cache,
            jobs=1,
            timeout=COMPILE_S,
        )

    def _run(self, program: Program, bundle: Bundle) -> list[np.ndarray]:
        with pcp.Program.load(bundle, self.device) as loaded:
            results = loaded[program.function](*program.arguments)
            results = results if isinstance(results, tuple) else (results,)
            return [np.array(x) for x in results]

    def _refused(
        self, program: Program, target: str, error: PcpError
    ) -> dict[str, str]:
        """By us, where iree-compile alone takes the program; else by IREE."""
        self.say(f"iree-compile alone for {target}")
        row = find(target)
        flags = (f"--iree-hal-target-backends={row.backend}", *row.all_flags)
        try:
            iree.compile_text(program.raw(), flags, timeout=COMPILE_S)
        except CompileError as alone:
            who = "iree" if isinstance(error, CompileError) else "both"
            return _found(who, target, f"{error} [alone: {alone}]")
        return _found("ours", target, error)


class Elsewhere(Exception):
    """What came of a program on the other machine, when no results did."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def write(place: Path, bundle: Bundle, program: Program) -> None:
    """The bundle and its arguments, as bits, for `benchmarks/gpu_run.py`."""
    inputs = bundle.manifest.function(program.function).inputs
    arguments = {
        str(i): np.ascontiguousarray(x).view(bits_dtype(spec.dtype)).reshape(x.shape)
        for i, (x, spec) in enumerate(zip(program.arguments, inputs, strict=True))
    }
    np.savez(place.with_suffix(".in.npz"), **arguments)  # pyright: ignore[reportArgumentType]
    place.with_suffix(".function").write_text(program.function)
    bundle.write(place.with_suffix(".pcp"))


def read(place: Path, program: Program) -> list[np.ndarray]:
    """The results; `Elsewhere` when there are none."""
    found = json.loads(place.with_suffix(".json").read_text())
    if found["outcome"] != "ran":
        raise Elsewhere(found["outcome"], found["message"])
    with np.load(place.with_suffix(".out.npz")) as results:
        bits = [results[str(i)] for i in range(len(results))]
    return [
        x.view(y.dtype).reshape(x.shape) if x.dtype.itemsize == y.itemsize else x
        for x, y in zip(bits, program.expected, strict=True)
    ]


def _key(target: str, name: str) -> str:
    return hashlib.sha256(f"{target} {name}".encode()).hexdigest()[:16]


#: What may come of a program, the worst first.
SEVERITY = (
    "wrong",
    "crash",
    "fault",
    "raised",
    "hung",
    "ours",
    "both",
    "iree",
    "skipped",
    "prepared",
    "equal",
)


def _found(outcome: str, target: str, message: object) -> dict[str, str]:
    text = " ".join(str(message).split())[:600]
    return {"outcome": outcome, "target": target, "message": text}


def main() -> None:
    """Answer lines until there are no more."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", default="cpu,cpu:host")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--elsewhere", type=Path)
    options = parser.parse_args()
    torture_programs.configure()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed is no answer

    def say(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    targets = options.targets.split(",")
    judge = Judge(
        targets,
        options.cache,
        options.turns,
        lambda s: say({"stage": s}),
        options.elsewhere,
    )
    sections: dict[str, torture_programs.Section] = {}
    for line in sys.stdin:
        section, _, name = line.rstrip("\n").partition(" ")
        if section not in sections:
            sections[section] = torture_programs.SECTIONS[section]()
        say({"stage": "jax"})
        begun = time.monotonic()
        try:
            found = judge.outcome(name, sections[section][name]())
        except NotForJax as error:
            found = _found("skipped", "", error)
        seconds = round(time.monotonic() - begun, 2)
        say({"section": section, "name": name, **found, "seconds": seconds})


if __name__ == "__main__":
    main()
