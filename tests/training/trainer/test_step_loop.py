"""The data of a step are what the program takes, or refused."""

import numpy as np
import pytest

from pcp.bundle import Function, Manifest, TensorSpec
from pcp.errors import UsageError
from pcp.training.trainer.step_loop import batch_of, cast

NAN, INF = float("nan"), float("inf")


def _spec(dtype: str, shape: tuple[int, ...] = (2,), name: str = "x") -> TensorSpec:
    return TensorSpec(name=name, role="data", shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    ("held", "dtype"),
    [
        (np.array([1, 2], np.int32), "i64"),
        (np.array([1, 2]), "i8"),
        (np.array([1.0, 2.0]), "i64"),
        (np.array([0, 1]), "i1"),
        (np.array([True, False]), "f32"),
        (np.array([0.1, NAN]), "f32"),
        (np.array([0.1, -INF]), "f16"),
        (np.array([1, 2], np.float32), "complex<f32>"),
    ],
)
def test_what_loses_nothing_is_taken(held: np.ndarray, dtype: str) -> None:
    made = cast(held, _spec(dtype))
    np.testing.assert_allclose(made, held, rtol=1e-3)
    assert cast(made, _spec(dtype)) is made


@pytest.mark.parametrize(
    ("held", "dtype", "says"),
    [
        (np.array([1.0, 2.5]), "i64", "holds float64, .* takes i64, .* hold 2.5"),
        (np.array([1.0, NAN]), "i32", "cannot hold nan"),
        (np.array([1, 300]), "i8", "cannot hold 300"),
        (np.array([1, -1]), "ui64", "cannot hold -1"),
        (np.array([0, 2]), "i1", "cannot hold 2"),
        (np.array([1.0, 1e39]), "f32", r"cannot hold 1e\+39"),
        (np.array([1, 1j]), "f32", "holds complex128, and the program takes f32"),
        (np.array(["a", "b"]), "f32", "holds <U1, which are no numbers"),
        (np.array(["1", "2"]), "i64", "no numbers"),
        (np.zeros(2, "datetime64[s]"), "i64", "no numbers"),
    ],
)
def test_what_would_be_lost_is_refused(held, dtype: str, says: str) -> None:
    with pytest.raises(UsageError, match=r"^x holds .*") as refused:
        cast(held, _spec(dtype))
    refused.match(says)


def test_bits_of_a_type_that_files_do_not_name() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    held = np.array([1.5, -2], ml_dtypes.bfloat16)
    made = cast(held.view("V2"), _spec("bf16"))
    assert made.dtype == held.dtype
    np.testing.assert_array_equal(made, held)


def _manifest() -> Manifest:
    inputs = (_spec("i64", (3,), "ids"), _spec("i64", (3,), "targets"))
    grad = Function(inputs=inputs, results=())
    return Manifest(mode="train", entry="main", functions={"grad": grad})


def test_batches_are_taken_in_turn() -> None:
    ids, targets = np.arange(6).reshape(2, 3), np.arange(3)
    for step in range(4):
        batch = batch_of(_manifest(), {"ids": ids, "targets": targets}, step)
        np.testing.assert_array_equal(batch["ids"], ids[step % 2])
        np.testing.assert_array_equal(batch["targets"], targets)


def test_unequal_numbers_of_batches_are_refused() -> None:
    given = {"ids": np.zeros((3, 3), int), "targets": np.zeros((2, 3), int)}
    with pytest.raises(UsageError, match=r"unequal .* ids 3, targets 2"):
        batch_of(_manifest(), given, 0)
