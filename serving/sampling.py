"""The next token of a request from its logits, in numpy.

The order is vLLM's: mask, bias, penalties; then greedy, or temperature, min-p, top-k,
top-p and a draw. Sizes: logits [V] in f32.

The draw is Gumbel's: the largest of logit + noise, where the noise of token v follows
from the request's seed, the position and v alone (Threefry-2x32-20, Salmon et al.,
2011). So it can be taken by parts of the vocabulary, and anywhere, with the same
result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pcp.errors import UsageError
from pcp.serving.interface import Sampled, Sampling

Logits = np.ndarray
NOT_FINITE = -1
"""In place of a token, where the model's numbers are no numbers."""
COLDEST = 1e-5
"""Temperatures below are none: by less than noise nothing but the largest is left."""
LARGEST = np.finfo(np.float32).max
"""What a number is at most: of infinite ones the difference is none."""
MOST_BIAS = 100
"""Of `logit_bias`, as OpenAI has it."""
_FAR = np.errstate(over="ignore")
"""A logit that is less by more than there are numbers is -inf: never taken."""
_NEAR = 8.0
"""Below the largest logit: among those so near is one that is large with its noise."""
_REACHES = (4.0, 8.0, 16.0)
"""Below the largest logit: where cuts by rank are sought first."""


@dataclass(frozen=True)
class History:
    """The tokens of a request so far; the first `prompt` of them it came with."""

    tokens: Sequence[int]
    prompt: int

    @property
    def generated(self) -> Sequence[int]:
        """Those that were sampled."""
        return self.tokens[self.prompt :]


def check(sampling: Sampling, vocabulary: int) -> None:
    """`UsageError` for values outside their definition."""
    ranges = {
        "temperature": sampling.temperature >= 0,
        "top_k": sampling.top_k >= 0,
        "top_p": 0 < sampling.top_p <= 1,
        "min_p": 0 <= sampling.min_p <= 1,
        "repetition_penalty": sampling.repetition_penalty > 0,
        "seed": 0 <= sampling.seed < 1 << 64,
        "top_logprobs": 0 <= sampling.top_logprobs <= vocabulary,
    }
    for name, right in ranges.items():
        if not right:
            raise UsageError(f"{name}={getattr(sampling, name)} is out of its range")
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocabulary:
            raise UsageError(f"logit_bias: there is no token {token}")
        if not abs(bias) <= MOST_BIAS:
            raise UsageError(
                f"logit_bias: {bias} of token {token} is not from {-MOST_BIAS} to "
                f"{MOST_BIAS}"
            )


@_FAR
def sample(
    logits: Logits,
    sampling: Sampling,
    history: History,
    slot: int,
    mask: bytes | None = None,
) -> Sampled:
    """The token behind the history, with its log-probability."""
    if not np.isfinite(logits).all():
        return Sampled(slot, NOT_FINITE, float("nan"))
    token = chosen(shaped(logits, sampling, history, mask), sampling, history)
    logprobs = log_softmax(logits)
    top = most_probable(logits, sampling.top_logprobs)
    return Sampled(
        slot, token, float(logprobs[token]), tuple((t, float(logprobs[t])) for t in top)
    )


@_FAR
def shaped(
    logits: Logits, sampling: Sampling, history: History, mask: bytes | None
) -> Logits:
    """Logits with what is asked of tokens: mask, bias, penalties."""
    found = logits.astype(np.float32)
    if mask is not None:
        found[~allowed(mask, len(found))] = -np.inf
    if leaves_logits(sampling):
        return found
    tokens, numbers = changes(sampling, history)
    bias, factor, less = numbers.T
    old = found[tokens] + bias
    old = np.where(old > 0, old / factor, old * factor) - less
    found[tokens] = np.minimum(old, LARGEST)
    return found


def leaves_logits(sampling: Sampling) -> bool:
    """Whether no token has a bias or a penalty."""
    return (
        not (sampling.logit_bias or sampling.frequency_penalty)
        and not sampling.presence_penalty
        and sampling.repetition_penalty == 1
    )


def changes(sampling: Sampling, history: History) -> tuple[np.ndarray, np.ndarray]:
    """Tokens whose logits change, and `CHANGES` of each: [n], [n, 3] of f32."""
    biased = np.fromiter(sampling.logit_bias, np.int64)
    repeats = history.tokens if sampling.repetition_penalty != 1 else ()
    seen = np.unique(np.asarray(repeats, np.int64))
    counted = sampling.frequency_penalty or sampling.presence_penalty
    generated = np.asarray(history.generated if counted else (), np.int64)
    made, counts = np.unique(generated, return_counts=True)
    tokens = np.unique(np.concatenate([biased, seen, made]))
    numbers = np.tile(np.array([0, 1, 0], np.float32), (len(tokens), 1))
    bias, factor, less = numbers.T
    bias[np.searchsorted(tokens, biased)] = list(sampling.logit_bias.values())
    factor[np.searchsorted(tokens, seen)] = sampling.repetition_penalty
    often = np.float32(sampling.frequency_penalty) * counts.astype(np.float32)
    less[np.searchsorted(tokens, made)] = often + np.float32(sampling.presence_penalty)
    return tokens, numbers


