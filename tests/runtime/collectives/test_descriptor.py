"""Descriptors that all calls alike share, and the arithmetic of small sums."""

import threading
import warnings

import numpy as np
import pytest

from pcp.runtime.collectives.descriptor import FixedDescriptor, read, written
from pcp.runtime.collectives.reduction import Reduction
from pcp.runtime.collectives.validation import facts_of, facts_of_sum

_FLOATS = ("float16", "float32", "complex64")


def test_the_descriptor_of_a_sum_is_that_of_facts() -> None:
    array = np.zeros((3, 1), np.float16)
    fixed = facts_of_sum("all_reduce", array.dtype, array.shape, "mean")
    plain = facts_of("all_reduce", array, op="mean")
    assert type(plain) is dict
    assert fixed == plain
    assert written(fixed) == written(fixed) == written(plain)
    assert read(memoryview(written(fixed))) == plain
    again = facts_of_sum(
        "all_reduce", np.ones((3, 1), np.float16).dtype, (3, 1), "mean"
    )
    assert again is fixed


def test_calls_unlike_have_descriptors_of_their_own() -> None:
    given = [
        (dtype, shape, op)
        for dtype in ("float32", "int32", ">i4", "bool")
        for shape in ((), (0,), (1,), (2,), (1, 2), (2, 1))
        for op in ("sum", "mean", "max")
    ]
    found = {written(facts_of_sum("a", np.dtype(d), s, op)) for d, s, op in given}
    # The order of bytes is no fact: `checked` refuses arrays of another one.
    assert len(found) == len(given) * 3 // 4


def test_a_shared_descriptor_does_not_change() -> None:
    fixed = FixedDescriptor(kind="all_reduce", op="sum")
    before = written(fixed)
    with pytest.raises(TypeError, match="shared"):
        fixed["op"] = "max"
    with pytest.raises(TypeError, match="shared"):
        fixed.__ior__({"algorithm": "ring"})
    more = fixed | {"algorithm": "ring"}
    assert type(more) is dict
    assert written(fixed) == before
    assert read(memoryview(written(more))) == more


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        *((dtype, op) for dtype in _FLOATS for op in ("sum", "prod", "mean")),
        ("int32", "sum"),
        ("int32", "prod"),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_sum_in_given_memory_has_the_bits_of_a_new_one(dtype, op, count) -> None:
    draw = np.random.default_rng(4)
    parts = [(9 * draw.standard_normal((5, 2))).astype(dtype) for _ in range(count)]
    parts[0].reshape(-1)[0] = 0
    before = [part.copy() for part in parts]
    reduction = Reduction.of(op, np.dtype(dtype))
    made, out = reduction.sequential(parts), np.empty((5, 2), dtype)
    assert reduction.sequential(parts, out) is out
    assert out.tobytes() == made.tobytes()
    assert not any(np.shares_memory(made, part) for part in parts)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(parts, before, strict=True))
    wide = np.float32 if dtype == "float16" else dtype
    want = parts[0].astype(wide)
    for part in parts[1:]:
        want = (want * part if op == "prod" else want + part).astype(wide)
    want = want / np.array(count, wide) if op == "mean" else want
    assert out.tobytes() == want.astype(dtype).tobytes()


def test_sums_in_several_threads_warn_of_nothing_and_change_no_settings() -> None:
    huge, failed = np.full(1 << 16, 3e38, np.float32), list[BaseException]()
    reduction = Reduction.of("mean", huge.dtype)

    def add() -> None:
        try:
            with np.errstate(all="raise"):
                for _ in range(20):
                    assert np.isinf(reduction.sequential([huge, huge])).all()
                assert set(np.geterr().values()) == {"raise"}
        except BaseException as error:
            failed.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert not failed
