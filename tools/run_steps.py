"""The training of `pcp run --steps`: its flags, its data, and a member's steps."""

import hashlib
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pcp.bundle import Bundle, Manifest, TensorSpec
from pcp.errors import UsageError, counted
from pcp.tools.support import tensor_files
from pcp.tools.support.command import Parser
from pcp.training.storage import checkpoint
from pcp.training.storage.island_parts import IslandParts
from pcp.training.trainer import (
    bundle_checks,
    program_state,
    replica_agreement,
    step_loop,
)
from pcp.training.trainer.batch_source import BatchSource
from pcp.training.trainer.bundle_trainer import BundleTrainer
from pcp.training.worker.fixed_checkpoints import FixedCheckpoints
from pcp.training.worker.fixed_run import USUAL, FixedRounds, FixedRun


def add_flags(parser: Parser) -> None:
    """The flags of training."""
    add = parser.add_argument
    add("--steps", type=int, metavar="K", help="train for K steps")
    help_ = "train as so many workers; default: as many as the bundle says, or 1"
    add("--workers", type=int, metavar="N", help=help_)
    add("--tau", type=int, metavar="H", help="an outer step behind each H steps")
    add("--seed", type=int, default=0, help="of the first values; default 0")
    add("--checkpoint", metavar="DIR", help="keep checkpoints of the training there")
    help_ = f"steps between two checkpoints; default {USUAL}, in whole rounds"
    add("--checkpoint-every", type=int, metavar="K", help=help_)
    help_ = "go on from the newest checkpoint, if there is any"
    add("--resume", action="store_true", help=help_)
    help_ = "how often all begin again when one was killed; default 3"
    add("--restarts", type=int, default=3, metavar="N", help=help_)
    help_ = "compare what members hold alike every K steps, 0 never; default "
    help_ += f"{replica_agreement.USUAL} where they run code for unlike targets, else 0"
    add("--parity", type=int, metavar="K", help=help_)


def check(manifest: Manifest, flags: Namespace) -> None:
    """Refuse what cannot be trained; `flags.workers` becomes a number."""
    if flags.steps is None:
        if flags.workers or flags.tau:
            raise UsageError("--workers and --tau are for training, with --steps")
        if flags.checkpoint is not None or flags.resume or flags.checkpoint_every:
            names = "--checkpoint, --checkpoint-every and --resume"
            raise UsageError(f"{names} are for training, with --steps")
        flags.workers = 1
        return
    if flags.steps < 1:
        raise UsageError(f"--steps {flags.steps}: at least one")
    if flags.parity is not None and flags.parity < 0:
        raise UsageError(f"--parity {flags.parity}: at least 0, which is never")
    if flags.restarts < 0:
        raise UsageError(f"--restarts {flags.restarts}: at least 0")
    if flags.function:
        raise UsageError("--steps runs @grad and @apply; leave --function out")
    step_loop.check(manifest)
    if flags.workers is None:
        flags.workers = bundle_checks.workers_of(manifest) or 1
    if flags.workers < 1:
        raise UsageError(f"--workers {flags.workers}: at least one")
    bundle_checks.check_rounds(manifest, flags.workers, flags.tau, flags.steps)
    _check_checkpoints(flags)


def _check_checkpoints(flags: Namespace) -> None:
    """Refuse checkpoints that are not asked for; `flags` get how often."""
    if flags.checkpoint is None:
        if flags.resume or flags.checkpoint_every is not None:
            raise UsageError("--resume and --checkpoint-every go with --checkpoint DIR")
        return
    if not flags.checkpoint:
        raise UsageError("--checkpoint '': name a folder")
    tau = flags.tau or 1
    if flags.checkpoint_every is None:
        flags.checkpoint_every = max(tau, USUAL - USUAL % tau)
    if flags.checkpoint_every < 1 or flags.checkpoint_every % tau:
        raise UsageError(
            f"--checkpoint-every {flags.checkpoint_every}: a number of whole rounds, "
            f"of {counted(tau, 'step')} each"
        )
    if not flags.resume and kept(flags):
        raise UsageError(
            f"--checkpoint {flags.checkpoint}: there are checkpoints already; go on "
            "from them with --resume, or name another folder"
        )


def kept(flags: Namespace) -> bool:
    """Whether there are checkpoints to go on from."""
    return bool(flags.checkpoint and checkpoint.folders(flags.checkpoint))


