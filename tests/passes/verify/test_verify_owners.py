"""pcp-share-updates and pcp-one-owner: unlike members end with the same bits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.faults import perturbed_rounding
from helpers.models import sharded

ADAMW = "adamw{lr=1e-2,clip_norm=0.1}"
SGD = "sgd{lr=0.1}"
#: What a product and a sum in one rounding make of f32, many times over.
AMOUNT = 2.0**-18
TWO, FOUR = ("cpu:host", "cpu"), ("cpu:host", "cpu", "cpu", "cpu:host")


def _agree(elsewhere, model: str, options: dict[str, Any], steps: int = 3) -> None:
    """Joining refuses copies that differ; what they agree on is what one trains."""
    targets = options["targets"]
    others = [k for k, target in enumerate(targets) if target != targets[0]]
    job = elsewhere.submit(
        perturbed_rounding.trained, model, steps, others, AMOUNT, **options
    )
    found, expected, count = job.result(500)
    assert count > 50
    for function in ("grad", "apply", "eval"):
        assert set(found[function]) == set(expected[function])
    for key, value in expected["apply"].items():
        if key[0] == "param":
            np.testing.assert_allclose(found["apply"][key], value, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"mesh": "dp=2", "targets": TWO, "optimizer": ADAMW},
        {"mesh": "pp=2,dp=2", "targets": FOUR, "optimizer": SGD, "microbatches": 2},
    ],
)
def test_unlike_members_keep_the_same_bits(options: dict[str, Any], elsewhere) -> None:
    _agree(elsewhere, "mlp", options)


def test_without_targets_that_differ_they_drift_apart(elsewhere) -> None:
    """What is perturbed is seen: nobody told the compiler of these two."""
    options = {"mesh": "dp=2", "targets": ("cpu",), "optimizer": ADAMW}
    job = elsewhere.submit(perturbed_rounding.trained, "mlp", 1, [1], AMOUNT, **options)
    with pytest.raises(ValueError, match="members hold different values"):
        job.result(200)


OPTIMIZERS = ["adafactor", "lion{lr=1e-3}", "muon{lr=1e-3}", "nesterov{lr=1e-2}"]
SLOW = [
    *(("mlp", "dp=2", TWO, {"optimizer": optimizer}) for optimizer in OPTIMIZERS),
    ("mlp", "dp=3", ("cpu", "cpu:host", "cpu"), {"split": "dp=5,2,1"}),
    *(("mlp", "dp=2", TWO, {"zero": stage}) for stage in (1, 2, 3)),
    ("mlp", "dp=2", TWO, {"zero": 1, "optimizer": SGD}),
    ("mlp", "tp=2", TWO, {"sharding": "tp"}),
    ("mlp", "pp=2,dp=2", FOUR, {"zero": 3, "optimizer": SGD}),
    ("mlp", "pp=2,dp=2,tp=2", (*FOUR, *TWO, *TWO), {"sharding": "dp_tp"}),
    ("cnn", "dp=2", TWO, {"optimizer": SGD}),
    ("gpt", "tp=2", TWO, {"sharding": "tp"}),
    ("gpt", "dp=2,tp=2", FOUR, {"sharding": "tp"}),
    ("gpt", "pp=2", TWO, {"tied": True, "microbatches": 2, "optimizer": SGD}),
    ("gpt", "pp=2,dp=2", FOUR, {"tied": True, "optimizer": SGD}),
    ("llama", "tp=2", TWO, {"sharding": "tp", "optimizer": SGD}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "mesh", "targets", "more"), SLOW)
def test_every_plan_keeps_the_same_bits(
    model: str,
    mesh: str,
    targets: tuple[str, ...],
    more: dict[str, Any],
    elsewhere,
    tmp_path: Path,
) -> None:
    options = {"mesh": mesh, "targets": targets, "optimizer": ADAMW} | more
    if "sharding" in more:
        options["sharding"] = _sharding(model, more["sharding"], tmp_path)
    _agree(elsewhere, model, options, steps=2)


def _sharding(model: str, plan: str, folder: Path) -> Path:
    """A plan of `spmd_models` as a sharding file."""
    found = sharded.models()[model]
    tensors = {}
    for name, array in zip(found.names, found.arguments, strict=True):
        layout = sharded.layout(getattr(sharded, plan), name, array.shape)
        tensors[name] = [list(axes) for axes in layout.dims]
    path = folder / "sharding.json"
    path.write_text(json.dumps({"tensors": tensors}))
    return path
