"""Attention of transformers' models: kernels of our own, and torch's gradients."""

from typing import Any

import numpy as np
import pytest

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context, parse
from pcp.frontends.torch import from_torch, weights_of
from pcp.passes.core.rewriting import functions, operations
from pcp.passes.kernels import objects, processors
from pcp.passes.kernels.own_kernels import OwnKernels

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from helpers.servers.iree_server import Iree  # noqa: E402

BATCH, LENGTH, HEADS = 2, 40, 4
HERE = objects.CONTAINED.get(processors.instruction_set("host"), ())
(SET, *_) = (s for s in HERE if objects.best("attention", s) == s)

COMMON = {
    "vocab_size": 67,
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": HEADS,
    "use_cache": False,
}
GROUPED = COMMON | {"num_key_value_heads": 2, "max_position_embeddings": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Qwen3": ("Qwen3ForCausalLM", GROUPED | {"head_dim": 16}),
    "GPT2": (
        "GPT2LMHeadModel",
        COMMON | {"n_positions": 64, "bos_token_id": 0, "eos_token_id": 0},
    ),
}


def _model(kind: str, attention: str) -> Any:
    name, options = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")
    given = config(**options, attn_implementation=attention)
    return getattr(transformers, name)(given).eval()


def _batch() -> dict[str, Any]:
    """Padded on the left: the first rows of a sequence see nothing."""
    ids = torch.randint(0, 67, (BATCH, LENGTH), generator=torch.manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    labels = torch.where(mask == 1, ids, -100)
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def _own(module: ir.Module) -> ir.Module:
    """`@grad` as `@main`, with kernels."""
    lowered = driver.lower(module, CompileOptions(mode="grad")).module
    (grad,) = (
        op for op in functions(lowered)
        if ir.StringAttr(op.attributes["sym_name"]).value == "grad"
    )  # fmt: skip
    context = make_context()
    context.allow_unregistered_dialects = True  # IREE's barriers
    found = parse(str(grad).replace("@grad", "@main"), context)
    OwnKernels(set=SET).run(found)
    return found


def _pairs(module: ir.Module) -> list[str]:
    """Ops that make a number for each pair of positions of each head."""
    least = BATCH * HEADS * LENGTH * LENGTH
    shapes = [
        (op, hlo.shape_of(value)) for op in operations(module) for value in op.results
        if isinstance(value.type, ir.RankedTensorType)
    ]  # fmt: skip
    return [
        str(op) for op, shape in shapes
        if list(shape[-2:]) == [LENGTH] * 2 and np.prod(shape) >= least
    ]  # fmt: skip


# Slow: transformers is imported; test_attention_forms.py has what torch writes.
@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_tensor_of_all_pairs_and_the_gradients_of_torch(
    kind: str, attention: str, iree: Iree
) -> None:
    model, batch = _model(kind, attention), _batch()
    module = _own(from_torch(model, **batch))
    assert not _pairs(module)
    given = [*weights_of(model).values(), *(x.numpy() for x in batch.values())]
    loss, *slopes = iree.run(str(module), given)
    theirs = model(**batch).loss
    theirs.backward()
    assert loss == pytest.approx(theirs.item(), rel=1e-6)
    named = dict(model.named_parameters())
    for name, slope in zip(weights_of(model), slopes, strict=True):
        want = named[name].grad.numpy()
        assert np.abs(slope - want).max() <= 1e-5 * np.abs(want).max(), name
