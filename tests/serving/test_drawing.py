"""Tokens that a program draws: numpy's, and left to numpy where it is not sure."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
from helpers.servers.interpreter import Interpreter

from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.decoder_phase import ADJUST, ASKED, FIELDS
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.frontends.decoders import sampler
from pcp.runtime.program.executor import Program
from pcp.serving.drawing import (
    DRAWN,
    GREEDY,
    Change,
    Draw,
    LogitsRow,
    Rows,
    draw_of,
    listed,
)
from pcp.serving.interface import Sampling
from pcp.serving.sampling import NOT_FINITE, History, sample, shaped

PLAIN = Sampling(temperature=0.8, seed=(7 << 40) + 5)


def _module(rows: int, vocabulary: int, parts: int) -> ir.Module:
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            sampler.write(rows, vocabulary, parts)
        return module


def _drawn(seed: int, vocabulary: int, *, cuts: bool) -> Sampling:
    """A sampling like any, with these fields or without."""
    rng = np.random.default_rng(seed)
    found = Sampling(float(rng.choice([0, 0.3, 0.7, 1, 1.5])), seed=seed << 33 | seed)
    if rng.random() < 0.5:
        biased = rng.choice(vocabulary, rng.integers(1, 8), replace=False)
        found = replace(
            found,
            presence_penalty=float(rng.choice([0, -1.5, 0.4])),
            frequency_penalty=float(rng.choice([0, 0.3])),
            repetition_penalty=float(rng.choice([1, 1.3, 0.8])),
            logit_bias={int(t): float(rng.uniform(-3, 3)) for t in biased},
            top_logprobs=int(rng.choice([0, 1, 5])),
        )
    if not cuts:
        return found
    return replace(
        found,
        top_k=int(rng.choice([0, 1, 4, 8, 20])),
        top_p=float(rng.choice([1, 0.5, 0.8, 0.9, 0.99])),
        min_p=float(rng.choice([0, 0, 0.05, 0.3])),
    )


def _check(drawn: np.ndarray, logits: np.ndarray, rows: Sequence[LogitsRow]) -> int:
    """Each row is numpy's, or not sure; how many are sure."""
    sure = 0
    for row in rows:
        wanted = sample(logits[row.row], row.sampling, row.history, 3, row.mask)
        found = Rows(lambda: logits, drawn).sampled(row, 3)
        if found is not None:
            sure += 1
            assert found.token == wanted.token, row
            assert found.logprob == pytest.approx(wanted.logprob, abs=1e-5)
            assert [t for t, _ in found.top] == [t for t, _ in wanted.top]
            most = [[p for _, p in each.top] for each in (found, wanted)]
            assert most[0] == pytest.approx(most[1], abs=1e-5)
    return sure


