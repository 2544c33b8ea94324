"""The learning rate of a training bundle's optimizer after so many steps.

It is what the program computes (`pcp.passes.training.optimizers.schedules` has the
formulas), from the hyperparameters that the bundle's manifest names. For people: no
step is made by it.
"""

import math

from pcp.manifest import Method


def rate(optimizer: Method | None, step: int | None) -> float | None:
    """The rate in step 1, 2, ...; None for another schedule than pcp's own.

    A rate that never changes needs no step.
    """
    if optimizer is None or not {"lr", "schedule"} <= optimizer.hyper.keys():
        return None
    hyper = optimizer.hyper
    peak, warm = float(hyper["lr"]), int(hyper.get("warmup_steps", 0))
    if hyper["schedule"] == "constant" and not warm:
        return peak
    if step is None:
        return None
    if step <= warm:
        return peak * step / warm
    floor, total = float(hyper.get("min_lr", 0)), int(hyper.get("total_steps", 0))
    match hyper["schedule"]:
        case "constant":
            return peak
        case "warmup_cosine":
            wave = math.cos(math.pi * min(1.0, (step - warm) / (total - warm)))
            return floor + (peak - floor) * (1 + wave) / 2
        case "wsd":
            last = int(hyper.get("decay_steps", 0)) or max(1, total // 5)
            fallen = min(1.0, max(0.0, (step - (total - last)) / last))
            return peak - (peak - floor) * fallen
    return None
