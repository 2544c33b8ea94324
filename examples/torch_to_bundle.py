"""A PyTorch model to a bundle, and one training step of it without PyTorch.

python examples/torch_to_bundle.py
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

try:
    import torch
except ModuleNotFoundError as error:
    raise SystemExit("this example needs torch: pip install -e '.[torch]'") from error

import pcp

sys.path.insert(0, str(Path(__file__).parent / "models"))
from mlp import MLP


def main() -> None:
    """Export, compile, save, load, run `@grad`; compare with autograd."""
    torch.manual_seed(0)
    model = MLP()
    images, labels = torch.randn(32, 64), torch.randint(10, (32,))

    module = pcp.from_torch(model, images, labels)
    bundle = pcp.compile(module, targets=["cpu:host"], optimizer=pcp.AdamW(lr=1e-3))
    with tempfile.TemporaryDirectory() as folder:
        path = bundle.write(Path(folder) / "mlp.pcp")
        print(f"{path.name}: {path.stat().st_size} bytes")
        program = pcp.Program.load(path, device="local-sync")

    arrays = [t.detach().numpy() for t in (*model.parameters(), images, labels)]
    loss, *gradients = program["grad"](*arrays)
    model(images, labels).backward()
    print(f"loss {loss:.6f}, PyTorch's {model(images, labels).item():.6f}")
    for (name, parameter), gradient in zip(
        model.named_parameters(), gradients, strict=True
    ):
        assert parameter.grad is not None
        difference = np.abs(gradient - parameter.grad.numpy()).max()
        print(f"{name:14} gradient differs by at most {difference:.1e}")


if __name__ == "__main__":
    main()
