"""JAX's own derivative tests, recorded: what pcp makes of each program is JAX's."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.oracles import recorded_cases, recorded_replay
from helpers.servers.interpreter import Interpreter

from pcp.autodiff.core import registry
from pcp.autodiff.core.kinds import Elementwise
from pcp.autodiff.core.values import scale
from pcp.dialect import hlo

DATA = Path(__file__).parent / "data"

#: `sample.zip` is what JAX generates by default, `full.zip` everything else.
SAMPLE = recorded_cases.load(DATA / "sample.zip")
REST = recorded_cases.load(DATA / "full.zip")

#: Of the sample, `make test` takes one in so many; `make test-full` takes all.
STRIDE = 12

CHECKS = {
    "vjp": recorded_replay.check_vjp,
    "jvp": recorded_replay.check_jvp,
    "second": recorded_replay.check_second,
}


def params(check: str) -> Iterator[object]:
    """The sample's cases, most of them slow, each with the checks that it has."""
    for i, case in enumerate(SAMPLE):
        if check == "second" and not case.second:
            continue
        quick = i % (STRIDE * (3 if check == "second" else 1)) == 0
        marks = [] if quick else [pytest.mark.slow]
        yield pytest.param(CHECKS[check], case, id=f"{check}-{case}", marks=marks)


@pytest.mark.parametrize(
    ("check", "case"), [*params("vjp"), *params("jvp"), *params("second")]
)
def test_sample(
    check: Callable[..., None], case: recorded_cases.Recorded, interpreter: Interpreter
) -> None:
    check(case, interpreter)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST, ids=str)
def test_rest(case: recorded_cases.Recorded, interpreter: Interpreter) -> None:
    recorded_replay.check_vjp(case, interpreter)
    recorded_replay.check_jvp(case, interpreter)
    if case.second:
        recorded_replay.check_second(case, interpreter)


def test_the_archives_hold_what_the_harvest_promises() -> None:
    assert len({c.text for c in SAMPLE}) >= 718
    assert len(SAMPLE) + len(REST) >= 3000
    assert not {c.text for c in SAMPLE if c.args[0].ndim} & {c.text for c in REST}
    assert sum(bool(c.second) for c in SAMPLE) >= 700


def test_a_rule_wrong_by_a_thousandth_is_caught(interpreter: Interpreter) -> None:
    case = next(c for c in SAMPLE if "stablehlo.sine" in c.text and c.args[0].ndim)
    wrong = Elementwise(lambda g, x, y: scale(hlo.multiply(g, hlo.cosine(x)), 1.001))
    registry.register("stablehlo.sine", wrong)
    try:
        for check in CHECKS.values():
            with pytest.raises(AssertionError, match="Not equal to tolerance"):
                check(case, interpreter)
    finally:
        registry.unregister("stablehlo.sine")
    for check in CHECKS.values():
        check(case, interpreter)