def allowed(mask: bytes, vocabulary: int) -> np.ndarray:
    """Which tokens a mask allows, [V] of bool; `UsageError` if it allows none."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    if len(bits) < vocabulary:
        raise UsageError(
            f"a mask of {len(mask)} bytes for a vocabulary of {vocabulary} tokens"
        )
    found = bits[:vocabulary].astype(bool)
    if not found.any():
        raise UsageError("the mask allows no token")
    return found


@_FAR
def chosen(logits: Logits, sampling: Sampling, history: History) -> int:
    """The most probable token, or one drawn from those that the cuts leave."""
    if not (heat := heat_of(sampling)):
        return int(np.argmax(logits))
    logits = np.minimum(logits / heat, LARGEST)
    left = kept(logits, sampling)
    values, place = logits[left], (sampling.seed, len(history.tokens))
    # Noise is costly: it is made for those alone that it can make the largest.
    near = np.flatnonzero(values >= values.max() - np.float32(_NEAR))
    best = (values[near] + gumbel(*place, left[near])).max()
    near = np.flatnonzero(values + LARGEST_NOISE >= best)
    return int(left[near[np.argmax(values[near] + gumbel(*place, left[near]))]])


def heat_of(sampling: Sampling) -> np.float32:
    """What logits are divided by; 0 where the most probable token is taken.

    As in vLLM, next to no temperature is none.
    """
    return np.float32(sampling.temperature if sampling.temperature >= COLDEST else 0)


def kept(logits: Logits, sampling: Sampling) -> np.ndarray:
    """The tokens that min-p, top-k and top-p leave, ascending.

    min-p: at least that share of the largest probability. top-k: as probable as the
    k-th, so that equals of it stay. top-p: the fewest most probable ones whose sum is
    at least p; of equals those with a smaller number.
    """
    left = np.flatnonzero(logits > -np.inf)
    values = logits[left]
    if sampling.min_p:
        share = np.exp(values - values.max())
        left, values = _where(share >= np.float32(sampling.min_p), left, values)
    if 0 < (k := sampling.top_k) < len(left):
        near = _upper(values, lambda near: len(near) >= k)
        least = np.partition(values[near], -k)[-k]
        left, values = _where(values >= least, left, values)
    if sampling.top_p < 1:
        left = left[_nucleus(values, sampling.top_p)]
    return left


def _nucleus(values: Logits, p: float) -> np.ndarray:
    """The fewest most probable ones whose sum is at least p, ascending."""
    share = np.exp(values - values.max())
    wanted = p * share.sum(dtype=np.float64)
    near = _upper(values, lambda near: share[near].sum(dtype=np.float64) > wanted)
    order = near[np.argsort(-values[near], kind="stable")]
    ordered = share[order].astype(np.float64)
    before = np.cumsum(ordered) - ordered
    return np.sort(order[: max(1, int(np.count_nonzero(before < wanted)))])


def _upper(values: Logits, enough: Callable[[np.ndarray], bool]) -> np.ndarray:
    """The largest values, until they are enough: to sort few is fast."""
    for reach in _REACHES:
        near = np.flatnonzero(values >= values.max() - np.float32(reach))
        if enough(near):
            return near
    return np.arange(len(values))


def _where(taken: np.ndarray, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(array[taken] for array in arrays)


def log_softmax(logits: Logits) -> Logits:
    """Logarithms of the probabilities."""
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def most_probable(logits: Logits, count: int) -> list[int]:
    """The most probable tokens, the first one first; of equals the smaller number."""
    if not count:
        return []
    least = np.partition(logits, -count)[-count]
    found = np.flatnonzero(logits >= least)
    return [int(t) for t in found[np.argsort(-logits[found], kind="stable")][:count]]


# --- noise ---


def gumbel(seed: int, position: int, tokens: np.ndarray) -> np.ndarray:
    """The noise of each token, by `noise` of bits that follow from the three alone."""
    words = (np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32))
    places = np.full(len(tokens), position, np.uint32)
    bits, _ = threefry(words, (places, tokens.astype(np.uint32)))
    return noise(bits)


def noise(bits: np.ndarray) -> np.ndarray:
    """-log(-log u), u one of 2^23 equally likely numbers in (0, 1), by 32 bits each.

    Of 2^24 the last one would be 1 in f32, and its noise infinite.
    """
    uniform = (
        (bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)
    ) * np.float32(2.0**-23)
    return -np.log(-np.log(uniform))


LARGEST_NOISE = noise(np.array([0xFFFFFFFF], np.uint32))[0]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(
    key: tuple[np.uint32, np.uint32], counter: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32-20 of arrays of counters."""
    with np.errstate(over="ignore"):
        words = (*key, key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
        a, b = counter[0] + words[0], counter[1] + words[1]
        for block in range(5):
            for turn in _ROTATIONS[block % 2]:
                a = a + b
                b = (b << np.uint32(turn)) | (b >> np.uint32(32 - turn))
                b = b ^ a
            a = a + words[(block + 1) % 3]
            b = b + words[(block + 2) % 3] + np.uint32(block + 1)
    return a, b
