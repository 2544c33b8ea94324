"""Functions of a program, called with values by role and name."""

from types import SimpleNamespace
from typing import Any

import pytest

from pcp.errors import BundleError
from pcp.manifest import Function, Manifest, TensorSpec
from pcp.training.trainer.functions import Functions


def tensor(name: str, role: Any = "data") -> TensorSpec:
    return TensorSpec(name=name, role=role, shape=(), dtype="f32")


class Echo(SimpleNamespace):
    """A program of one function, which gives what it takes."""

    def __init__(self, *inputs: TensorSpec) -> None:
        function = Function(inputs=inputs, results=inputs)
        super().__init__(manifest=Manifest(mode="forward", functions={"f": function}))

    def __getitem__(self, name: str) -> Any:
        def call(*arguments: int, device_arrays: bool) -> Any:
            assert device_arrays
            return arguments if len(arguments) > 1 else next(iter(arguments))

        assert name == "f"
        return call


def test_arguments_and_results_go_by_role_and_name() -> None:
    echo = Functions(Echo(tensor("x"), tensor("w", "param"), tensor("w", "grad")))
    values = {("grad", "w"): 1, ("param", "w"): 2, ("data", "x"): 3, ("data", "y"): 4}
    assert echo("f", values) == {
        ("data", "x"): 3,
        ("param", "w"): 2,
        ("grad", "w"): 1,
    }
    assert Functions(Echo(tensor("x")))("f", values) == {("data", "x"): 3}


def test_what_a_loop_does_not_have_is_named() -> None:
    with pytest.raises(BundleError, match="@f takes 'z' of the role 'outer'"):
        Functions(Echo(tensor("z", "outer")))("f", {("data", "z"): 1})


def test_two_tensors_of_one_name_are_refused() -> None:
    """One value would go to both of them."""
    with pytest.raises(BundleError, match="@f has 2 tensors 'x' of the role 'data'"):
        Functions(Echo(tensor("x"), tensor("x")))("f", {("data", "x"): 1})
