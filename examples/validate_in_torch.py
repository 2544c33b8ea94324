"""The validation loss of a run's checkpoint, computed by PyTorch.

    python examples/validate_in_torch.py runs/run_20261121-031500

loads the newest checkpoint of the run into `models/nanogpt_small.py`, evaluates
the held-out batches and compares with what the run recorded. Needs `pcp[torch]`.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "models"))
from nanogpt_small import GPT

from pcp.training import checkpoint, metrics
from pcp.training.data import Corpus
from pcp.training.experiment import parse

TOLERANCE = 1e-4
BATCH_SHAPE = (64, 32)
"""Batch and block of `models/nanogpt_small.mlir`."""


def main(run: str) -> int:
    """Print both losses; the exit code says whether they agree."""
    saved, _ = checkpoint.newest(run)
    if saved is None:
        print(f"{run}: no checkpoint there", file=sys.stderr)
        return 1
    experiment = parse(json.loads((Path(run) / "experiment.json").read_text()))
    model = GPT()
    weights = {name: torch.from_numpy(a) for name, a in saved.parameters.items()}
    model.load_state_dict(weights, strict=False)
    # What a checkpoint lacks may only be buffers, such as the causal mask.
    missing = set(dict(model.named_parameters())) - set(weights)
    if missing:
        print(f"the checkpoint lacks {sorted(missing)}", file=sys.stderr)
        return 1
    corpus = Corpus(experiment, *BATCH_SHAPE)
    theirs = float(np.mean([_loss(model, corpus, i) for i in _batches(corpus)]))
    ours = metrics.read(Path(run) / metrics.FILE_NAME)[1][saved.round]
    print(f"round {saved.round}: pcp {ours:.6f}, torch {theirs:.6f}")
    return int(abs(ours - theirs) > TOLERANCE)


def _batches(corpus: Corpus) -> range:
    return range(corpus.validation_batches)


@torch.no_grad()
def _loss(model: torch.nn.Module, corpus: Corpus, number: int) -> float:
    batch = corpus.validation(number)
    ids, targets = np.copy(batch.inputs), np.copy(batch.targets)
    return model(torch.from_numpy(ids), torch.from_numpy(targets)).item()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
