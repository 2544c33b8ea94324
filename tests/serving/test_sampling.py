"""Sampling: cuts and penalties as defined, draws of the right frequency."""

import numpy as np
import pytest
from helpers.sampled import sampled

from pcp.errors import UsageError
from pcp.serving.interface import Sampling
from pcp.serving.sampling import (
    LARGEST_NOISE,
    History,
    check,
    chosen,
    gumbel,
    kept,
    log_softmax,
    noise,
    sample,
    shaped,
    threefry,
)

NONE = History((), 0)
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 2, 50).astype(np.float32)


def _probabilities(logits: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(logits).astype(np.float64))


def test_threefry_has_the_published_values() -> None:
    """Known answers of Random123, threefry2x32 with 20 rounds."""
    ones = 0xFFFFFFFF
    cases = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ones, ones), (ones, ones), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]
    for key, counter, wanted in cases:
        words = (np.uint32(key[0]), np.uint32(key[1]))
        a, b = threefry(
            words, (np.array(counter[:1], np.uint32), np.array(counter[1:], np.uint32))
        )
        assert (int(a[0]), int(b[0])) == wanted


@sampled(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.7, top_k=5),
        Sampling(temperature=1.3, top_p=0.8),
        Sampling(temperature=1.0, min_p=0.1),
    ],
    1,
)
def test_draws_have_the_frequencies_of_the_definition(sampling: Sampling) -> None:
    """4,000 positions against the probabilities, by chi squared."""
    scaled = LOGITS / sampling.temperature
    left = kept(scaled, sampling)
    wanted = _probabilities(scaled[left])
    draws = [chosen(LOGITS, sampling, History(range(n), 0)) for n in range(4_000)]
    counts = np.array([draws.count(t) for t in left])
    assert counts.sum() == len(draws), "a token was drawn that the cuts take out"
    expected = wanted * len(draws)
    large = expected > 5
    chi = ((counts - expected) ** 2 / expected)[large].sum()
    assert chi < large.sum() + 4 * np.sqrt(2 * large.sum())


def test_a_draw_follows_from_seed_and_position_alone() -> None:
    sampling = Sampling(temperature=1.0, seed=12)
    history = History([1] * 9, 0)
    same = [chosen(LOGITS, sampling, History([t] * 9, 4)) for t in range(20)]
    assert same == [chosen(LOGITS, sampling, history)] * 20
    tokens = np.arange(50)
    noise = {
        (s, p): tuple(gumbel(s, p, tokens)) for s in (0, 1, 1 << 32) for p in (0, 1)
    }
    assert len(set(noise.values())) == 6
    part = gumbel(7, 3, tokens[20:30])
    np.testing.assert_array_equal(part, gumbel(7, 3, tokens)[20:30])


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-46, 1e-300])
def test_next_to_nothing_of_heat_takes_the_most_probable(temperature: float) -> None:
    """Of numbers that are infinite in f32 all would be equal, or none be left."""
    sampling = Sampling(temperature=temperature, seed=3)
    for logits in ([5.0, 9.0, 7.0], [-9.0, -5.0, -7.0], [-1e6, 1e6, 0.0]):
        assert chosen(np.array(logits, np.float32), sampling, NONE) == 1


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0])
@pytest.mark.parametrize("cuts", [{}, {"top_p": 0.9}, {"min_p": 0.1, "top_k": 3}])
def test_huge_logits_are_no_infinite_ones(
    temperature: float, cuts: dict[str, float]
) -> None:
    """Neither divided by little nor by a penalty; what is less by so much is out."""
    logits = np.array([1e30, 3e38, -3e38, 0.0], np.float32)
    sampling = Sampling(temperature, repetition_penalty=0.1, **cuts)
    for history in (NONE, History([1, 2], 1)):
        found = shaped(logits, sampling, history, None)
        assert (found <= np.finfo(np.float32).max).all()
        assert sample(logits, sampling, history, 0).token == 1


@pytest.mark.parametrize("bias", [-100.5, 101.0, float("inf"), float("nan")])
def test_a_bias_is_what_openai_allows(bias: float) -> None:
    check(Sampling(logit_bias={3: -100.0, 4: 100.0}), 50)
    with pytest.raises(UsageError, match="of token 3 is not from -100 to 100"):
        check(Sampling(logit_bias={3: bias}), 50)


