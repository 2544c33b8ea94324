"""Codes, tiles and the cosine transform: compiled, in the interpreter, and numpy's."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.models.expanded_training import program
from helpers.servers.interpreter import Interpreter

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.passes.core import functions
from pcp.passes.core.functions import Port
from pcp.passes.training.outer.parts import coded, codes, tiles

Value = ir.Value
ROWS, COLUMNS, K = 3, 150, 9


def chosen(x: Value) -> Sequence[Value]:
    return codes.chosen(x, K)


def two_bits(x: Value) -> Sequence[Value]:
    words = codes.TwoBits().encode(x)
    return words, codes.TwoBits().decode(words, ROWS, COLUMNS)


def top_k(x: Value) -> Sequence[Value]:
    code = codes.TopK(K, codes.Plain())
    words = code.encode(x)
    return words, code.decode(words, ROWS, COLUMNS)


def bits(x: Value) -> Sequence[Value]:
    """Numbers 0 ... 3 and 0 ... 15 there and back; odd counts."""
    i32 = ir.IntegerType.get_signless(32)
    whole = hlo.convert(x, i32)
    found = []
    for width in (2, 4):
        low = hlo.and_(whole, hlo.constant_like(whole, (1 << width) - 1))
        found += [low, codes.unpack(codes.pack(low, width), width, COLUMNS)]
    return found


def cut(x: Value) -> Sequence[Value]:
    """Squares of up to 15: 150 = 10 blocks of 15 across, 1 down."""
    way = tiles.squares((ROWS, COLUMNS), 15, 64)
    rows = way.split(x)
    waves = way.cosines(rows)
    return rows, way.join(rows), waves, way.join(way.cosines(waves, back=True))


def stacks(x: Value) -> Sequence[Value]:
    """Parts of several shapes and codes, encoded together and each by itself."""
    code = codes.TopK(K, codes.Plain())
    parts = [
        coded.part(hlo.slice_(x, [0, 0], [1, COLUMNS]), code),
        coded.part(hlo.slice_(x, [0, 0], [ROWS, 20]), code),
        coded.part(hlo.slice_(x, [0, 0], [ROWS, 80]), code),
        coded.part(hlo.slice_(x, [1, 0], [ROWS, COLUMNS]), code),
        coded.part(hlo.slice_(x, [0, 5], [1, 6]), code),
    ]
    together = coded.stacked(parts)
    assert [list(numbers) for _, numbers in together] == [[0, 3], [1, 4], [2]]
    values = [stack.decoded(stack.code.encode(stack.tiles)) for stack, _ in together]
    apart = coded.apart(values, together, parts)
    alone = [part.decoded(part.code.encode(part.tiles)) for part in parts]
    return [v for pair in zip(apart, alone, strict=True) for v in pair]


CASES: dict[str, Callable[[Value], Sequence[Value]]] = {
    f.__name__: f for f in (chosen, two_bits, top_k, bits, cut, stacks)
}


@cache
def text() -> str:
    """A module with a function a case."""
    module = parse("module {}")
    with module.context, ir.Location.unknown():
        shape = hlo.tensor((ROWS, COLUMNS), ir.F32Type.get())
        for name, build in CASES.items():
            functions.define(module, name, [Port("x", "data", shape)], _ports(build))
    return str(module)


def _ports(build: Callable[[Value], Sequence[Value]]) -> Callable[[Value], Any]:
    return lambda x: [
        (Port(f"r{i}", "result", v.type), v) for i, v in enumerate(build(x))
    ]


@pytest.fixture(scope="module")
def compiled():
    with program(parse(text())) as loaded:
        yield loaded


def inputs() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    normal = draw.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    ties = np.round(normal).astype(np.float32)
    return {
        "normal": normal,
        "ties": ties,
        "zeros": np.zeros_like(normal),
        "tiny": (normal * 1e-38).astype(np.float32),
        "one row of ones": np.stack([normal[0], np.ones(COLUMNS, np.float32), ties[2]]),
    }


EVERY = pytest.mark.parametrize("kind", inputs())


def by_hand_chosen(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-np.abs(x), axis=1, kind="stable")[:, :K]
    place = np.sort(order, axis=1)
    return place, np.take_along_axis(x, place, axis=1)


@EVERY
def test_the_largest_are_chosen_and_of_equal_ones_the_first(compiled, kind) -> None:
    x = inputs()[kind]
    place, values = compiled["chosen"](x)
    wanted = by_hand_chosen(x)
    np.testing.assert_array_equal(place, wanted[0])
    assert values.tobytes() == wanted[1].tobytes()


@EVERY
def test_the_rest_are_zeros(compiled, kind) -> None:
    x = inputs()[kind]
    words, found = compiled["top_k"](x)
    wanted = np.zeros_like(x)
    place, values = by_hand_chosen(x)
    np.put_along_axis(wanted, place, values, axis=1)
    np.testing.assert_array_equal(found, wanted)
    assert words.size == codes.TopK(K, codes.Plain()).words(ROWS, COLUMNS)
    assert words.size == ROWS * (3 + 2 + K)


def by_hand_two_bits(x: np.ndarray) -> np.ndarray:
    """Bins over mean ± 6 σ of each row, and the bins' means, in float64."""
    wide = x.astype(np.float64)
    mean, sigma = wide.mean(1, keepdims=True), wide.std(1, keepdims=True)
    bins = np.digitize(((wide - mean) / np.where(sigma, sigma, 1)), [-3, 0, 3])
    found = np.zeros_like(wide)
    for row, out, which in zip(wide, found, bins, strict=True):
        for k in range(4):
            if (which == k).any():
                out[which == k] = row[which == k].mean()
    return found


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros"])
def test_two_bits_are_the_means_of_four_bins(compiled, kind) -> None:
    x = inputs()[kind]
    words, found = compiled["two_bits"](x)
    np.testing.assert_allclose(found, by_hand_two_bits(x), atol=1e-6)
    assert words.size == ROWS * (4 + 10)
    assert all(len(np.unique(row)) <= 4 for row in found)


