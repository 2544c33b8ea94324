"""Functions that run once: what stages send each other for an update."""

from collections import Counter

import pytest
from helpers.oracles import staged_training

from pcp.dialect.bindings import ir
from pcp.passes.core.functions import symbol_name


def _sent(program, function: str) -> Counter[tuple[int, ...]]:
    """The shapes that any device sends in the function."""
    shapes: Counter[tuple[int, ...]] = Counter()
    with program.module.context:
        for view in program.module.body.operations:
            if view.operation.name != "builtin.module":
                continue
            body = view.operation.regions[0].blocks[0].operations
            own = next(f.operation for f in body if symbol_name(f) == function)
            for inner in own.regions[0].blocks[0].operations:
                op = inner.operation
                if op.name == "pcp.send":
                    shape = ir.RankedTensorType(op.operands[0].type).shape
                    shapes[tuple(shape)] += 1
    return shapes


@pytest.mark.parametrize("stages", [2, 4])
def test_an_update_needs_nothing_of_other_stages(stages: int) -> None:
    program = staged_training.compiled("mlp", mesh=f"pp={stages}", optimizer="adamw")
    assert not _sent(program, "apply")


def test_of_a_clipped_norm_only_scalars_are_sent() -> None:
    """Sums of squares to one stage, and what is made of them back."""
    clipped = "adamw{clip_norm=1.0}"
    program = staged_training.compiled("mlp", mesh="pp=2,dp=2", optimizer=clipped)
    sent = _sent(program, "apply")
    assert set(sent) == {()}
    assert sent[()] >= 4  # there and back, in both columns


def test_a_tied_parameter_is_updated_once_and_sent() -> None:
    """The embedding of a GPT lies on the first and on the last stage."""
    program = staged_training.compiled("gpt", mesh="pp=2", tied=True)
    sent = _sent(program, "apply")
    assert sum(sent.values()) == 1
    held = staged_training.holders(program, "apply", "param")
    assert held["token"] == ["mesh_0", "mesh_1"]
    state = staged_training.holders(program, "apply", "state")
    assert state["m.token"] == ["mesh_0"]