def outputs(manifest: Manifest, name: str, flags: Namespace) -> list[TensorSpec]:
    """What the command writes: a function's results, or what training leaves."""
    if flags.steps is None:
        return list(manifest.function(name).results)
    return replica_agreement.outputs(manifest, flags.steps)


def trainer(bundle: Bundle, flags: Namespace, coordinate: int = 0) -> BundleTrainer:
    """The trainer of a member, in rounds if that is asked for."""
    plan = bundle_checks.fixed_plan(bundle.manifest, flags.tau)
    how = {"plan": plan, "host": flags.host}
    return BundleTrainer.load(bundle, flags.device, None, coordinate, **how)


def train(
    trainer: BundleTrainer,
    manifest: Manifest,
    flags: Namespace,
    groups: Any = None,
    **besides: Any,
) -> list[np.ndarray]:
    """The losses of the steps, then parameters and state."""
    batches, tensors = given(manifest, flags)
    if not flags.rank:
        _tell_outer_step(manifest, flags)
        if why := batches.shared():
            print(f"{flags.inputs} holds {why}", flush=True)
    rounds = FixedRounds(flags.steps, flags.tau, flags.checkpoint_every)
    worker = (flags.rank or 0) // manifest.worker_mesh().size
    besides["stepped"] = partial(_say_loss, trainer, flags)
    training = FixedRun(trainer, batches, rounds, worker, **besides)
    trainer.start(flags.seed, tensors)
    done, damaged = training.resume() if flags.resume else (0, [])
    if not flags.rank:
        for line in damaged:
            print(line, flush=True)
        if done:
            print(f"goes on behind step {done}, from {flags.checkpoint}", flush=True)
    return training.make(groups)


def given(
    manifest: Manifest, flags: Namespace
) -> tuple[BatchSource, dict[str, np.ndarray]]:
    """The batches of the run, which all fit, and the tensors that are given."""
    if flags.inputs.startswith("random:"):
        data = [t for t in manifest.function("grad").inputs if t.role == "data"]
        drawn = tensor_files.random(flags.inputs, data)
        tensors = dict(zip((t.name for t in data), drawn, strict=True))
    else:
        tensors = tensor_files.read(flags.inputs)
    batches = BatchSource(manifest, tensors, flags.steps, flags.workers)
    batches.check()
    return batches, tensors


def _digest(file: str) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def facts(bundle: Bundle, flags: Namespace) -> dict[str, Any]:
    """What has to be the same in a run that goes on from a checkpoint."""
    drawn = flags.inputs.startswith("random:")
    return {
        "bundle": bundle.digest,
        "inputs": flags.inputs if drawn else _digest(flags.inputs),
        "seed": flags.seed,
        "tau": flags.tau,
        "workers": flags.workers,
    }


def _tell_outer_step(manifest: Manifest, flags: Namespace) -> None:
    """Say that the bundle's outer step is left out, where it is."""
    if flags.tau is not None or bundle_checks.OUTER_STEP not in manifest.functions:
        return
    kind = f" ({manifest.algorithm.kind})" if manifest.algorithm else ""
    step = bundle_checks.OUTER_STEP
    print(
        f"without --tau these are inner steps alone: the bundle's @{step}"
        f"{kind} is left out; --tau H makes it behind each H steps",
        flush=True,
    )


def _say_loss(
    trainer: BundleTrainer, flags: Namespace, number: int, loss: np.ndarray
) -> None:
    metrics = program_state.taken(trainer.steps.metrics)
    if not flags.rank:  # all members have the same loss
        said = f"step {number}/{flags.steps}: loss {float(loss):.6g}{metrics}"
        print(said, flush=True)


def besides(
    bundle: Bundle, own: Manifest, flags: Namespace, world: Any, groups: Any
) -> dict[str, Any]:
    """What a member of a world does behind its steps: comparisons and checkpoints."""
    manifest, mesh = bundle.manifest, bundle.manifest.worker_mesh()
    often = replica_agreement.every(flags.parity, mesh)
    agreement = replica_agreement.Agreement(groups[""], manifest, own, mesh, often)
    if not flags.checkpoint:
        return {"agreement": agreement}
    folder, made = Path(flags.checkpoint), facts(bundle, flags)
    kept = FixedCheckpoints(folder, made, IslandParts.of(manifest), world)
    return {"agreement": agreement, "checkpoints": kept}
