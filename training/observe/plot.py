"""The losses of a run as a picture."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pcp.errors import MissingPackage, install
from pcp.training.storage.round_record import Round


def plot_losses(
    rounds: Sequence[Round], validations: Mapping[int, float], path: str | Path
) -> Path:
    """Write a PNG of training and validation loss against tokens seen.

    Needs matplotlib (extra `train`); no display is needed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage(
            f"the loss plot needs matplotlib: {install('train')}"
        ) from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    tokens = {r.round: r.tokens_total for r in rounds}
    xs = [tokens[r.round] for r in rounds]
    axes.plot(xs, [r.loss for r in rounds], label="training")
    low, high = [r.loss_min for r in rounds], [r.loss_max for r in rounds]
    axes.fill_between(xs, low, high, alpha=0.2, label="range over workers")
    broken = [tokens[r.round] for r in rounds if not math.isfinite(r.loss)]
    if broken:  # along the lower edge, where no loss is drawn
        edge = axes.get_xaxis_transform()
        axes.plot(broken, [0.0] * len(broken), "rx", transform=edge, label="not finite")
    seen = {n: loss for n, loss in validations.items() if n in tokens}
    if seen:
        axes.plot(
            [tokens[n] for n in seen], list(seen.values()), "o-", label="validation"
        )
    axes.set_xlabel("tokens")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return Path(path)
