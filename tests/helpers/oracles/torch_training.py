"""A compiled training step of a PyTorch model, and torch's own of the same model."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import pcp
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.training.trainer.functions import Functions, Key
from pcp.training.trainer.step_loop import MODEL_STATE

RATE, DECAY = 1e-3, 0.1
KEY: Key = ("key", "rng")
OPTIMIZER = f"adamw{{lr={RATE},weight_decay={DECAY}}}"


def arrays(keywords: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors among keywords, as `@main` takes them."""
    return {k: v.numpy() for k, v in keywords.items() if hasattr(v, "numpy")}


@dataclass(frozen=True)
class Trained:
    """A compiled training step of a model, and the values that it begins with."""

    functions: Functions
    values: dict[Key, Any]

    @staticmethod
    def of(model: Any, keywords: Mapping[str, Any]) -> "Trained":
        """Of a model in its own mode, called with these keywords."""
        module = pcp.from_torch(model, **keywords)
        bundle = pcp.compile(
            module, ["cpu:host"], mode="train", optimizer=OPTIMIZER, algorithm="ddp"
        )
        program = pcp.Program.load(bundle, device="local-sync")
        values: dict[Key, Any] = {("data", k): v for k, v in arrays(keywords).items()}
        for name, p in model.named_parameters():
            role = "param" if p.requires_grad else "frozen"
            values[role, name] = np.array(p.detach().numpy())
        for name, buffer in model.named_buffers():
            values[MODEL_STATE, name] = np.array(buffer.numpy())
        for state in program.manifest.functions["apply"].inputs:
            if state.role == "state":
                kind = numpy_dtype(state.dtype)
                values["state", state.name] = np.zeros(state.shape, kind)
        return Trained(Functions(program), values)

    def with_key(self, key: np.ndarray) -> "Trained":
        """The same, drawing its random numbers from this key."""
        return replace(self, values=self.values | {KEY: key})

    def gradients(self) -> tuple[float, dict[str, np.ndarray]]:
        """The loss, and the gradient of each parameter."""
        found = self.functions("grad", self.values)
        grads = {n: np.asarray(v) for (role, n), v in found.items() if role == "grad"}
        return float(np.asarray(found["loss", "loss"])), grads

    def step(self) -> tuple[float, "Trained"]:
        """A step of the optimizer: the loss before it, and what takes this one's place.

        Arrays on the device may be donated to it.
        """
        found = self.functions("grad", self.values)
        new = self.functions("apply", {**self.values, **found})
        kept = {k: np.array(v) for k, v in found.items() if k[0] == MODEL_STATE}
        after = replace(self, values=self.values | new | kept)
        return float(np.asarray(found["loss", "loss"])), after

    def steps(self) -> Iterator[tuple[float, dict[str, np.ndarray]]]:
        """Of steps of the optimizer: the loss before each, the model's state after."""
        now = self
        while True:
            loss, now = now.step()
            yield loss, now.named(MODEL_STATE)

    def named(self, role: str) -> dict[str, np.ndarray]:
        """The values of a role, by name."""
        return {n: np.array(v) for (r, n), v in self.values.items() if r == role}


def torch_steps(
    model: Any, keywords: Mapping[str, Any]
) -> Iterator[tuple[float, dict[str, np.ndarray]]]:
    """As `Trained.steps`, by torch, of a copy of the model; state are its buffers."""
    import torch

    mine = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(mine.parameters(), RATE, weight_decay=DECAY)
    while True:
        loss = mine(**keywords).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item(), {n: b.numpy().copy() for n, b in mine.named_buffers()}
