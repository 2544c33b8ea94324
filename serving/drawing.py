"""Which tokens a program draws by itself, and what it said of them.

A program that samples (`frontends/decoders/sampler`) has functions `largest_R` and
`sample_R`, of R rows of logits. So logits stay on the device, and of a vocabulary that
is cut over ranks seven numbers of a row go to rank 0. It draws what has temperature,
seed, top-k, top-p and min-p. A mask, biases, penalties, the most probable tokens, and
cuts of a vocabulary that lies on several ranks are numpy's, from the logits
(`sampling`, whose tokens these are), and so are rows of which a program is not sure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pcp.decoder_phase import ASKED, FIELDS, SAMPLERS, sampler
from pcp.serving.interface import Sampled, Sampling
from pcp.serving.sampling import NOT_FINITE, heat

GREEDY, DRAWN = SAMPLERS
_MOST = (1 << 31) - 1
_OTHERS = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "top_logprobs": 0,
}


@dataclass(frozen=True)
class Row:
    """What is sampled of a row of logits, `known` tokens into a request."""

    row: int
    known: int
    sampling: Sampling
    masked: bool


@dataclass(frozen=True)
class Draw:
    """One function of `SAMPLERS`, and what it is asked: `ASKED` of each row in turn."""

    kind: str
    asked: tuple[int, ...] = ()

    def name(self, rows: int) -> str:
        """The function's."""
        return sampler(self.kind, rows)

    @property
    def numbers(self) -> np.ndarray:
        """[R, len(ASKED)]."""
        return np.array(self.asked, np.int32).reshape(-1, len(ASKED))


def draw_of(wanted: Sequence[Row], rows: int, parts: int) -> Draw | None:
    """How a program draws some of these, of `rows` rows; None where it draws none.

    Of several parts of the vocabulary it is all of them or none.
    """
    found = [each for each in wanted if _drawable(each, parts)]
    if not found or (parts > 1 and len(found) < len(wanted)):
        return None
    if all(not each.sampling.temperature for each in found):
        return Draw(GREEDY)
    asked = np.zeros((rows, len(ASKED)), np.int32)
    for each in found:
        asked[each.row] = _asked(each)
    return Draw(DRAWN, tuple(asked.ravel().tolist()))


def _drawable(row: Row, parts: int) -> bool:
    sampling = row.sampling
    plain = not row.masked and not sampling.logit_bias
    plain = plain and all(getattr(sampling, n) == v for n, v in _OTHERS.items())
    cut = bool(sampling.top_k) or sampling.top_p < 1 or bool(sampling.min_p)
    return plain and (parts == 1 or not cut or not sampling.temperature)


def _asked(row: Row) -> np.ndarray:
    """`ASKED` of a row, as their bits."""
    sampling = row.sampling
    low, high = sampling.seed & 0xFFFFFFFF, sampling.seed >> 32
    heated = heat(sampling) if sampling.temperature else 0.0
    floats = (heated, sampling.top_p, sampling.min_p)
    temperature, top_p, min_p = np.array(floats, np.float32).view(np.uint32)
    ranks = min(sampling.top_k, _MOST)  # more than there are tokens is as good as all
    found = (temperature, low, high, row.known, ranks, top_p, min_p)
    return np.array(found, np.uint32).view(np.int32)


@dataclass(frozen=True)
class Rows:
    """What a call gives of its rows: logits [R, V], and what was drawn of them.

    `drawn` is [R, M, len(FIELDS)], of M parts of the vocabulary.
    """

    logits: Callable[[], np.ndarray]
    drawn: np.ndarray | None = None

    def sampled(self, row: Row, slot: int) -> Sampled | None:
        """The token that the program drew; None where numpy has to."""
        if self.drawn is None:
            return None
        parts = self.drawn.shape[1]
        if not _drawable(row, parts):
            return None
        return _joined(self.drawn[row.row], slot)


def _joined(parts: np.ndarray, slot: int) -> Sampled | None:
    """The token of all parts of a vocabulary, of which each says its `FIELDS`."""
    said = dict(zip(FIELDS, parts.T, strict=True))
    if not said["finite"].all():
        return Sampled(slot, NOT_FINITE, float("nan"))
    if not said["sure"].all():
        return None
    best = int(np.argmax(said["value"]))
    top = said["largest"].max()
    total = np.log((said["total"] * np.exp(said["largest"] - top)).sum())
    return Sampled(
        slot, int(said["token"][best]), float(said["logit"][best] - top - total)
    )
