"""pcp-verify-inplace: what it accepts, what it refuses, and that IREE then obeys."""

import numpy as np
import pytest
from helpers.models.expanded_training import (
    CLEAN,
    address,
    expanded,
    model,
    program,
    run_passes,
    steps,
)
from helpers.sampled import sampled

from pcp.errors import PassError
from pcp.passes.core import functions

T = "tensor<4x4xf32>"
HEAD = f"""
func.func @apply(
    %w: {T} {{pcp.name = "w", pcp.role = "param"}},
    %g: {T} {{pcp.name = "w", pcp.role = "grad"}},
    %m: {T} {{pcp.name = "m", pcp.role = "state"}})
    -> ({T} {{pcp.name = "w", pcp.role = "param"}},
        {T} {{pcp.name = "m", pcp.role = "state"}}) {{
"""
DOT = f"stablehlo.dot_general %w, %g, contracting_dims = [1] x [0] : ({T}, {T}) -> {T}"


def function(body: str) -> str:
    return HEAD + body + "\n}"


# The body, and what is said of %w and of %m: None where they may be overwritten.
CASES = {
    "elementwise": (
        f"""%0 = stablehlo.add %m, %g : {T}
            %1 = stablehlo.multiply %0, %0 : {T}
            %2 = stablehlo.subtract %w, %1 : {T}
            return %2, %0 : {T}, {T}""",
        None,
        None,
    ),
    "read_on_the_way_to_another_result_that_it_needs": (
        f"""%0 = stablehlo.add %m, %w : {T}
            %1 = stablehlo.subtract %w, %0 : {T}
            return %1, %0 : {T}, {T}""",
        None,
        None,
    ),
    "read_for_another_result_later": (
        f"""%0 = stablehlo.subtract %w, %g : {T}
            %1 = stablehlo.add %m, %w : {T}
            return %0, %1 : {T}, {T}""",
        "read by stablehlo.add, whose result is not part of its new value",
        None,
    ),
    "contracted": (
        f"""%0 = {DOT}
            %1 = stablehlo.subtract %w, %0 : {T}
            %2 = stablehlo.add %m, %0 : {T}
            return %1, %2 : {T}, {T}""",
        "read by stablehlo.dot_general, which is not elementwise",
        None,
    ),
    "transposed_on_the_way": (
        f"""%0 = stablehlo.negate %w : {T}
            %1 = stablehlo.transpose %0, dims = [1, 0] : ({T}) -> {T}
            %2 = stablehlo.add %w, %1 : {T}
            %3 = stablehlo.add %m, %g : {T}
            return %2, %3 : {T}, {T}""",
        "read by stablehlo.transpose, which is not elementwise",
        None,
    ),
    "returned_as_it_came": (
        f"""%0 = stablehlo.add %m, %g : {T}
            return %w, %0 : {T}, {T}""",
        "returned as it came",
        None,
    ),
    "swapped": (
        f"""%0 = stablehlo.negate %w : {T}
            %1 = stablehlo.negate %m : {T}
            return %1, %0 : {T}, {T}""",
        "new value does not depend on it",
        "new value does not depend on it",
    ),
    "one_value_for_two": (
        f"""%0 = stablehlo.add %w, %m : {T}
            return %0, %0 : {T}, {T}""",
        "returned twice",
        "returned twice",
    ),
    "dead_read": (
        f"""%0 = stablehlo.subtract %w, %g : {T}
            %1 = stablehlo.abs %m : {T}
            %2 = stablehlo.add %m, %g : {T}
            return %0, %2 : {T}, {T}""",
        None,
        "read by stablehlo.abs, whose result is not part of its new value",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_proof(name: str) -> None:
    body, of_w, of_m = CASES[name]
    module = run_passes(function(body), "pcp-verify-inplace")
    found = functions.argument_attributes(module.body.operations[0].operation)
    for attributes, problem, result in ((found[0], of_w, 0), (found[2], of_m, 1)):
        if problem is None:
            assert str(attributes["iree.abi.output"]) == f"{result} : index"
            assert "pcp.copied" not in attributes
        else:
            assert "iree.abi.output" not in attributes
            assert problem in str(attributes["pcp.copied"])
    assert "iree.abi.output" not in found[1]


def test_the_proof_is_renewed() -> None:
    """A second run on a changed function takes back what no longer holds."""
    body, _, _ = CASES["contracted"]
    claimed = function(body).replace(
        "%w: tensor<4x4xf32> {", "%w: tensor<4x4xf32> {iree.abi.output = 0 : index, "
    )
    module = run_passes(claimed, "pcp-verify-inplace")
    found = functions.argument_attributes(module.body.operations[0].operation)
    assert "iree.abi.output" not in found[0]


def test_without_the_function() -> None:
    with pytest.raises(PassError, match="no function @apply"):
        run_passes("func.func private @f()", "pcp-verify-inplace")


OPTIMIZERS = (
    "adamw{lr=0.1,weight_decay=0.1,clip_norm=1.0}",
    "sgd{lr=0.1,momentum=0.9,weight_decay=0.1}",
    "nesterov{lr=0.1}",
)


@sampled("optimizer", OPTIMIZERS, 1)
def test_every_tensor_of_every_optimizer_is_updated_in_place(optimizer: str) -> None:
    """All but scalars; equal bits with and without, and the same addresses."""
    plain, inplace = (
        expanded(model(), optimizer, after=after, keep=["apply", "init"])
        for after in (CLEAN, f"{CLEAN},pcp-verify-inplace")
    )
    copied, moved_copy = steps(program(plain))
    written, moved = steps(program(inplace))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(copied, written, strict=True))
    assert all(moved_copy)
    assert not any(moved)


@pytest.mark.slow  # a program more
def test_no_two_tensors_of_a_new_state_share_a_buffer() -> None:
    """Equal constants are merged; first values must not be."""
    module = expanded(model(), "adamw", "diloco", keep=["init", "outer_init"])
    with program(module) as loaded:
        values = loaded["init"](np.int64(0), device_arrays=True)
        places = {address(v) for v in values if v.shape}
        assert len(places) == sum(1 for v in values if v.shape) == 6
        momenta = loaded["outer_init"](*values[:3], device_arrays=True)
        assert len({address(v) for v in momenta if v.shape}) == 2
