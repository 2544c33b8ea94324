"""Tokens that a program draws: numpy's, and left to numpy where it is not sure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from helpers.servers.interpreter import Interpreter

from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.decoder_phase import ASKED, FIELDS
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.frontends.decoders import sampler
from pcp.runtime.program.executor import Program
from pcp.serving.drawing import DRAWN, GREEDY, Draw, Row, Rows, draw_of
from pcp.serving.interface import Sampling
from pcp.serving.sampling import NOT_FINITE, History, sample

PLAIN = Sampling(temperature=0.8, seed=(7 << 40) + 5)


def _module(rows: int, vocabulary: int, parts: int) -> ir.Module:
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            sampler.write(rows, vocabulary, parts)
        return module


def _drawn(seed: int, *, cuts: bool) -> Sampling:
    """A sampling like any, of these fields that a program knows."""
    rng = np.random.default_rng(seed)
    found = Sampling(float(rng.choice([0, 0.3, 0.7, 1, 1.5])), seed=seed << 33 | seed)
    if not cuts:
        return found
    return replace(
        found,
        top_k=int(rng.choice([0, 1, 4, 8, 20])),
        top_p=float(rng.choice([1, 0.5, 0.8, 0.9, 0.99])),
        min_p=float(rng.choice([0, 0, 0.05, 0.3])),
    )


def _check(drawn: np.ndarray, logits: np.ndarray, rows: Sequence[Row]) -> int:
    """Each row is numpy's, or not sure; how many are sure."""
    sure = 0
    for row in rows:
        history = History([0] * row.known, 0)
        wanted = sample(logits[row.row], row.sampling, history, 3)
        found = Rows(lambda: logits, drawn).sampled(row, 3)
        if found is not None:
            sure += 1
            assert found.token == wanted.token, row
            assert found.logprob == pytest.approx(wanted.logprob, abs=1e-5)
    return sure


def _rows(count: int, seed: int, *, cuts: bool) -> list[Row]:
    return [
        Row(i, 5 + seed + i, _drawn(seed + 100 * i, cuts=cuts), False)
        for i in range(count)
    ]


def _logits(rows: int, vocabulary: int, seed: int) -> np.ndarray:
    """Flat and steep ones, and ones with many equal numbers."""
    rng = np.random.default_rng(seed)
    found = rng.normal(0, (0.3, 2.0, 6.0)[seed % 3], (rows, vocabulary))
    return (np.round(found * 2) / 2 if seed % 4 == 0 else found).astype(np.float32)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    """The reference interpreter."""
    with Interpreter() as made:
        yield made


@pytest.mark.parametrize("parts", [1, 2])
def test_the_program_draws_what_numpy_draws(
    parts: int, interpreter: Interpreter
) -> None:
    """By the reference interpreter, of 24 tokens."""
    text = str(_module(12, 24, parts))
    name = "@sample_12"
    alone = "module {" + text[text.index(f"func.func {name}") :]
    sure = 0
    for seed in range(4):
        logits = _logits(12, 24, seed)
        rows = _rows(12, seed, cuts=parts == 1)
        draw = draw_of(rows, 12, parts)
        assert draw is not None
        given = [logits, draw.numbers]
        (drawn,) = interpreter.run(alone.replace(name, "@main"), given)
        sure += _check(drawn, logits, rows)
    assert sure == 48 if parts == 2 else 28 < sure <= 48


@pytest.fixture(scope="module", params=[(4, 1000, 1), (3, 1001, 1), (4, 1000, 2)])
def compiled(request: pytest.FixtureRequest) -> tuple[Bundle, int, int, int]:
    """Both functions by IREE, for rows, tokens and parts."""
    rows, vocabulary, parts = request.param
    options = CompileOptions(
        opt_level="O3", mode="forward", entry=f"{GREEDY}_{rows}", targets=("cpu:host",)
    )
    module = _module(rows, vocabulary, parts)
    return driver.compile(module, options), rows, vocabulary, parts


