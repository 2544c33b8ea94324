"""What a run on the linear model of `outer_models` must have come to, by its ledger.

The gradient of that model does not depend on the parameters, so what a lease adds up
to is known whenever, on whatever state, and however often its steps were made. The
ledger says which leases count, in which order; the outer algorithm's lines do the rest.
"""

from dataclasses import dataclass

import numpy as np
from helpers.models.closed_form import BATCH, BLOCK, NAMES, RATE, gradients

from pcp.training.data.corpus import Corpus
from pcp.training.data.dataset import token_inputs
from pcp.training.data.lease_pool import size
from pcp.training.storage.ledger import read


@dataclass
class Part:
    """What one worker brought into a round: θ_begin - θ_m, and how late."""

    worker: str
    steps: int
    age: int
    delta: np.ndarray


def parts(path, exp) -> list[list[Part]]:
    """By committed round, in its order: what its members brought."""
    corpus = Corpus(exp, token_inputs(BATCH, BLOCK))
    late: dict[str, int] = {}
    ages: dict[tuple[int, str], int] = {}
    consumed: dict[int, dict[str, list[tuple[int, int]]]] = {}
    for record in read(path)[0]:
        if record["kind"] == "late":
            late[record["worker"]] = record["round"]
        elif record["kind"] == "returned":
            late.pop(record["worker"], None)
        elif record["kind"] == "rewind":
            consumed = {r: held for r, held in consumed.items() if r <= record["to"]}
        elif record["kind"] == "commit":
            consumed[record["round"]] = record["consumed"]
            for name in record["consumed"]:
                began = late.pop(name, record["round"])
                ages[record["round"], name] = record["round"] - began
    return [
        [
            Part(name, size(lease) // BATCH, ages[number, name], _delta(corpus, lease))
            for name, lease in leases.items()
        ]
        for number, leases in sorted(consumed.items())
    ]


def _delta(corpus: Corpus, lease) -> np.ndarray:
    positions = np.concatenate([np.arange(a, b) for a, b in lease])
    total = np.zeros(2 * BLOCK)
    for batch in positions.reshape(-1, BATCH):
        g = gradients(corpus.read(batch))
        total += RATE * np.concatenate([g[name] for name in NAMES])
    return total


def delayed_nesterov(rounds: list[list[Part]], lr, beta, period) -> np.ndarray:
    """θ from zeros after these pushes, one after another, as the paper writes it."""
    theta, buffer, momentum, count = np.zeros(2 * BLOCK), 0.0, 0.0, 0
    for pushes in rounds:
        for push in pushes:
            theta = theta - lr * push.delta / period
            buffer, count = buffer + push.delta, count + 1
            if count == period:
                momentum = beta * momentum + buffer / period
                theta, buffer, count = theta - lr * beta * momentum, 0.0, 0
    return theta


def weighted_nesterov(rounds: list[list[Part]], lr, beta, discount=1.0) -> np.ndarray:
    """θ from zeros after DiLoCo's rounds: means by steps, of late ones λ^a of them."""
    theta, momentum = np.zeros(2 * BLOCK), 0.0
    for members in rounds:
        weights = [p.steps * discount**p.age for p in members]
        pairs = zip(weights, members, strict=True)
        mean = sum(w * p.delta for w, p in pairs) / sum(weights)
        momentum = beta * momentum + mean
        theta = theta - lr * (mean + beta * momentum)
    return theta


def saved_parameters(saved) -> np.ndarray:
    """The parameters of a checkpoint in one row."""
    return np.concatenate([saved.parameters[name] for name in NAMES])