def _rows(count: int, seed: int, vocabulary: int, *, cuts: bool) -> list[LogitsRow]:
    """Some with masks, and histories in which tokens are again and again."""
    found = []
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        tokens = rng.integers(0, vocabulary // 2, 5 + seed + 9 * i).tolist()
        bits = rng.random(vocabulary) < rng.choice([0.02, 0.5])
        bits[rng.integers(vocabulary)] = True
        mask = np.packbits(bits, bitorder="little").tobytes() if i % 3 == 1 else None
        sampling = _drawn(seed + 100 * i, vocabulary, cuts=cuts)
        found.append(LogitsRow(i, History(tokens, 4), sampling, mask))
    return found


def _adjusted(
    run: Callable[..., np.ndarray], draw: Draw, logits: np.ndarray, parts: int
) -> np.ndarray:
    """By calls of `adjust_R`, whose arguments all members have together."""
    rows, vocabulary = logits.shape
    found = logits
    for each in zip_longest(
        *(draw.adjustments(rows, vocabulary // parts, part) for part in range(parts))
    ):
        found = run(found, *_together(each, rows, vocabulary // parts))
    return found


def _together(
    parts: Sequence[tuple[np.ndarray, ...] | None], rows: int, width: int
) -> list[np.ndarray]:
    """A part that has nothing more to change takes part in the call."""
    nothing = next(Draw(DRAWN, changes=(Change(0, b"", b""),)).adjustments(rows, width))
    given = [part or nothing for part in parts]
    return [np.concatenate(each, 1) for each in zip(*given, strict=True)]


def _with_listed(
    drawn: np.ndarray, draw: Draw, logits: np.ndarray, parts: int
) -> np.ndarray:
    cut = np.split(logits, parts, 1)
    width = logits.shape[1] // parts
    most = [listed(part, draw.listed, i * width) for i, part in enumerate(cut)]
    return np.concatenate([drawn, np.stack(most, 1)], 2)


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

    def run(kind: str, *given: np.ndarray) -> np.ndarray:
        name = f"@{kind}_12"
        alone = text[text.index(f"func.func {name}") :].split("\n  func.func")[0]
        alone = alone.replace(name, "@main").rstrip("} \n")
        (found,) = interpreter.run(f"module {{{alone} }} }}", list(given))
        return found

    sure = 0
    for seed in range(4):
        logits = _logits(12, 24, seed)
        rows = _rows(12, seed, 24, cuts=parts == 1)
        draw = draw_of(rows, 12, parts)
        assert draw is not None
        adjusted = _adjusted(partial(run, ADJUST), draw, logits, parts)
        drawn = run("sample", logits, adjusted, draw.numbers)
        sure += _check(_with_listed(drawn, draw, logits, parts), logits, rows)
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
        rows = _rows(count, seed, vocabulary, cuts=parts == 1)
        draw = draw_of(rows, count, parts)
        assert draw is not None
        asked = ()
        if draw.asked:
            run = program[f"{ADJUST}_{count}"]
            asked = _adjusted(run, draw, logits, parts), draw.numbers
        drawn = program[draw.name(count)](logits, *asked)
        sure += _check(_with_listed(drawn, draw, logits, parts), logits, rows)
        greedy = [LogitsRow(row.row, row.history, Sampling()) for row in rows]
        drawn = program[Draw(GREEDY).name(count)](logits)
        assert _check(drawn, logits, greedy) == count
        logits[0, seed] = (np.nan, np.inf, -np.inf)[seed % 3]
        made = program[Draw(GREEDY).name(count)](logits)
        found = Rows(lambda: logits, made).sampled(greedy[0], 0)  # noqa: B023
        assert found is not None
        assert found.token == NOT_FINITE
    assert sure > 60 * count


@pytest.mark.slow  # compiles the functions by IREE for two members
def test_members_draw_of_their_part_alone(tmp_path: Path) -> None:
    """Without a word to each other: no program has a collective."""
    rows, vocabulary, parts = 2, 104, 2
    path = tmp_path / "sharding.json"
    cut = {name: [[], ["tp"]] for name in sampler.IN_PARTS}
    path.write_text(json.dumps({"tensors": cut}))
    options = CompileOptions(
        opt_level="O3",
        mode="forward",
        entry=f"{GREEDY}_{rows}",
        targets=("cpu:host",),
        mesh=f"tp={parts}",
        sharding=str(path),
        inflight=0,
    )
    bundle = driver.compile(_module(rows, vocabulary, parts), options)
    devices = bundle.manifest.partition_mesh().devices
    members = [Program.load(bundle, "local-sync", member=d) for d in devices]
    width = vocabulary // parts
    for seed in range(60):
        logits = _logits(rows, vocabulary, seed)
        wanted = _rows(rows, seed, vocabulary, cuts=False)
        draw = draw_of(wanted, rows, parts)
        assert draw is not None
        found = []
        for part, own in enumerate(np.split(logits, parts, 1)):
            program, own = members[part], np.ascontiguousarray(own)
            given = []
            if draw.asked:
                adjusted = own
                for changes in draw.adjustments(rows, width, part):
                    adjusted = program[f"{ADJUST}_{rows}"](adjusted, *changes)
                given = [adjusted, draw.numbers]
            drawn = program[draw.name(rows)](own, *given)
            most = listed(own, draw.listed, part * width)
            found.append(np.concatenate([drawn, most[:, None]], 2))
        assert _check(np.concatenate(found, 1), logits, wanted) == rows


# --- who draws ---


def _row(sampling: Sampling, row: int = 0, mask: bytes | None = None) -> LogitsRow:
    return LogitsRow(row, History(range(9), 4), sampling, mask)


def test_more_tokens_change_than_one_call_takes() -> None:
    """Each once, in its part of the vocabulary; a row that has fewer waits."""
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 2, (2, 2000)).astype(np.float32)
    many = Sampling(logit_bias={int(t): 0.5 for t in rng.choice(2000, 900, False)})
    mask = np.packbits(rng.random(2000) < 0.9, bitorder="little").tobytes()
    rows = [_row(many, 0, mask), _row(Sampling(presence_penalty=1.0), 1)]
    draw = draw_of(rows, 2, 2)
    assert draw is not None
    for part in range(2):
        found = logits[:, part * 1000 : part * 1000 + 1000].copy()
        calls = list(draw.adjustments(2, 1000, part))
        assert len(calls) == 2
        for words, places, changes in calls:
            for row in range(2):
                at, numbers = np.unique(places[row, 0], return_index=True)
                bias, factor, less = changes[row, 0, numbers].T
                assert (factor == 1).all()
                found[row, at] = found[row, at] + bias - less
                bits = np.unpackbits(words[row, 0].view(np.uint8), bitorder="little")
                found[row, bits[:1000] == 0] = -np.inf
        wanted = [shaped(logits[r.row], r.sampling, r.history, r.mask) for r in rows]
        wanted = np.stack(wanted)[:, part * 1000 : part * 1000 + 1000]
        np.testing.assert_array_equal(found, wanted)


def test_a_vocabulary_in_parts_is_drawn_whole_or_not() -> None:
    cut, plain = _row(replace(PLAIN, top_k=4)), _row(PLAIN, 1)
    drawn = np.ones((2, 2, len(FIELDS)), np.float32)
    assert Rows(lambda: drawn, drawn).sampled(cut, 0) is None
    assert draw_of([cut, plain], 2, 2) is None
    draw = draw_of([plain], 2, 2)
    assert draw is not None
    assert draw.kind == DRAWN
    assert not draw.numbers[0].any()


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
    draw = draw_of([_row(Sampling(0.5, top_k=top_k))], 1, 1)
    assert draw is not None
    said = dict(zip(ASKED, draw.numbers[0], strict=True))
    assert said["top_k"] == (1 << 31) - 1


@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-300])
def test_next_to_no_temperature_is_none(temperature: float) -> None:
    assert draw_of([_row(Sampling(temperature))], 1, 1) == Draw(GREEDY)
