"""Resharding of a checkpoint of N workers for M: rules for private state.

Shared state is the same for any number of workers. Each kind of a worker's private
state has a sum on which the next exchanges depend, and which stays the same:

    error, residue     values that were not sent yet: Σ e. Each of the first M keeps its
                       own; that of rank n >= M is added to rank n mod M; further ones
                       begin with 0
    delta, weight      in flight, and its tokens: Σ w Δ and Σ w. All have Σ w Δ / Σ w
                       and Σ w / M
    replica, local,    a worker's own parameters and their momentum: all have the mean
    momentum, velocity

Sums are taken in float64, in the order of ranks. The inner optimizer's moments are
estimates without such a sum: rank m has those of rank m mod N.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pcp.errors import StateMismatch
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.safetensors_io import Arrays, mean, summed
from pcp.training.storage.state_names import INNER, OWN, PRIVATE, under

WEIGHT = "weight"
_Group = list[np.ndarray]


def reshard(saved: Checkpoint, workers: int) -> Checkpoint:
    """The checkpoint for `workers` workers; itself, if as many saved it.

    `StateMismatch` for a kind of state that has no rule.
    """
    count = len(saved.workers)
    if not count or workers == count:
        return saved
    inner = [saved.workers[m % count] for m in range(workers)]
    return replace(saved, workers=inner, private=_private(saved.private, workers))


def _private(saved: Sequence[Arrays], workers: int) -> list[Arrays]:
    names = list(saved[0])
    if any(list(own) != names for own in saved):
        raise StateMismatch("the checkpoint's workers have state of different kinds")
    found: list[Arrays] = [{} for _ in range(workers)]
    weights = [own[WEIGHT] for own in saved] if WEIGHT in names else []
    for name in names:
        kind = name.partition(".")[0]
        if kind not in RULES:
            raise StateMismatch(
                f"{name}: no rule says what becomes of it with {workers} workers in "
                f"place of {len(saved)}; resume with {len(saved)}"
            )
        shares = RULES[kind]([own[name] for own in saved], weights, workers)
        for own, share in zip(found, shares, strict=True):
            own[name] = share
    return found


def _kept(group: _Group, weights: _Group, workers: int) -> _Group:
    """Each worker keeps its own array; one that stays gets that of one that left."""
    totals = [np.zeros(group[0].shape) for _ in range(workers)]
    for rank, array in enumerate(group):
        totals[rank % workers] += array
    return [total.astype(group[0].dtype) for total in totals]


def _mean(group: _Group, weights: _Group, workers: int) -> _Group:
    return _alike(mean(group), group, workers)


def _in_flight(group: _Group, weights: _Group, workers: int) -> _Group:
    """The mean by weights, as the next exchange computes it."""
    total = sum(map(float, weights))
    pairs = zip(weights, group, strict=True)
    sent = summed(float(w) * np.asarray(a, np.float64) for w, a in pairs)
    return _alike(sent / (total or 1.0), group, workers)


def _share(group: _Group, weights: _Group, workers: int) -> _Group:
    return _alike(summed(group) / workers, group, workers)


def _alike(array: Any, group: _Group, workers: int) -> _Group:
    return [np.array(array, group[0].dtype) for _ in range(workers)]


def rejoining(fetched: Arrays, held: Arrays, index: int) -> Arrays:
    """The state for a worker that comes back: the fetched one, with its own part.

    `held` is its snapshot of the round that it knows. It keeps the inner optimizer's
    state and values that it has not sent; values in flight, and its own parameters,
    were of a round that is over.
    """
    inner = {k: a for k, a in held.items() if k.startswith(INNER)}
    others = [k for k in fetched if not (inner and k.startswith(INNER))]
    unsent = {
        f"{PRIVATE}{index}/{name}": array
        for name, array in under(f"{PRIVATE}{OWN}/", held).items()
        if RULES.get(name.partition(".")[0]) is _kept
    }
    return {k: fetched[k] for k in others} | inner | unsent


RULES: dict[str, Callable[[_Group, _Group, int], _Group]] = {
    "error": _kept,
    "residue": _kept,
    "delta": _in_flight,
    WEIGHT: _share,
    "replica": _mean,
    "local": _mean,
    "momentum": _mean,
    "velocity": _mean,
}
"""The rule for tensors by the first part of their names."""
