"""Largest errors of elementary functions, in ulp, as docs/accuracy.md has them.

    python benchmarks/accuracy.py --only sine,erf --types f32 --targets cpu:host
    python benchmarks/accuracy.py --exhaustive --only tanh --keep found.jsonl
    python benchmarks/accuracy.py --keep benchmarks/accuracy.jsonl
    python benchmarks/accuracy.py --types 'complex<f32>,complex<f64>' \\
        --keep benchmarks/accuracy.jsonl
    python -m pcp.tools.pages.docs

A line for each op, type and target: the largest error in each interval that
`passes/legalize/functions/accuracy.py` has a bound for, and where it lies. With
`--exhaustive` all bit patterns of one operand are measured, 2^32 of f32 in chunks of
2^22; of an odd or even function the negative half is compared with the other one, bit
by bit. With `--keep` what was measured is kept, chunk by chunk, and not measured again.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.accuracy import complexes  # noqa: E402
from helpers.accuracy.errors import counted, suspects  # noqa: E402
from helpers.accuracy.exact import BINARY, EVEN, ODD  # noqa: E402
from helpers.accuracy.points import TYPES, operands  # noqa: E402
from helpers.accuracy.programs import function_name, lowered, text  # noqa: E402
from helpers.servers import compile_cache  # noqa: E402

from pcp.compiler.emission import target_text  # noqa: E402
from pcp.compiler.targets import find  # noqa: E402
from pcp.dialect.context import parse  # noqa: E402
from pcp.passes.legalize.functions.accuracy import CLAIMS, claims_of  # noqa: E402

CHUNK = 1 << 22
Function = Callable[[list[np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class Job:
    """Ops on one type and target; `count` is the length of their arrays."""

    ops: tuple[str, ...]
    element: str
    target: str
    count: int

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Each op as the target has it, in this process; one module for all of them."""
        import iree.runtime as rt

        target = find(self.target)
        flags = (f"--iree-hal-target-backends={target.backend}", *target.all_flags)
        program = lowered(text(self.ops, self.element, self.count), self.target)
        content = compile_cache.compile_text(program, flags, timeout=600)
        module = rt.load_vm_flatbuffer(content, driver="local-sync")
        for op in self.ops:
            yield op, on_host(module[function_name(op)])


def on_host(function: Callable) -> Function:
    """From arrays to an array of the same type."""

    def run(given: list[np.ndarray]) -> np.ndarray:
        return np.array(function(*given).to_host()).view(given[0].dtype)

    return run


class Worst:
    """The largest error of each claim so far, and where it lies."""

    def __init__(self, op: str, found: dict | None = None) -> None:
        self.claims = claims_of(op)
        self.found = found or {}

    @property
    def least(self) -> float:
        """No error below it changes anything; the smallest of all claims' worst."""
        return min(self.found.get(c.domain, [-1.0])[0] for c in self.claims)

    def take(self, given: list[np.ndarray], got: np.ndarray) -> None:
        """Look through the results of one run."""
        for claim in self.claims:
            inside = counted(claim, given, got)
            place = int(np.argmax(inside))
            if inside[place] > self.found.get(claim.domain, [-1.0])[0]:
                where = [float(x[place]) for x in given]
                self.found[claim.domain] = [round(float(inside[place]), 3), where]


def sampled(op: str, run: Function, job: Job) -> dict:
    """Over all magnitudes, with the special values at both ends."""
    given = operands(TYPES[job.element], 2 if op in BINARY else 1, job.count)
    worst = Worst(op)
    worst.take(given, run(given))
    return worst.found


def exhaustive(op: str, run: Function, job: Job, state: dict) -> Iterator[dict]:
    """The state after each chunk: `next` pattern, and the `worst` errors so far."""
    dtype = TYPES[job.element]
    word = np.dtype(f"u{dtype.itemsize}")
    patterns = 1 << 8 * dtype.itemsize
    end = patterns // 2 if op in ODD | EVEN else patterns
    worst = Worst(op, state.get("worst"))
    for start in range(state.get("next", 0), end, job.count):
        bits = np.arange(start, start + job.count, dtype=np.uint64).astype(word)
        given = [bits.view(dtype)]
        got = run(given)
        if end < patterns:
            _check_mirrored(op, run, bits, got)
        place = suspects(op, given, got, worst.least)
        if place.size:
            worst.take([x[place] for x in given], got[place])
        yield {"next": start + job.count, "worst": worst.found}


