"""Where in the user's code something in a traced PyTorch program comes from."""

import re
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pcp.errors import IRError

_FRAME = re.compile(r'File "(.*)", line (\d+)')

UNKNOWN = "the model"


@cache
def _foreign() -> tuple[str, ...]:
    """Folders whose frames are nobody's own: torch's and ours."""
    import torch

    here = Path(__file__)  # a link, in a checkout
    return ("<", *(str(p.parent) for p in (Path(torch.__file__), here, here.resolve())))


def place(node: Any) -> str:
    """`file:line` of the user's line that made a node of a traced graph."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_foreign())]
    if not (own or frames):
        return UNKNOWN
    path, line = (own or frames)[-1]
    return f"{path}:{line}"


def here() -> str:
    """`file:line` of the user's line that is running."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_foreign()):
            return f"{frame.filename}:{frame.lineno}"
    return UNKNOWN


def line_of(error: BaseException) -> str | None:
    """`file:line` of the user's line that an error came through, if it did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(_foreign())]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def is_called_by_torch() -> bool:
    """Whether torch's own code, not the user's, calls what a function mode sees."""
    import torch

    ours, inside = _foreign()[2:], str(Path(torch.__file__).parent)
    for frame in reversed(traceback.extract_stack()):
        if frame.name != "__torch_function__" and not frame.filename.startswith(ours):
            return frame.filename.startswith(inside)
    return False


def refuse(where: str, what: str) -> IRError:
    """The error to raise at a place of the model."""
    return IRError(f"{where}: {what}")


def innermost(frames: Sequence[tuple[str, str]]) -> str | None:
    """`file:line` of the first of `frames` that is neither torch's nor ours.

    They begin with the innermost, which is the one where all are theirs.
    """
    own = [frame for frame in frames if not frame[0].startswith(_foreign())]
    return ":".join((own or frames)[0]) if frames else None
