"""The chapters of the guide, and the exercise of each as a reader gets it.

An exercise is a module of `pcp.tools.guide.answers`: the worked answer, with lines
between `# (answer` and `# answer)`. A reader's copy has an error in their place, so
the question and the answer are one text.
"""

import re
from collections.abc import Iterator
from importlib.resources import files

from pcp.errors import UsageError, nearest

CHAPTERS = {
    "agree": "Why machines must agree on a sum",
    "ring": "A ring all-reduce by hand",
    "sockets": "Build your own collective",
    "survive": "Kill it, and make it survive",
    "quantise": "A sum in fewer bytes",
    "diloco": "DiLoCo on paper and in code",
    "derivative": "Write a derivative rule",
    "partition": "Partition a matrix product",
    "module": "Put the sum inside the module",
    "homes": "Train across two homes",
}
"""The module of a chapter's exercise, and the chapter's title, in order."""

ANSWER = re.compile(r"( *)# \(answer\n.*?# answer\)\n", re.DOTALL)
HOLE = 'raise NotImplementedError("your turn")'


def chapter(text: str) -> int:
    """The number of a chapter, from 1; UsageError if there is none."""
    numbers = [str(one) for one in range(1, len(CHAPTERS) + 1)]
    if text not in numbers:
        raise UsageError(
            f"no chapter {text!r}: there are 1 to {len(CHAPTERS)}"
            f"{'.' + nearest(text, numbers) if nearest(text, numbers) else ''}"
        )
    return int(text)


def file_of(number: int) -> str:
    """The name of a reader's file: `exercise_03_` and the module's name."""
    return f"exercise_{number:02}_{module_of(number)}.py"


def module_of(number: int) -> str:
    """The last name of the module with a chapter's answer."""
    return list(CHAPTERS)[number - 1]


def page_of(number: int) -> str:
    """The chapter's page, below the folder `docs`."""
    return f"guide/{number:02}-{module_of(number)}.md"


def answer(number: int) -> str:
    """The worked answer, as text."""
    package = files("pcp.tools.guide.answers")
    return package.joinpath(f"{module_of(number)}.py").read_text()


def exercise(number: int) -> str:
    """The answer with holes: what a reader begins with."""
    return ANSWER.sub(rf"\1{HOLE}\n", answer(number))


def exercises() -> Iterator[tuple[str, str]]:
    """File name and text of every exercise."""
    for number in range(1, len(CHAPTERS) + 1):
        yield file_of(number), exercise(number)
