"""Codecs: exact sizes, error bounds, and what must never be hidden."""

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcp.errors import ProtocolError, UsageError
from pcp.runtime.compression.codec_scratch import KEPT
from pcp.runtime.compression.codecs import BLOCK, codec

SCALED = {"fp8": 2**-4, "int8": 0.5 / 127, "e3m0": 1 / 3, "int2": 0.5 / 1.5}
"""The largest error of a block, as a part of its largest magnitude."""
ALL = [*SCALED, "int8zp", "fp16", "bf16", "topk:0.1", "randomk:0.1"]


def there_and_back(name: str, values: np.ndarray, seed: int = 3) -> np.ndarray:
    coder = codec(name)
    before = values.copy()
    wire = coder.encode(values, seed)
    assert np.array_equal(values, before, equal_nan=True), "the input was changed"
    assert wire.dtype == np.uint8
    assert wire.size == coder.wire_bytes(values.size)
    return coder.decode(wire, values.size, seed)


@pytest.mark.parametrize(
    ("name", "count", "size"),
    [
        ("fp16", 1000, 2000),
        ("bf16", 1000, 2000),
        ("fp8", 1000, 1016),
        ("int8", 1000, 1016),
        ("int8zp", 1000, 1032),
        ("e3m0", 1001, 501 + 16),
        ("int2", 1001, 251 + 16),
        ("topk:0.01", 1001, 11 * 8),
        ("randomk:0.01", 1001, 11 * 4),
        ("int8", 0, 0),
        ("topk", 1, 8),
    ],
)
def test_documented_wire_sizes(name: str, count: int, size: int) -> None:
    assert codec(name).wire_bytes(count) == size


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60)
@given(data=st.data())
def test_any_values_of_any_length(name: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 700))
    scale = data.draw(st.sampled_from([1e-42, 1e-30, 1.0, 1e4, 1e37]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    offset = data.draw(st.sampled_from([0.0, -10.0]))
    values = ((rng.standard_normal(count) + offset) * scale).astype(np.float32)
    back = there_and_back(name, values)
    assert back.dtype == np.float32
    assert back.size == count
    if name != "fp16":
        assert np.isfinite(back).all()
    if name in SCALED:
        for start in range(0, count, BLOCK):
            part = slice(start, start + BLOCK)
            peak = np.abs(values[part]).max()
            error = np.abs(back[part].astype(float) - values[part]).max()
            assert error <= SCALED[name] * peak * (1 + 1e-5) + 2e-36


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_non_finite_is_hidden(name: str, bad: float) -> None:
    values = np.linspace(-1, 1, 2 * BLOCK, dtype=np.float32)
    values[5] = bad
    back = there_and_back(name, values)
    if name.startswith("randomk"):
        assert back[5] == 0 or not np.isfinite(back[5])
    else:
        assert not np.isfinite(back[5])
    assert np.isfinite(back[BLOCK:]).all()


def test_a_negative_constant_keeps_its_resolution() -> None:
    rng = np.random.default_rng(0)
    values = (-99.5 + rng.uniform(-0.5, 0.5, 4 * BLOCK)).astype(np.float32)
    back = there_and_back("int8zp", values)
    assert np.abs(back - values).max() <= 0.51 / 255
    assert len(np.unique(back)) > 200


@pytest.mark.parametrize("name", [*SCALED, "int8zp", "bf16"])
def test_rounding_has_no_bias(name: str) -> None:
    values = np.random.default_rng(1).standard_normal(1 << 18).astype(np.float32)
    error = there_and_back(name, values).astype(float) - values
    assert abs(error.mean()) < 5 * error.std() / np.sqrt(values.size)


def test_zeros_stay_unbiased_in_two_bits() -> None:
    values = np.zeros(BLOCK, np.float32)
    values[0] = 1
    assert there_and_back("int2", values)[2:].sum() == 0


def test_e3m0_is_the_nearest_power_of_two() -> None:
    levels = np.concatenate([[0.0], 2.0 ** np.arange(-6, 1)])
    levels = np.concatenate([levels, -levels])
    values = np.linspace(-1, 1, BLOCK, dtype=np.float32)
    back = there_and_back("e3m0", values)
    nearest = np.abs(values[:, None] - levels).min(axis=1)
    np.testing.assert_allclose(np.abs(back - values), nearest, atol=1e-7)


def test_fp8_is_the_cast_of_ml_dtypes() -> None:
    """Of everything that is near to a value, or to the middle of two."""
    levels = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    levels = np.unique(levels.astype(np.float32)[np.isfinite(levels)])
    exact = np.concatenate([levels, (levels[1:] + levels[:-1]) / 2])
    near = [exact, np.nextafter(exact, np.float32(500)), np.nextafter(exact, -500)]
    drawn = np.random.default_rng(0).normal(0, 60, 50_000)
    values = np.concatenate([*near, drawn, drawn / 1e4]).astype(np.float32)
    values = values[np.abs(values) <= 448]
    blocks = -(-values.size // 255)
    values = np.resize(values, (blocks, 255))
    # The largest of each block makes its scale 1.
    values = np.hstack([values, np.full((blocks, 1), 448, np.float32)])
    wire = codec("fp8").encode(values.reshape(-1))
    assert (wire[: 4 * blocks].view(np.float32) == 1).all()
    expected = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert (wire[4 * blocks :] == expected.reshape(-1)).all()


def test_topk_takes_the_largest() -> None:
    values = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    back = there_and_back("topk:0.05", values)
    kept = np.flatnonzero(back)
    assert len(kept) == 50
    assert np.array_equal(back[kept], values[kept])
    assert np.abs(values[kept]).min() >= np.sort(np.abs(values))[-50]


def test_randomk_draws_by_the_seed_alone() -> None:
    values = np.arange(1, 1001, dtype=np.float32)
    first, again = (there_and_back("randomk:0.1", values, 5) for _ in range(2))
    other = there_and_back("randomk:0.1", values, 6)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    drawn = [there_and_back("randomk:0.1", values, seed) for seed in range(400)]
    hits = np.count_nonzero(drawn, axis=0)
    assert hits.min() > 10
    assert abs(hits.mean() - 40) < 1e-9


def test_wire_that_nobody_encoded_is_refused() -> None:
    for name in ALL:
        with pytest.raises(ProtocolError, match="elements"):
            codec(name).decode(np.zeros(3, np.uint8), 1000)
    coder = codec("topk:0.5")
    wire = coder.encode(np.arange(8, dtype=np.float32))
    for places in ([0, 1, 1, 2], [3, 2, 1, 0], [0, 1, 2, 8]):
        wire[:16] = np.array(places, "<u4").view(np.uint8)
        with pytest.raises(ProtocolError, match="ascending"):
            coder.decode(wire, 8)


@pytest.mark.parametrize("name", ["int7", "topk:0", "topk:2", "randomk:x", ""])
def test_unknown_names_are_errors(name: str) -> None:
    with pytest.raises(UsageError):
        codec(name)


def test_a_near_miss_names_what_was_meant() -> None:
    with pytest.raises(UsageError, match="int8"):
        codec("in8")


def test_threads_that_encode_at_once_do_not_share_memory() -> None:
    """Blocks are scaled in memory of the thread; larger arrays in fresh memory."""
    draw = np.random.default_rng(7)
    sizes = [300, 5, BLOCK, KEPT + BLOCK + 3, 70_000, 300]
    arrays = [draw.standard_normal(size).astype(np.float32) for size in sizes]
    int8 = codec("int8")
    want = [int8.encode(array.copy()).tobytes() for array in arrays]

    def encoded(_: int) -> list[bytes]:
        return [int8.encode(array).tobytes() for array in arrays]

    with ThreadPoolExecutor(4) as pool:
        assert all(found == want for found in pool.map(encoded, range(12)))
