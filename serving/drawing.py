"""Which tokens a program draws by itself, and what it said of them.

A program that samples (`frontends/decoders/sampler`) has functions `largest_R`,
`sample_R` and `adjust_R`, of R rows of logits. So logits stay on the device, and of a
vocabulary that is cut over ranks few numbers of a row go to rank 0: seven, and the most
probable tokens where somebody asks for them. Biases, penalties and masks are changes of
few logits, and a bit of each; they are the definition's (`sampling.changes`). Cuts of a
vocabulary that lies on several ranks are numpy's, from the logits (`sampling`, whose
tokens these are), and so are rows of which a program is not sure.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pcp.decoder_phase import ASKED, CHANGED, CHANGES, FIELDS, SAMPLERS, sampler
from pcp.serving.interface import Sampled, Sampling
from pcp.serving.sampling import (
    NOT_FINITE,
    History,
    changes,
    heat_of,
    leaves_logits,
    most_probable,
)

GREEDY, DRAWN = SAMPLERS
_MOST = (1 << 31) - 1
_NUMBERS = 1 + len(CHANGES)
_LISTED = 2
"""Numbers of a token among the most probable ones: it, and its logit."""


@dataclass(frozen=True)
class LogitsRow:
    """What is sampled of a row of logits, behind the tokens of a request so far."""

    row: int
    history: History
    sampling: Sampling
    mask: bytes | None = None


@dataclass(frozen=True)
class Change:
    """How a row's logits are adjusted: a bit of each token, and `CHANGES` of some.

    `numbers` has a changed token's number and the bits of `CHANGES`, of each in turn,
    as bytes of 32-bit integers. Without a mask there are no bits.
    """

    row: int
    bits: bytes
    numbers: bytes

    @classmethod
    def of(cls, row: LogitsRow) -> "Change | None":
        """What a request wants; None where it leaves all logits as they are."""
        if row.mask is None and leaves_logits(row.sampling):
            return None
        tokens, numbers = changes(row.sampling, row.history)
        found = np.zeros((len(tokens), _NUMBERS), np.int32)
        found[:, 0] = tokens
        found[:, 1:] = numbers.view(np.int32)
        bits = row.mask or b""
        return cls(row.row, bits + bytes(-len(bits) % 4), found.tobytes())

    def words(self, first: int, count: int) -> np.ndarray:
        """The bits of so many tokens from `first` on, in words of 32."""
        if not self.bits:
            return np.full(-(-count // 32), -1, np.int32)
        bits = np.unpackbits(np.frombuffer(self.bits, np.uint8), bitorder="little")
        packed = np.packbits(bits[first : first + count], bitorder="little")
        return np.pad(packed, (0, -len(packed) % 4)).view(np.int32)

    def changed(self, first: int, count: int) -> np.ndarray:
        """`numbers` of so many tokens from `first` on, which is token 0."""
        found = np.frombuffer(self.numbers, np.int32).reshape(-1, _NUMBERS).copy()
        found[:, 0] -= first
        return found[(found[:, 0] >= 0) & (found[:, 0] < count)]


@dataclass(frozen=True)
class Draw:
    """One function of `SAMPLERS`, and what it is asked: `ASKED` of each row in turn.

    `changes` are of rows that are adjusted, `listed` how many of the most probable
    tokens somebody wants to know.
    """

    kind: str
    asked: tuple[int, ...] = ()
    changes: tuple[Change, ...] = ()
    listed: int = 0

    def name(self, rows: int) -> str:
        """The function's."""
        return sampler(self.kind, rows)

    @property
    def numbers(self) -> np.ndarray:
        """[R, len(ASKED)]."""
        return np.array(self.asked, np.int32).reshape(-1, len(ASKED))

    def adjustments(
        self, rows: int, width: int, part: int = 0
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """Words, places and changes of each call, for a part of so many tokens."""
        first = part * width
        words = np.full((rows, 1, -(-width // 32)), -1, np.int32)
        own = {each.row: each.changed(first, width) for each in self.changes}
        for each in self.changes:
            words[each.row, 0] = each.words(first, width)
        longest = max((len(found) for found in own.values()), default=0)
        for start in range(0, max(longest, bool(own)), CHANGED):
            numbers = _unchanged(rows)
            for row, found in own.items():
                if len(some := found[start : start + CHANGED]):
                    numbers[row, : len(some)], numbers[row, len(some) :] = some, some[0]
            floats = np.ascontiguousarray(numbers[:, None, :, 1:]).view(np.float32)
            yield words, np.ascontiguousarray(numbers[:, None, :, 0]), floats


def _unchanged(rows: int) -> np.ndarray:
    """Token 0 of each row, as it is."""
    nothing = np.array([0, 1, 0], np.float32).view(np.int32)
    return np.tile(np.array([0, *nothing], np.int32), (rows, CHANGED, 1))


def draw_of(wanted: Sequence[LogitsRow], rows: int, parts: int) -> Draw | None:
    """How a program draws some of these, of `rows` rows; None where it draws none.

    Of several parts of the vocabulary it is all of them or none.
    """
    found = [each for each in wanted if _drawable(each, parts)]
    if not found or (parts > 1 and len(found) < len(wanted)):
        return None
    changed = tuple(filter(None, map(Change.of, found)))
    listed = max(each.sampling.top_logprobs for each in found)
    if not changed and all(not heat_of(each.sampling) for each in found):
        return Draw(GREEDY, listed=listed)
    asked = np.zeros((rows, len(ASKED)), np.int32)
    for each in found:
        asked[each.row] = _asked(each)
    return Draw(DRAWN, tuple(asked.ravel().tolist()), changed, listed)


def _drawable(row: LogitsRow, parts: int) -> bool:
    sampling = row.sampling
    cut = bool(sampling.top_k) or sampling.top_p < 1 or bool(sampling.min_p)
    return parts == 1 or not cut or not heat_of(sampling)


def _asked(row: LogitsRow) -> np.ndarray:
    """`ASKED` of a row, as their bits."""
    sampling, known = row.sampling, len(row.history.tokens)
    low, high = sampling.seed & 0xFFFFFFFF, sampling.seed >> 32
    floats = (heat_of(sampling), sampling.top_p, sampling.min_p)
    temperature, top_p, min_p = np.array(floats, np.float32).view(np.uint32)
    ranks = min(sampling.top_k, _MOST)  # more than there are tokens is as good as all
    found = (temperature, low, high, known, ranks, top_p, min_p)
    return np.array(found, np.uint32).view(np.int32)


@dataclass(frozen=True)
class Rows:
    """What a call gives of its rows: logits [R, V], and what was drawn of them.

    `drawn` is [R, M, len(FIELDS) + 2 N], of M parts of the vocabulary: behind the
    fields the N most probable tokens of each and their logits, as `listed` gives them.
    """

    logits: Callable[[], np.ndarray]
    drawn: np.ndarray | None = None

    def sampled(self, row: LogitsRow, slot: int) -> Sampled | None:
        """The token that the program drew; None where numpy has to."""
        if self.drawn is None:
            return None
        parts = self.drawn.shape[1]
        if not _drawable(row, parts):
            return None
        return _joined(self.drawn[row.row], slot, row.sampling.top_logprobs)


def listed(logits: np.ndarray, count: int, first: int) -> np.ndarray:
    """The most probable tokens of each row, [R, 2 count]: they, and their logits.

    Logits are of the tokens from `first` on. Where there are fewer, none of them is -1.
    """
    here = min(count, logits.shape[1])
    found = np.full((len(logits), _LISTED, count), -1, np.float32)
    for row, numbers in zip(found, logits, strict=True):
        if np.isfinite(numbers).all():
            tokens = most_probable(numbers, here)
            row[:, :here] = np.add(tokens, first), numbers[tokens]
    return found.reshape(len(logits), -1)


def _joined(parts: np.ndarray, slot: int, count: int) -> Sampled | None:
    """The token of all parts of a vocabulary, of which each says its `FIELDS`."""
    said = dict(zip(FIELDS, parts[:, : len(FIELDS)].T, strict=True))
    if not said["finite"].all():
        return Sampled(slot, NOT_FINITE, float("nan"))
    if not said["sure"].all():
        return None
    best = int(np.argmax(said["value"]))
    top = said["largest"].max()
    total = np.log((said["total"] * np.exp(said["largest"] - top)).sum())

    def logprob(logit: np.float32) -> float:
        return float(logit - top - total)

    most = _most_probable(parts[:, len(FIELDS) :])[:count]
    return Sampled(
        slot,
        int(said["token"][best]),
        logprob(said["logit"][best]),
        tuple((int(token), logprob(logit)) for token, logit in most),
    )


def _most_probable(parts: np.ndarray) -> np.ndarray:
    """Tokens and logits of all parts, [n, 2], the most probable first."""
    tokens, logits = parts.reshape(len(parts), _LISTED, -1).swapaxes(0, 1)
    found = np.stack([tokens.ravel(), logits.ravel()], 1)[tokens.ravel() >= 0]
    return found[np.argsort(-found[:, 1], kind="stable")]
