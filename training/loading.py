"""Which trainer runs a bundle: the bundle's functions say it."""

from typing import Any

from pcp.training.streaming import StreamingTrainer, streams
from pcp.training.trainer import BundleTrainer


def load(bundle: Any, device: str, target: str | None) -> BundleTrainer:
    """A trainer for `bundle` on an IREE device, e.g. `local-task`.

    Without a target, the first module that the device can run.
    """
    kind = StreamingTrainer if streams(bundle.manifest) else BundleTrainer
    return kind.load(bundle, device, target)
