"""The pictures of the guide, `docs/guide/pictures/*.svg`, each drawn by a function.

python -m pcp.tools.pages.guide_pictures            draw them
python -m pcp.tools.pages.guide_pictures --check    fail if they are not what is drawn
"""

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pcp.errors import ConfigError
from pcp.tools.guide.chapters import CHAPTERS, module_of
from pcp.tools.pages.places import GUIDE
from pcp.tools.pages.svg import Axes, svg
from pcp.tools.support.command import Parser, run

FOLDER = GUIDE / "pictures"
BLUE, RED, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#888888"
MEMBERS = (BLUE, RED, GREEN, "#cc79a7")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run("pcp.tools.pages.guide_pictures", _main, argv)


def _main(argv: Sequence[str]) -> None:
    parser = Parser.documented("pcp.tools.pages.guide_pictures", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="DIR")
    flags = parser.parse_args(argv)
    for number in range(1, len(CHAPTERS) + 1):
        path = flags.out / f"{number:02}-{module_of(number)}.svg"
        text = picture(module_of(number))
        if flags.check and (not path.exists() or path.read_text() != text):
            raise ConfigError(f"{path} is not up to date; run: make docs")
        if not flags.check:
            path.write_text(text)


def picture(name: str) -> str:
    """A chapter's picture as SVG text."""

    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        PICTURES[name](axes)

    return svg(draw, name)


# --- what they are made of ---


def _box(axes: Axes, at: tuple[float, float], text: str, colour: str = BLUE) -> None:
    style = {"boxstyle": "round,pad=0.4", "fc": "white", "ec": colour, "lw": 1.6}
    axes.text(*at, text, ha="center", va="center", bbox=style)


def _arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str = GREY,
    bend: float = 0.0,
    gap: int = 20,
) -> None:
    """`gap` is how far from its two places it stays, in points."""
    style = {
        "arrowstyle": "-|>",
        "color": colour,
        "lw": 1.6,
        "shrinkA": gap,
        "shrinkB": gap,
        "connectionstyle": f"arc3,rad={bend}",
    }
    axes.annotate("", end, start, arrowprops=style)


def _bar(axes: Axes, row: float, begin: float, length: float, colour: str) -> None:
    axes.barh(row, length, left=begin, height=0.55, color=colour, alpha=0.75)


def _frame(axes: Axes, right: float, top: float) -> None:
    axes.set_xlim(0, right)
    axes.set_ylim(0, top)


# --- the chapters ---


def agree(axes: Axes) -> None:
    """Three operands, one order of additions, and the same bits on all."""
    _frame(axes, 10, 6)
    for rank, value in enumerate(("0.1", "0.2", "0.3")):
        y = 5 - 2 * rank
        _box(axes, (1.2, y), f"rank {rank}: {value}", MEMBERS[rank])
        _arrow(axes, (1.9, y), (4.9, 3), MEMBERS[rank])
        _box(axes, (8.6, y), "0.6  3f19999a", MEMBERS[rank])
        _arrow(axes, (5.1, 3), (7.7, y), MEMBERS[rank])
    _box(axes, (5, 3), "(0.1 + 0.2) + 0.3", GREY)


def ring(axes: Axes) -> None:
    """Which chunk each rank sends in each step of the reduce-scatter."""
    _frame(axes, 8.4, 4.6)
    for step in range(3):
        axes.text(2.2 + 2 * step, 4.25, f"step {step}", ha="center", color=GREY)
        for rank in range(4):
            y, chunk = 3.5 - rank, (rank - step) % 4
            _box(axes, (2.2 + 2 * step, y), f"chunk {chunk}", MEMBERS[chunk])
    for rank in range(4):
        done = (rank + 1) % 4
        axes.text(0.6, 3.5 - rank, f"rank {rank}", ha="center", va="center")
        _box(axes, (7.7, 3.5 - rank), f"has {done}", MEMBERS[done])


def sockets(axes: Axes) -> None:
    """A ring of connections, each dialled to the right."""
    _frame(axes, 10, 6)
    places = [(2, 1.2), (5, 4.8), (8, 1.2)]
    for rank, place in enumerate(places):
        _arrow(axes, place, places[(rank + 1) % 3], MEMBERS[rank], -0.2, 46)
    for rank, place in enumerate(places):
        _box(
            axes, place, f"rank {rank}\nlistens, dials {(rank + 1) % 3}", MEMBERS[rank]
        )


def survive(axes: Axes) -> None:
    """Members over time: one is lost in epoch 0, two go on in epoch 1."""
    _frame(axes, 10, 4)
    for rank in range(3):
        y = 3.2 - rank
        axes.text(0.1, y, f"rank {rank}", va="center")
        _bar(axes, y, 1.2, 3.2 if rank == 1 else 3.8, MEMBERS[rank])
        if rank != 1:
            _bar(axes, y, 5.6, 4.0, MEMBERS[rank])
    axes.text(4.6, 2.2, "killed", va="center", color=RED)
    axes.text(3.0, 0.35, "epoch 0: members 0 1 2", ha="center", color=GREY)
    axes.text(7.6, 0.35, "epoch 1: members 0 2", ha="center", color=GREY)