@pytest.mark.slow  # compiles both functions by IREE
def test_compiled_functions_draw_what_numpy_draws(
    compiled: tuple[Bundle, int, int, int],
) -> None:
    """A hundred drawn calls of each."""
    bundle, count, vocabulary, parts = compiled
    program = Program.load(bundle, "local-sync")
    sure = 0
    for seed in range(100):
        logits = _logits(count, vocabulary, seed)
        rows = _rows(count, seed, cuts=parts == 1)
        draw = draw_of(rows, count, parts)
        assert draw is not None
        asked = [draw.numbers] if draw.asked else []
        sure += _check(program[draw.name(count)](logits, *asked), logits, rows)
        greedy = [replace(row, sampling=Sampling()) for row in rows]
        drawn = program[Draw(GREEDY).name(count)](logits)
        assert _check(drawn, logits, greedy) == count
        logits[0, seed] = (np.nan, np.inf, -np.inf)[seed % 3]
        made = program[Draw(GREEDY).name(count)](logits)
        found = Rows(lambda: logits, made).sampled(greedy[0], 0)  # noqa: B023
        assert found is not None
        assert found.token == NOT_FINITE
    assert sure > 60 * count


# --- who draws ---


def _row(sampling: Sampling, row: int = 0, *, masked: bool = False) -> Row:
    return Row(row, 9, sampling, masked)


@pytest.mark.parametrize(
    "other",
    [
        _row(PLAIN, masked=True),
        _row(replace(PLAIN, logit_bias={3: 1.0})),
        _row(replace(PLAIN, presence_penalty=0.5)),
        _row(replace(PLAIN, frequency_penalty=0.5)),
        _row(replace(PLAIN, repetition_penalty=1.5)),
        _row(replace(PLAIN, top_logprobs=1)),
    ],
)
def test_what_a_program_does_not_know_is_numpys(other: Row) -> None:
    """And the row beside it is the program's, unless others hold parts of it."""
    assert draw_of([other], 1, 1) is None
    drawn = np.ones((2, 1, len(FIELDS)), np.float32)
    assert Rows(lambda: drawn, drawn).sampled(other, 0) is None
    beside = _row(PLAIN, 1)
    draw = draw_of([other, beside], 2, 1)
    assert draw is not None
    assert draw.kind == DRAWN
    assert not draw.numbers[0].any()
    assert draw_of([other, beside], 2, 2) is None


@pytest.mark.parametrize("cut", [{"top_k": 4}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_cuts_are_drawn_where_all_tokens_are_in_one_place(
    cut: dict[str, float],
) -> None:
    row = _row(replace(PLAIN, **cut))
    assert draw_of([row], 1, 1) is not None
    assert draw_of([row], 1, 2) is None
    greedy = _row(replace(row.sampling, temperature=0.0))
    assert draw_of([greedy], 1, 2) == Draw(GREEDY)


def test_what_is_asked_has_the_bits_of_the_request() -> None:
    sampling = Sampling(0.7, 5, 0.25, 0.125, seed=(0xFFFFFFFE << 32) + 0x80000001)
    draw = draw_of([_row(sampling, 1)], 2, 1)
    assert draw is not None
    said = dict(zip(ASKED, draw.numbers[1], strict=True))
    floats = [said[name].view(np.float32) for name in ("temperature", "top_p", "min_p")]
    assert floats == [np.float32(0.7), 0.25, 0.125]
    words = [int(said[name].view(np.uint32)) for name in ("low", "high")]
    assert words == [0x80000001, 0xFFFFFFFE]
    assert (said["positions"], said["top_k"]) == (9, 5)


@pytest.mark.parametrize("top_k", [(1 << 31) - 1, 1 << 31, 1 << 32, 1 << 70])
def test_more_than_32_bits_hold_is_asked_as_the_most_they_hold(top_k: int) -> None:
    """A request whose numbers fail would take with it what runs beside it."""
    draw = draw_of([_row(Sampling(1e-300, top_k=top_k))], 1, 1)
    assert draw is not None
    said = dict(zip(ASKED, draw.numbers[0], strict=True))
    assert said["top_k"] == (1 << 31) - 1
    assert said["temperature"].view(np.float32) == np.float32(1e-30)
