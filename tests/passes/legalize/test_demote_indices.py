"""pcp-demote-indices computes the same numbers, or refuses."""

import numpy as np
import pytest
from helpers.models.stablehlo_small import INTEGERS, TRAIN, train_inputs
from helpers.servers.iree_server import Iree

from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.core.base import verify
from pcp.passes.legalize.demote_indices import demote_indices


def demoted(text: str) -> ir.Module:
    module = parse(text)
    demote_indices(module)
    module.context.allow_unregistered_dialects = True
    verify(module, "pcp-demote-indices")
    return module


@pytest.mark.parametrize("seed", [7, -1, -5_000_000_000_000, 2**63 - 1])
def test_integers_stay_what_they_were(iree: Iree, seed: int) -> None:
    inputs = [np.array(seed, np.int64), np.array([-7, 100, -101], np.int64)]
    want = iree.run(INTEGERS, inputs)
    got = iree.run(str(demoted(INTEGERS)), inputs)
    assert [g.dtype for g in got] == [w.dtype for w in want]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)
    high, sums, difference, low = got
    assert int(high) == ((seed % 2**64) >> 35) % 2**32
    assert int(low) == np.array(seed, np.int64).astype(np.int32)
    np.testing.assert_array_equal(sums, [-6, 98, -98])
    assert int(difference) == -2 * 98


@pytest.mark.slow  # integers do, above
def test_a_model_stays_what_it_was(iree: Iree) -> None:
    (want,) = iree.run(TRAIN, train_inputs())
    (got,) = iree.run(str(demoted(TRAIN)), train_inputs())
    np.testing.assert_array_equal(got, want)


def test_nothing_computes_with_64_bits() -> None:
    for line in str(demoted(TRAIN)).splitlines():
        if "stablehlo." in line:
            assert "i64>" not in line.replace("array<i64", "")


def test_without_64_bits_nothing_changes() -> None:
    text = TRAIN.replace("i64>", "i32>").replace("array<i64", "array<i64")
    before = str(parse(text))
    assert str(demoted(text)) == before


def wide(body: str) -> str:
    return f"func.func @main(%x: tensor<3xi64>) -> tensor<3xi64> {{\n{body}\n}}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "%c = stablehlo.constant dense<4294967296> : tensor<3xi64>\n"
            "%0 = stablehlo.add %x, %c : tensor<3xi64>\n"
            "return %0 : tensor<3xi64>",
            r"2:6: stablehlo\.constant: holds an integer beyond 32 bits",
        ),
        (
            "%0 = stablehlo.popcnt %x : tensor<3xi64>\nreturn %0 : tensor<3xi64>",
            r"2:6: stablehlo\.popcnt: needs all 64 bits",
        ),
        (
            "%c = stablehlo.constant dense<31> : tensor<3xi64>\n"
            "%0 = stablehlo.shift_right_logical %x, %c : tensor<3xi64>\n"
            "return %0 : tensor<3xi64>",
            r"3:6: stablehlo\.shift_right_logical: needs all 64 bits",
        ),
        (
            "%c = stablehlo.constant dense<64> : tensor<3xi64>\n"
            "%0 = stablehlo.shift_right_logical %x, %c : tensor<3xi64>\n"
            "return %0 : tensor<3xi64>",
            "needs all 64 bits",
        ),
        (
            "%f = stablehlo.bitcast_convert %x : (tensor<3xi64>) -> tensor<3xf64>\n"
            "%0 = stablehlo.convert %f : (tensor<3xf64>) -> tensor<3xi64>\n"
            "return %0 : tensor<3xi64>",
            r"bitcast_convert: needs all 64 bits",
        ),
    ],
)
def test_what_needs_64_bits_is_refused(body: str, message: str) -> None:
    with pytest.raises(PassError, match=message):
        demote_indices(parse(wide(body)))


def test_the_context_is_left_as_it_was() -> None:
    module = parse(INTEGERS)
    demote_indices(module)
    assert not module.context.allow_unregistered_dialects
