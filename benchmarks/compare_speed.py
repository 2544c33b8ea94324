"""Whether two checkouts are equally fast: a benchmark of each, in turns.

    python benchmarks/compare_speed.py OLD NEW partition_speed.py --layers 2
    python benchmarks/compare_speed.py OLD NEW collectives.py --undisturbed --sizes 1 8
    python benchmarks/compare_speed.py OLD NEW --turns 5 step.py --contestants pcp

Each turn runs `benchmarks/SCRIPT` of both with this interpreter, the other one first
in every second turn. Numbers are compared that stand in the same place of the same
line. Prints each line with the median over the turns of NEW / OLD instead of its
numbers: below 1 is faster where the line gives a time. Behind it stands half of the
range in which the middle half of the turns lies: a difference of less says nothing. A
number that all runs print alike, such as a size, stays itself. Only lines that both
print are compared.
"""

import argparse
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

TIMEOUT_S = 1200
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")

#: The words of a line, and how many lines of the same words came before it.
Key = tuple[str, int]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("script", help="a file of both checkouts' benchmarks/")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="what it is given")
    args = parser.parse_args()
    command = [args.script, *args.args]
    turns = []
    for turn in range(args.turns):
        order = (args.old, args.new) if turn % 2 == 0 else (args.new, args.old)
        measured = {checkout: numbers(output(checkout, command)) for checkout in order}
        turns.append((measured[args.old], measured[args.new]))
        print(f"turn {turn + 1} of {args.turns} done", file=sys.stderr)
    for line in ratios(turns):
        print(line)
    return 0


def output(checkout: Path, command: list[str]) -> str:
    """What a benchmark of a checkout prints, with that checkout's `pcp`."""
    checkout = checkout.resolve()
    done = subprocess.run(
        [sys.executable, checkout / "benchmarks" / command[0], *command[1:]],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_S,
        text=True,
        check=True,
    )
    return done.stdout


def numbers(text: str) -> dict[Key, list[float]]:
    """The numbers of each line, by its words."""
    found: dict[Key, list[float]] = {}
    for line in text.splitlines():
        words = " ".join(_NUMBER.sub(" # ", line).split())
        same = sum(words == other for other, _ in found)
        found[words, same] = [
            float(each.replace(",", "")) for each in _NUMBER.findall(line)
        ]
    return found


def ratios(
    turns: list[tuple[dict[Key, list[float]], dict[Key, list[float]]]],
) -> list[str]:
    """Each line that every run printed, with median ratios in place of its numbers."""
    lines = []
    for key in turns[0][1]:
        if not all(key in run for turn in turns for run in turn):
            continue
        pairs = (zip(old[key], new[key], strict=True) for old, new in turns)
        columns = zip(*pairs, strict=True)
        shown = iter([_shown(column) for column in columns])
        lines.append(re.sub("#", lambda _, each=shown: next(each), key[0]))
    return lines


def _shown(pairs: Sequence[tuple[float, float]]) -> str:
    """The median of new / old, and its spread; a number that all printed, itself."""
    if len({number for pair in pairs for number in pair}) == 1:
        return f"{pairs[0][0]:g}"
    found = [_ratio(*pair) for pair in pairs]
    if len(found) < 3:
        return f"{median(found):.3f}"
    low, _, high = quantiles(found, n=4, method="inclusive")
    return f"{median(found):.3f}±{(high - low) / 2:.3f}"


def _ratio(old: float, new: float) -> float:
    """new / old; two zeros are alike."""
    return new / old if old else (1.0 if new == old else math.inf)


if __name__ == "__main__":
    raise SystemExit(main())
