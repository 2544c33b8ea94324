"""The gradient's norm of a round: of its last inner step, by closed forms."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.models.closed_form import batches, bundle, gradients, play
from helpers.oracles.round_metrics import record
from helpers.sampled import sampled

from pcp.training.observe.figures import figures

H, ROUNDS = 3, 2


def _norms(kind: str, members: int) -> list[list[float | None]]:
    data = [batches(H * ROUNDS, worker) for worker in range(members)]

    def norm(trainer: Any, number: int) -> tuple[float | None]:
        return (trainer.gradient_norm,)

    seen = play(bundle("linear", kind), data, ROUNDS, watch=norm)
    return [[norm for (norm,) in one] for one in seen]


def _last(member: int, number: int) -> np.ndarray:
    """The linear model's gradient in the last step of a round."""
    batch = batches(H * ROUNDS, member)[(number + 1) * H - 1]
    return np.concatenate([*gradients(batch).values()]).astype(np.float64)


@sampled(
    "kind",
    ["diloco", "diloco{lr=0.7}", "streaming_diloco{fragments=2,tau=1}"],
    ["diloco{lr=0.7}"],
)
def test_it_is_this_workers_own(kind: str) -> None:
    for member, seen in enumerate(_norms(kind, 2)):
        wanted = [np.linalg.norm(_last(member, n)) for n in range(ROUNDS)]
        np.testing.assert_allclose(np.array(seen, float), wanted, rtol=1e-6)


def test_it_is_of_all_together_where_they_meet_in_every_step() -> None:
    both = [sum(_last(m, n) for m in range(2)) / 2 for n in range(ROUNDS)]
    for seen in _norms("ddp", 2):
        wanted = [np.linalg.norm(gradient) for gradient in both]
        np.testing.assert_allclose(np.array(seen, float), wanted, rtol=1e-6)


@pytest.mark.slow  # a program more
def test_a_slope_is_no_gradient() -> None:
    assert _norms("mezo{eps=0.0625,noise=signs}", 1) == [[None] * ROUNDS]


@pytest.mark.slow  # a program more
def test_it_is_that_before_clipping() -> None:
    """@apply clips: it is given the gradient as it is."""
    code = bundle("linear", "diloco", "sgd{lr=0.125,clip_norm=0.001}")
    norms = play(code, [batches(H, 0)], 1, watch=lambda t, _: (t.gradient_norm,))
    last = np.concatenate([*gradients(batches(H, 0)[-1]).values()])
    np.testing.assert_allclose(norms, [[[np.linalg.norm(last)]]], rtol=1e-6)


def test_a_rounds_is_the_mean_of_those_that_are_known() -> None:
    made = record(1, 2.0)
    assert made.gradient_norm is None
    assert "gradient_norm" not in figures(made)
    one, other = made.members
    known = replace(one, gradient_norm=3.0), replace(other, gradient_norm=5.0)
    made = replace(made, members=(*known, replace(one, worker=2)))
    assert figures(made)["gradient_norm"] == 4.0
    assert figures(made)["worker/0/gradient_norm"] == 3.0
    assert "worker/2/gradient_norm" not in figures(made)
