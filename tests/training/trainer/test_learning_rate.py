"""The learning rate of a round: of its last inner step, by the program's own count."""

from dataclasses import replace

import pytest
from helpers.models.closed_form import batches, bundle, play
from helpers.oracles.round_metrics import record

from pcp.training.observe.figures import figures

H, ROUNDS = 3, 3
WARMS = "sgd{lr=0.5,warmup_steps=8}"


@pytest.mark.slow  # a program for each
@pytest.mark.parametrize("kind", ["diloco", "ddp"])
def test_it_rises_while_the_schedule_warms_up(kind: str) -> None:
    data = [batches(H * ROUNDS, worker) for worker in range(2)]
    seen = play(
        bundle("linear", kind, WARMS), data, ROUNDS, watch=lambda t, _: t.learning_rate
    )
    assert seen == [[0.5 * 3 / 8, 0.5 * 6 / 8, 0.5]] * 2


def test_a_rate_that_is_not_known_is_no_figure() -> None:
    assert figures(record(1))["learning_rate"] == 0.1
    assert "learning_rate" not in figures(replace(record(1), learning_rate=None))
