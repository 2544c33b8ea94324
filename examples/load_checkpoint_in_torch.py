"""A checkpoint that pcp trained, in the PyTorch model that it came from.

pcp train examples/demo.json --workers 2
python examples/load_checkpoint_in_torch.py runs/run_20261121-031500
"""

import argparse
import json
import sys
from pathlib import Path

try:
    import torch
except ModuleNotFoundError as error:
    raise SystemExit("this example needs torch: pip install -e '.[torch]'") from error

from pcp.training import Corpus, parse
from pcp.training.data.dataset import token_inputs
from pcp.training.observe import metrics
from pcp.training.storage import checkpoint

sys.path.insert(0, str(Path(__file__).parent / "models"))
from nanogpt_small import GPT


def validation_loss(model: GPT, corpus: Corpus) -> float:
    """Mean over the held-out batches, as pcp's workers compute it."""
    total = 0.0
    with torch.no_grad():
        for number in range(corpus.validation_batches):
            batch = corpus.validation(number)
            x, y = (torch.from_numpy(batch.tensors[n]) for n in ("ids", "targets"))
            total += model(x, y).item()
    return total / corpus.validation_batches


def main() -> None:
    """Print PyTorch's held-out loss beside the one that pcp recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--batch-size", type=int, default=64, help="of the .mlir")
    options = parser.parse_args()
    experiment = parse(json.loads((options.run / "experiment.json").read_text()))
    found, refused = checkpoint.newest(options.run)
    if found is None:
        sys.exit(f"{options.run}: no checkpoint {refused}")
    weights = {name: torch.from_numpy(a) for name, a in found.parameters.items()}
    block = len(weights["position.weight"])
    model = GPT(block_size=block)
    model.load_state_dict(weights)
    inputs = token_inputs(options.batch_size, block)
    loss = validation_loss(model, Corpus(experiment, inputs))
    ours = metrics.read(options.run / "metrics.jsonl")[1].get(found.round, float("nan"))
    print(f"round {found.round}: PyTorch {loss:.6f}, pcp {ours:.6f}", end=", ")
    print(f"difference {abs(loss - ours):.1e}")


if __name__ == "__main__":
    main()
