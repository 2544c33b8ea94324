"""Other people's programs through pcp and IREE, each against what JAX makes of it.

    python benchmarks/torture.py --sample 300            # of all sections
    python benchmarks/torture.py --keep torture.jsonl    # all; again to go on
    python benchmarks/torture.py --keep torture.jsonl --show
    python benchmarks/torture.py --keep torture.jsonl --again wrong,fault
    python benchmarks/torture.py --only 'lax scatter'
    python benchmarks/torture.py --programs list --targets sm_90a --elsewhere FOLDER

A program is compiled for `cpu` and `cpu:host` and run; integers and booleans have to be
JAX's, floats within a tolerance (see torture_programs). What comes of it:

    equal     JAX's numbers on all targets
    wrong     others
    crash     the process ended
    fault     an error at run time
    raised    an error that is none of pcp.errors
    hung      no answer within --limit seconds
    ours      refused by pcp, though iree-compile alone takes it
    both      refused by pcp, and by iree-compile alone, too
    iree      refused by iree-compile, with pcp's passes and alone
    skipped   JAX itself does not run it here
    prepared  to be run elsewhere

With --elsewhere bundles and arguments are written to a folder; after
`benchmarks/gpu_run.py FOLDER` on a machine with the device the same command judges.
Programs run one after the other in a process that is started again when it ends.
"""

import argparse
import json
import os
import random
import re
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUTCOMES = "equal wrong crash fault raised hung ours both iree skipped prepared".split()


class Worker:
    """A process of torture_worker.py, and the lines that it says."""

    def __init__(self, options: argparse.Namespace) -> None:
        command = [sys.executable, str(HERE / "torture_worker.py")]
        command += ["--targets", options.targets]
        if options.cache:
            command += ["--cache", str(options.cache)]
        command += ["--turns"] if options.turns else []
        if options.elsewhere:
            command += ["--elsewhere", str(options.elsewhere)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )
        self._limit = options.limit
        self._rest = b""

    def judge(self, section: str, name: str) -> dict[str, Any]:
        """What came of a program; a process that crashed or hung is ended."""
        assert self._process.stdin
        stage = "start"
        self._process.stdin.write(f"{section} {name}\n".encode())
        self._process.stdin.flush()
        begun = time.monotonic()
        for line in self._lines(begun + self._limit):
            if "outcome" in line:
                return line
            stage = line["stage"]
        hung = self._process.poll() is None and time.monotonic() - begun >= self._limit
        self.stop()
        ended = "hung" if hung else f"ended with {self._process.returncode}"
        found = {"outcome": "hung" if hung else "crash", "message": f"{stage}: {ended}"}
        seconds = round(time.monotonic() - begun, 2)
        return {"section": section, "name": name, "seconds": seconds, **found}

    def _lines(self, until: float) -> Iterator[dict[str, Any]]:
        """Lines as they come, until `until` or the end of the process."""
        assert self._process.stdout
        out = self._process.stdout.fileno()
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                yield json.loads(line)
                continue
            if not select.select([out], [], [], max(0.0, until - time.monotonic()))[0]:
                return
            if not (more := os.read(out, 1 << 16)):
                return
            self._rest += more

    @property
    def running(self) -> bool:
        """Whether it takes another program."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def judged(
    programs: Iterable[tuple[str, str]], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """What came of each program, in order."""
    worker = Worker(options)
    try:
        for section, name in programs:
            if not worker.running:
                worker = Worker(options)
            yield worker.judge(section, name)
    finally:
        worker.stop()


def listed(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The programs to judge, in an order drawn by the seed."""
    import torture_programs

    torture_programs.configure()
    if options.programs:
        lines = options.programs.read_text().splitlines()
        return [(s, n) for s, _, n in (line.partition(" ") for line in lines)]
    found = [
        (section, name)
        for section in options.sections.split(",")
        for name in torture_programs.SECTIONS[section]()
    ]
    random.Random(options.seed).shuffle(found)
    if options.only:
        found = [f for f in found if re.search(options.only, " ".join(f))]
    return found[: options.sample]


def kept(path: Path | None) -> dict[tuple[str, str], dict[str, Any]]:
    """The last line about each program in a file of an earlier run."""
    if path is None or not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {(line["section"], line["name"]): line for line in lines}


def table(results: Iterable[dict[str, Any]]) -> str:
    """Counts of outcomes by section."""
    counts: dict[str, Counter[str]] = {}
    for line in results:
        counts.setdefault(line["section"], Counter())[line["outcome"]] += 1
    counts["all"] = sum(counts.values(), Counter())
    shown = [o for o in OUTCOMES if counts["all"][o]]
    rows = [["", *shown, "sum"]]
    for section, found in counts.items():
        rows.append([section, *(str(found[o]) for o in shown), str(found.total())])
    return "\n".join(
        row[0].ljust(10) + "".join(cell.rjust(9) for cell in row[1:]) for row in rows
    )


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join((__doc__ or "").splitlines()[1:]),
    )
    parser.add_argument("--sections", default="autodiff,harvest,lax,ops,scatters")
    parser.add_argument("--targets", default="cpu,cpu:host")
    parser.add_argument(
        "--turns", action="store_true", help="each program for one of the targets"
    )
    parser.add_argument("--sample", type=int, help="so many programs, by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="a regular expression: 'section name'")
    parser.add_argument("--programs", type=Path, help="a file: lines 'section name'")
    parser.add_argument("--elsewhere", type=Path, help="a folder; see above")
    parser.add_argument("--keep", type=Path, help="results as JSON lines; goes on")
    parser.add_argument("--again", help="judge again what has these outcomes")
    parser.add_argument("--cache", type=Path, help="a folder for compiled modules")
    parser.add_argument("--limit", type=float, default=600, help="seconds a program")
    parser.add_argument("--show", action="store_true", help="only print the table")
    return parser.parse_args()


def main() -> None:
    """Judge, print what is not equal, then the table."""
    options = parsed()
    results = kept(options.keep)
    programs: list[tuple[str, str]] = []
    if not options.show:
        again = options.again.split(",") if options.again else []
        programs = [
            p
            for p in (list(results) if again else listed(options))
            if p not in results or results[p]["outcome"] in again
        ]
    for line in judged(programs, options):
        results[line["section"], line["name"]] = line
        if options.keep:
            with options.keep.open("a") as file:
                file.write(json.dumps(line) + "\n")
        if line["outcome"] not in ("equal", "skipped", "prepared"):
            where = line.get("target", "")
            print(f"{line['outcome']} {line['section']} {line['name']} {where}")
            print(f"    {line['message']}", flush=True)
    print(table(results.values()))


if __name__ == "__main__":
    main()