def _check_mirrored(op: str, run: Function, bits: np.ndarray, got: np.ndarray) -> None:
    """That f(-x) is ±f(x) to the bit, where it is a number."""
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    back = run([(bits | sign).view(got.dtype)]).view(bits.dtype)
    want = got.view(bits.dtype) ^ (sign if op in ODD else bits.dtype.type(0))
    unlike = (back != want) & ~np.isnan(got.astype(np.float64))
    if unlike.any():
        raise SystemExit(f"{op}: not mirrored at {bits[unlike][0]:#x}")


class Kept:
    """Lines of JSON by op, type, target and how it was measured."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.lines = path, dict[str, dict]()
        if path and path.exists():
            for line in path.read_text().splitlines():
                found = json.loads(line)
                self.lines[_key(found)] = found

    def get(self, key: dict) -> dict:
        """What is known of it."""
        return self.lines.get(_key(key), {})

    def put(self, line: dict) -> None:
        """Add or replace a line."""
        self.lines[_key(line)] = line
        if self.path:
            ordered = [json.dumps(self.lines[key]) for key in sorted(self.lines)]
            self.path.write_text("\n".join(ordered) + "\n")


def _key(line: dict) -> str:
    return " ".join(str(line[k]) for k in ("op", "type", "target", "measured"))


def main() -> None:
    """A line for each op, type and target."""
    parser = argparse.ArgumentParser(description="Errors of elementary functions.")
    parser.add_argument("--only", default=",".join(dict.fromkeys(c.op for c in CLAIMS)))
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--targets", default="cpu,cpu:host")
    parser.add_argument("--samples", type=int, default=10_007)
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--keep", type=Path)
    flags = parser.parse_args()
    compile_cache.install(ROOT / ".pytest_cache" / "pcp", verify=False)
    kept = Kept(flags.keep)
    for element, target in product(flags.types.split(","), flags.targets.split(",")):
        if element in complexes.TYPES:
            of_complex(element, target, flags.samples, kept)
            continue
        for line, seconds in lines(element, target, flags, kept):
            print(json.dumps(line), f"{seconds:.0f} s", flush=True)


def of_complex(element: str, target: str, count: int, kept: Kept) -> None:
    """The errors of functions of complex numbers, over all sizes of operands."""
    import iree.runtime as rt

    row = find(target)
    flags = (f"--iree-hal-target-backends={row.backend}", *row.all_flags)
    text_ = target_text(parse(complexes.program(element, count)), row).plain
    content = compile_cache.compile_text(text_, flags, timeout=600)
    module: Any = rt.load_vm_flatbuffer(content, driver="local-sync")
    for op in complexes.FUNCTIONS:
        worst = (-1.0, [0.0, 0.0])
        for size in complexes.SIZES[element]:
            z = complexes.points(element, size, count)
            found = complexes.errors(op, z, np.array(module[op](z).to_host()))
            place = int(np.argmax(found))
            where = [float(z[place].real), float(z[place].imag)]
            worst = max(worst, (round(float(found[place]), 3), where))
        line = {"op": op, "type": element, "target": target, "measured": "some"}
        line |= {"points": count, "worst": {"": list(worst)}}
        kept.put(line)
        print(json.dumps(line), flush=True)


def lines(
    element: str, target: str, flags: argparse.Namespace, kept: Kept
) -> Iterator[tuple[dict, float]]:
    """What is measured of each op, and how long it took."""
    count = flags.samples
    ops = tuple(op for op in flags.only.split(","))
    if flags.exhaustive:
        count = min(CHUNK, 1 << (8 * TYPES[element].itemsize - 1))
        ops = tuple(op for op in ops if op not in BINARY)
    job = Job(ops, element, target, count)
    for op, run in job.functions():
        start = time.monotonic()
        line = {"op": op, "type": element, "target": target}
        if flags.exhaustive:
            line["measured"] = "all"
            for state in exhaustive(op, run, job, kept.get(line)):
                kept.put({**line, **state})
            line = kept.get(line)
        else:
            found = sampled(op, run, job)
            line |= {"measured": "some", "points": count, "worst": found}
            kept.put(line)
        yield line, time.monotonic() - start


if __name__ == "__main__":
    main()
