"""Where to cut a chain of ops into stages.

The slowest stage decides how long a step takes, so it is made as short as can be;
among the cuts that keep it so (up to `slack`), those that cut the fewest bytes are
taken. Both are dynamic programs over the cut points, as in Alpa (Zheng et al. 2022,
arXiv:2201.12023, section 5.2), with the layout inside a stage left aside.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: How much slower than the best a stage may become to cut fewer bytes.
SLACK = 0.1


@dataclass(frozen=True)
class Chain:
    """Ops in order: their cost, the bytes they keep, and what a cut costs.

    `crossing[c]` are the bytes that cross a cut in front of op c; `allowed[c]` says
    whether there may be one. `speeds[s]` is how fast stage s is, `room[s]` how many
    bytes it has (infinity where nobody said). `bound[i]` are the stages that op i may
    be on; without it, all.
    """

    cost: Sequence[float]
    kept: Sequence[float]
    crossing: Sequence[float]
    allowed: Sequence[bool]
    speeds: Sequence[float]
    room: Sequence[float]
    bound: Sequence[frozenset[int]] = ()


def best_cuts(chain: Chain, slack: float = SLACK) -> list[int] | None:
    """The first op of each stage after the first; None where nothing fits."""
    n, stages = len(chain.cost), len(chain.speeds)
    times, fits = _pieces(chain)
    shortest = np.where(fits[0, 0], times[0, 0], np.inf)
    for s in range(1, stages):
        shortest = _step(np.maximum, shortest, times[s], fits[s], chain)
    if not np.isfinite(shortest[n]):
        return None
    limit = shortest[n] * (1 + slack)
    return _fewest_bytes(chain, fits & (times <= limit))


def _pieces(chain: Chain) -> tuple[np.ndarray, np.ndarray]:
    """[stage, first, end]: the time of that piece there, and whether it fits."""
    n = len(chain.cost)
    cost, kept = (np.concatenate([[0], np.cumsum(x)]) for x in (chain.cost, chain.kept))
    work = cost[None, :] - cost[:, None]
    held = kept[None, :] - kept[:, None]
    filled = np.arange(n + 1)[None, :] > np.arange(n + 1)[:, None]
    times = np.stack([work / speed for speed in chain.speeds])
    fits = np.stack([filled & (held <= room) for room in chain.room])
    for stage, mask in enumerate(fits) if chain.bound else ():
        strangers = [stage not in stages for stages in chain.bound]
        before = np.concatenate([[0], np.cumsum(strangers)])
        mask &= before[None, :] == before[:, None]
    return times, fits


def _step(join, best: np.ndarray, price: np.ndarray, fits: np.ndarray, chain: Chain):
    """The best of `end` ops with one stage more: over its first op."""
    allowed = np.append(np.asarray(chain.allowed, bool), False)
    usable = fits & allowed[:, None]
    return np.where(usable, join(best[:, None], price), np.inf).min(axis=0)


def _fewest_bytes(chain: Chain, fits: np.ndarray) -> list[int]:
    """The cuts of the pieces that fit, with the smallest sum of bytes."""
    n, stages = len(chain.cost), len(chain.speeds)
    bytes_ = np.append(np.asarray(chain.crossing, float), 0.0)
    allowed = np.append(np.asarray(chain.allowed, bool), False)
    best = np.where(fits[0, 0], 0.0, np.inf)
    origins = []
    for s in range(1, stages):
        usable = fits[s] & allowed[:, None]
        options = np.where(usable, (best + bytes_)[:, None], np.inf)
        origins.append(options.argmin(axis=0))
        best = options.min(axis=0)
    cuts, end = [], n
    for origin in reversed(origins):
        end = int(origin[end])
        cuts.append(end)
    return cuts[::-1]