def test_cuts_are_as_defined() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.1, 0.25, 0.15], np.float32))
    assert kept(logits, Sampling(top_k=2)).tolist() == [1, 3]
    assert kept(logits, Sampling(top_k=4)).tolist() == [0, 1, 2, 3, 4]  # an equal
    assert kept(logits, Sampling(top_p=0.5)).tolist() == [1, 3]
    assert kept(logits, Sampling(top_p=0.39)).tolist() == [1]
    assert kept(logits, Sampling(top_p=0.85)).tolist() == [0, 1, 3, 4]
    assert kept(logits, Sampling(min_p=0.5)).tolist() == [1, 3]
    assert kept(logits, Sampling(top_k=9)).tolist() == [0, 1, 2, 3, 4]
    both = Sampling(top_k=2, top_p=0.62)  # 0.4 of 0.65 is less than 0.62
    assert kept(logits, both).tolist() == [1, 3]


def _plainly(logits: np.ndarray, sampling: Sampling, position: int) -> int:
    """The definition: everything sorted, and noise for every token."""
    x = logits / np.float32(sampling.temperature)
    order = np.argsort(-x, kind="stable")
    if sampling.top_k:
        order = order[x[order] >= x[order[sampling.top_k - 1]]]
    share = np.exp(x[order].astype(np.float64) - x[order[0]])
    share /= share.sum()
    order = order[np.cumsum(share) - share < sampling.top_p]
    left = np.sort(order)
    return int(left[np.argmax(x[left] + gumbel(sampling.seed, position, left))])


@pytest.mark.parametrize("spread", [0.1, 2.0, 12.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (300, 1.0), (0, 0.9), (40, 0.7)]
)
def test_few_are_looked_at_and_the_draw_is_that_of_all(
    spread: float, top_k: int, top_p: float
) -> None:
    """Flat and steep logits, where the nearest are all tokens and where one is."""
    drawn = np.random.default_rng(7)
    for position in range(25):
        logits = drawn.normal(0, spread, 3000).astype(np.float32)
        sampling = Sampling(temperature=0.8, seed=3, top_k=top_k, top_p=top_p)
        found = chosen(logits, sampling, History(range(position), 0))
        assert found == _plainly(logits, sampling, position)


def test_noise_is_finite_for_all_bits() -> None:
    """A token with infinite noise would win, however improbable it is."""
    ends = np.array([0, 1 << 9, (1 << 32) - 513, (1 << 32) - 1], np.uint32)
    found = noise(ends)
    assert np.isfinite(found).all()
    assert (np.diff(found) >= 0).all()
    assert found[-1] == LARGEST_NOISE < 17


def test_penalties_are_those_of_openai_and_ctrl() -> None:
    logits = np.array([2.0, -2.0, 1.0, 3.0], np.float32)
    history = History([0, 1, 1, 2, 1], prompt=2)  # 1 twice and 2 once are generated
    found = shaped(
        logits, Sampling(frequency_penalty=0.5, presence_penalty=0.25), history, None
    )
    np.testing.assert_allclose(found, [2, -2 - 1.25, 1 - 0.75, 3])
    found = shaped(logits, Sampling(repetition_penalty=2.0), history, None)
    np.testing.assert_allclose(found, [1, -4, 0.5, 3])
    found = shaped(logits, Sampling(logit_bias={3: -100.0}), NONE, None)
    assert sample(logits, Sampling(logit_bias={3: -100.0}), NONE, 0).token == 0
    np.testing.assert_allclose(found, [2, -2, 1, -97])


def test_masks() -> None:
    with pytest.raises(UsageError, match="allows no token"):
        shaped(LOGITS, Sampling(), NONE, bytes(7))
    with pytest.raises(UsageError, match="6 bytes for a vocabulary of 50"):
        shaped(LOGITS, Sampling(), NONE, b"\xff" * 6)


def test_logprobs_are_the_models_own() -> None:
    sampling = Sampling(logit_bias={5: 50.0}, top_logprobs=3)
    found = sample(LOGITS, sampling, NONE, 4)
    logprobs = np.log(_probabilities(LOGITS))
    assert found.slot == 4
    assert found.token == 5
    assert found.logprob == pytest.approx(logprobs[5], abs=1e-5)
    order = np.argsort(-LOGITS)[:3]
    assert [t for t, _ in found.top] == order.tolist()
