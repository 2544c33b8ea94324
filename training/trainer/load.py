"""Which trainer runs a bundle: its plan decides."""

from typing import Any

from pcp.bundle import Bundle
from pcp.runtime.program import host_processor
from pcp.training.trainer.bundle_trainer import BundleTrainer
from pcp.training.trainer.replica_trainer import ReplicaTrainer
from pcp.training.trainer.streaming_trainer import StreamingTrainer
from pcp.training.trainer.training_plan import plan_of
from pcp.training.trainer.zeroth_order_trainer import SlopeTrainer
from pcp.training_plan import EveryRound, EveryStep, Fragments, TrainingPlan


def load(bundle: Any, device: str, target: str | None) -> BundleTrainer:
    """A trainer for `bundle` on an IREE device, e.g. `local-task`.

    Without a target, the first module that the device can run.
    """
    return _kind(plan_of(bundle.manifest)).load(bundle, device, target)


def load_made(content: bytes, source: str, device: str, target: str) -> BundleTrainer:
    """A trainer for a bundle that was made for `target`; `source` is for errors.

    Of a bundle that has none for it, the best code that runs wherever that would.
    """
    bundle = Bundle.from_bytes(content, source=source)
    there = [t for t in host_processor.substitutes(target) if t in bundle.targets]
    return load(bundle, device, there[0] if there else None)


def _kind(plan: TrainingPlan) -> type[BundleTrainer]:
    match plan:
        case Fragments():
            return StreamingTrainer
        case EveryRound(parameters="replica" | "gossip"):
            return ReplicaTrainer
        case EveryStep(estimator="slope"):
            return SlopeTrainer
        case _:
            return BundleTrainer
