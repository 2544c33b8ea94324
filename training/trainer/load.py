"""Which trainer runs a bundle: the bundle's functions say it."""

from collections.abc import Callable
from typing import Any

from pcp.bundle import Bundle
from pcp.manifest import Manifest
from pcp.runtime.program import host_processor
from pcp.training.trainer.bundle_trainer import BundleTrainer
from pcp.training.trainer.replica_trainer import ReplicaTrainer, has_replicas
from pcp.training.trainer.streaming_trainer import StreamingTrainer, streams
from pcp.training.trainer.zeroth_order_trainer import SlopeTrainer, by_slopes


def load(bundle: Any, device: str, target: str | None) -> BundleTrainer:
    """A trainer for `bundle` on an IREE device, e.g. `local-task`.

    Without a target, the first module that the device can run.
    """
    kind = next(kind for says, kind in _KINDS if says(bundle.manifest))
    return kind.load(bundle, device, target)


def load_made(content: bytes, source: str, device: str, target: str) -> BundleTrainer:
    """A trainer for a bundle that was made for `target`; `source` is for errors.

    Of a bundle that has none for it, the best code that runs wherever that would.
    """
    bundle = Bundle.from_bytes(content, source=source)
    there = [t for t in host_processor.substitutes(target) if t in bundle.targets]
    return load(bundle, device, there[0] if there else None)


_KINDS: list[tuple[Callable[[Manifest], bool], type[BundleTrainer]]] = [
    (streams, StreamingTrainer),
    (has_replicas, ReplicaTrainer),
    (by_slopes, SlopeTrainer),
    (lambda manifest: True, BundleTrainer),
]