def quantise(axes: Axes) -> None:
    """The sum of what was sent, with feedback and without, for a small number."""
    axes.set_axis_on()
    rounds, step, value = np.arange(1, 41), 0.5 / 127, 0.001
    given = value * rounds
    sent = np.round(given / step) * step
    axes.plot(rounds, given, color=GREY, label="given")
    axes.step(rounds, sent, color=BLUE, label="sent, with error feedback")
    axes.plot(rounds, 0 * given, color=RED, label="sent, without")
    axes.set_xlabel("round")
    axes.set_ylabel("sum so far")
    axes.legend(loc="upper left")


def diloco(axes: Axes) -> None:
    """Two workers from one anchor, their mean, and the next anchor."""
    random = np.random.default_rng(3)
    anchor = np.zeros(2)
    for number in range(3):
        ends = []
        for worker in range(2):
            drift = np.array([0.11, 0.05 if worker else -0.05])
            walk = np.cumsum(drift + 0.05 * random.normal(size=(20, 2)), axis=0)
            path = np.vstack([anchor, anchor + walk])
            axes.plot(*path.T, color=MEMBERS[worker], lw=1)
            ends.append(path[-1])
        middle = np.mean(ends, axis=0)
        axes.plot(*np.transpose(ends), ":", color=GREY, lw=1)
        axes.plot(*anchor, "o", color="black", ms=7)
        axes.annotate(f"anchor {number}", anchor, (0, 10), textcoords="offset points")
        anchor = middle
    axes.plot(*anchor, "o", color="black", ms=7)
    axes.annotate("anchor 3", anchor, (-30, 10), textcoords="offset points")


def derivative(axes: Axes) -> None:
    """A program forward, and its cotangents backward."""
    _frame(axes, 10, 5)
    places = {"x": 1.0, "t = tanh(x)": 3.7, "p = t · x": 6.6, "loss": 9.2}
    order = list(places.items())
    for (_, left), (_, right) in pairwise(order):
        _arrow(axes, (left, 3.6), (right, 3.6), BLUE)
        _arrow(axes, (right, 1.4), (left, 1.4), RED)
    for text, x in order:
        _box(axes, (x, 3.6), text)
    for (_, x), text in zip(
        order, ("g·(1 - t²) + g·t", "g · x", "g = 1", "1"), strict=True
    ):
        _box(axes, (x, 1.4), text, RED)


def partition(axes: Axes) -> None:
    """Columns of the first matrix and rows of the second, on two devices."""
    _frame(axes, 12, 5)
    for rank in range(2):
        colour = MEMBERS[rank]
        axes.add_patch(_rectangle(3.0 + 0.9 * rank, 1.2, 0.9, 2.4, colour))
        axes.add_patch(_rectangle(7.0, 2.4 - 1.2 * rank, 1.6, 1.2, colour))
    axes.add_patch(_rectangle(0.6, 1.6, 1.6, 1.6, GREY))
    axes.add_patch(_rectangle(10.0, 1.6, 1.2, 1.6, GREY))
    for x, text in ((1.4, "x"), (3.9, "up, by columns"), (7.8, "down, by rows")):
        axes.text(x, 4.2, text, ha="center")
    axes.text(10.6, 4.2, "all-reduce", ha="center")
    for x, text in ((2.6, "·"), (5.9, "tanh, then ·"), (9.3, "+")):
        axes.text(x, 2.4, text, ha="center", va="center", fontsize=14)
    axes.text(5.9, 0.4, "device 0 is blue, device 1 is orange", ha="center", color=GREY)


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, color=colour, alpha=0.6)


def module(axes: Axes) -> None:
    """A step with its sums behind it, and one with its sums beside it."""
    _frame(axes, 12, 5)
    for text, y in (("outside", 3.9), ("inside", 1.5)):
        axes.text(0.1, y, text, va="center")
    _bar(axes, 4.2, 1.8, 5.0, BLUE)
    _bar(axes, 3.6, 6.8, 4.0, RED)
    _bar(axes, 1.8, 1.8, 5.0, BLUE)
    for begin, length in ((3.2, 1.5), (4.8, 1.5), (6.8, 1.0)):
        _bar(axes, 1.2, begin, length, RED)
    axes.text(1.8, 0.3, "blue: the processor computes; orange: bytes move", color=GREY)


def homes(axes: Axes) -> None:
    """A round: what the shepherd writes, and what the workers do."""
    _frame(axes, 12, 4.4)
    for y, text in ((3.6, "shepherd"), (2.3, "Ada"), (1.0, "Ben")):
        axes.text(0.1, y, text, va="center")
    for x, text in ((2.4, "leases"), (11.0, "commit")):
        _box(axes, (x, 3.6), text, GREY)
    for rank, y in enumerate((2.3, 1.0)):
        _bar(axes, y, 3.0, 4.6 - 0.6 * rank, MEMBERS[rank])
        _bar(axes, y, 7.8, 1.6, MEMBERS[2])
        axes.text(3.2, y, "inner steps", va="center", color="white")
        axes.text(7.95, y, "one sum", va="center", color="white")
        _arrow(axes, (2.4, 3.6), (3.0, y), GREY)
        _arrow(axes, (9.4, y), (11.0, 3.6), GREY)


PICTURES: dict[str, Callable[[Axes], None]] = {
    one.__name__: one
    for one in (
        agree, ring, sockets, survive, quantise,
        diloco, derivative, partition, module, homes,
    )
}  # fmt: skip
"""By the name of a chapter's exercise."""

if __name__ == "__main__":
    sys.exit(main())