def test_a_row_of_equal_numbers_comes_back(compiled) -> None:
    _, found = compiled["two_bits"](np.full((ROWS, COLUMNS), 0.7, np.float32))
    np.testing.assert_allclose(found, 0.7, rtol=1e-5)


def test_what_is_not_a_number_is_not_hidden(compiled) -> None:
    x = inputs()["normal"]
    x[1, 5] = np.nan
    _, found = compiled["two_bits"](x)
    assert np.isnan(found[1]).any()
    assert np.isfinite(found[[0, 2]]).all()
    place, values = compiled["chosen"](x)
    assert 5 in place[1]
    assert np.isnan(values[1]).sum() == 1


def test_bits_come_back(compiled) -> None:
    x = np.random.default_rng(1).integers(0, 1000, (ROWS, COLUMNS)).astype(np.float32)
    for plain, back in zip(*[iter(compiled["bits"](x))] * 2, strict=True):
        np.testing.assert_array_equal(plain, back)


def test_what_is_coded_together_is_as_coded_alone(compiled) -> None:
    found = compiled["stacks"](inputs()["normal"])
    for together, alone in zip(*[iter(found)] * 2, strict=True):
        assert together.tobytes() == alone.tobytes()


def test_tiles_and_the_cosine_transform(compiled) -> None:
    x = inputs()["normal"]
    rows, back, waves, again = compiled["cut"](x)
    blocks = x.reshape(ROWS, COLUMNS // 15, 15).transpose(1, 0, 2)
    np.testing.assert_array_equal(rows, blocks.reshape(10, 45))
    np.testing.assert_array_equal(back, x)
    down, across = tiles.dct(ROWS).astype(np.float64), tiles.dct(15).astype(np.float64)
    np.testing.assert_allclose(across @ across.T, np.eye(15), atol=1e-6)
    wanted = np.einsum("ab,rbc,dc->rad", down, blocks.astype(np.float64), across)
    np.testing.assert_allclose(waves, wanted.reshape(10, 45), atol=1e-5)
    np.testing.assert_allclose(again, x, atol=1e-5)


def test_an_odd_size_keeps_its_largest_divisor() -> None:
    assert tiles.divisor(65, 64) == 13
    assert tiles.divisor(67, 64) == 1
    way = tiles.squares((65, 128), 64, 4096)
    assert (way.height, way.width, way.rows) == (13, 64, 10)
    assert tiles.squares((4, 3, 5), 64, 64).columns == 60
    assert tiles.squares((), 64, 64).rows == 1


@pytest.mark.parametrize("name", ["two_bits", "top_k"])
def test_the_reference_interpreter_sends_the_same_words(
    compiled, name: str, interpreter: Interpreter
) -> None:
    x = inputs()["ties"]
    module = text().replace(f"func.func @{name}(", "func.func @main(")
    words, found = interpreter.run(module, [x])
    mine = compiled[name](x)
    if name == "top_k":  # nothing is rounded
        np.testing.assert_array_equal(words, mine[0])
    np.testing.assert_allclose(found, mine[1], atol=1e-6)
