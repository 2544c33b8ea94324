"""docs/accuracy.md: how exact elementary functions are, as bounds and as measured."""

from collections.abc import Iterator
from pathlib import Path

from pcp import strict_json
from pcp.passes.legalize.functions.accuracy import (
    CLAIMS,
    COMPLEX,
    COMPLEX_TYPES,
    TYPES,
    Claim,
)
from pcp.tools.pages.places import ROOT

MEASURED = ROOT / "benchmarks" / "accuracy.jsonl"
HEAD = """
A bound is the largest error on targets `cpu` and `cpu:<name>`, in units in the last
place (ulp) of the exact result; 0.5 is a result rounded once. Where a row names
`max(|f|, 1)`, the function has roots that no number hits, and the unit is one of 1
there. Behind a bound stands the largest error that was measured on either target:
over samples of all magnitudes and, where it is **bold**, on `cpu:host` also over all
2³² numbers of f32 or all 2¹⁶ of a 16-bit type.

NaN, infinities, overflow and the signs of zeros are those of C99, Annex F, and of
XLA. `digamma` is NaN at 0 and the negative whole numbers, as XLA's; where it and
`lgamma` go through 0, either sign is right. A subnormal operand may be taken for a
zero of its sign, a result less than twice the least normal number for another such,
and a result within 8 ulp of the largest number may be an infinity.

`sine`, `tan`, `tanh`, `cbrt`, `erf`, `asinh`, `atan` and `sinh` are odd to the bit,
`cosine` and `cosh` even. A `power` with a constant whole exponent up to 16 is a
product, of half an ulp for each factor.

Of f64, targets for GPUs make f32. There, functions other than `sine`, `cosine`, `tan`,
`power`, `atan2` and `cbrt` are the device's own, and have no bound here: OpenCL's and
Vulkan's allow several ulp, and errors that grow with x. For Vulkan and Metal, though,
`remainder` and `log_plus_one` are ours. Over 2,053 numbers of f32 on Mesa's software
device for Vulkan, what is made of its exponential function erred by up to 61 ulp, and
`erfc` by 88; `cbrt`, `log` and `lgamma` have no digit right of a subnormal number.
"""
COMPLEX_HEAD = """\
## Complex numbers

Here a bound is on the size of the error over the size of the exact result, in the
spacing of the type's numbers at 1: the smaller of two parts may lose all its digits to
the larger one. Operands were drawn of all sizes at which the result is a number. The
root is numpy's at zeros and infinities, on both sides of its cut."""

COMMANDS = """
`tests/passes/legalize/test_accuracy.py` holds the bounds on samples, its slow cases on
all numbers. Measured with

    python benchmarks/accuracy.py --keep benchmarks/accuracy.jsonl
    python benchmarks/accuracy.py --types 'complex<f32>,complex<f64>' \\
        --keep benchmarks/accuracy.jsonl
    python benchmarks/accuracy.py --types f64 --samples 2003 \\
        --keep benchmarks/accuracy.jsonl
    python benchmarks/accuracy.py --exhaustive --types f32 --targets cpu:host \\
        --only tanh,log --keep benchmarks/accuracy.jsonl
"""


def accuracy_page() -> Iterator[str]:
    """The table of `passes/legalize/functions/accuracy.py`, with what was measured."""
    yield "# How exact functions are"
    yield "<!-- Written by `make docs` from passes/legalize/functions/accuracy.py. -->"
    yield HEAD
    found = measured(MEASURED)
    head = f"| op | where | {' | '.join(TYPES)} |\n|{' --- |' * (2 + len(TYPES))}"
    yield "\n".join([head, *(_row(claim, found) for claim in CLAIMS)])
    yield COMPLEX_HEAD
    types = " | ".join(f"`{t}`" for t in COMPLEX_TYPES)
    head = f"| op | {types} |\n|{' --- |' * 3}"
    yield "\n".join([head, *(_complex_row(op, found) for op in COMPLEX)])
    yield COMMANDS


def measured(path: Path) -> dict[tuple[str, str, str], tuple[bool, float]]:
    """By op, type and domain: whether over all numbers, and the largest error in ulp.

    The larger of what was found on targets; of all numbers, where that is of one.
    """
    found: dict[tuple[str, str, str], tuple[bool, float]] = {}
    for text in path.read_text().splitlines():
        line = strict_json.parse(text)
        if line["measured"] == "all" and not is_complete(line):
            continue
        for domain, (ulp, _) in line["worst"].items():
            key = line["op"], line["type"], domain
            every, most = found.get(key, (False, 0.0))
            found[key] = every or line["measured"] == "all", max(most, ulp)
    return found


def is_complete(line: dict) -> bool:
    """Whether all numbers were measured, or the half that the other one mirrors."""
    return line["next"] >= 1 << (15 if line["type"].endswith("16") else 31)


def _complex_row(op: str, found: dict[tuple[str, str, str], tuple[bool, float]]) -> str:
    cells = []
    for element, bound in COMPLEX[op].items():
        one = found.get((op, element, ""))
        cells.append(f"{bound:g}" + (f" ({one[1]:.2f})" if one else ""))
    return f"| `{op}` | {' | '.join(cells)} |"


def _row(claim: Claim, found: dict[tuple[str, str, str], tuple[bool, float]]) -> str:
    name = claim.op.removeprefix("chlo.")
    where = claim.domain + (", of max(\\|f\\|, 1)" if claim.least else "")
    cells = []
    for element in TYPES:
        cell = f"{claim.ulp[element]:g}"
        if one := found.get((claim.op, element, claim.domain)):
            every, ulp = one
            cell += f" (**{ulp:.2f}**)" if every else f" ({ulp:.2f})"
        cells.append(cell)
    return f"| `{name}` | {where} | {' | '.join(cells)} |"
