"""pcp-infer-roles: names from locations, first values from use."""

import pytest
from helpers.models.expanded_training import run_passes

from pcp.errors import PassError
from pcp.passes.core import functions
from pcp.passes.ingest.infer_roles import InferRoles

T = "tensor<4xf32>"


def inferred(text: str, options: str = "") -> list[dict[str, str]]:
    """What each argument of @main carries afterwards."""
    passes = f"pcp-infer-roles{{{options}}}" if options else "pcp-infer-roles"
    module = run_passes(text, passes)
    main = functions.find(module, "main")
    assert main is not None
    return [
        {key.removeprefix("pcp."): value.value for key, value in attributes.items()}
        for attributes in functions.argument_attributes(main)
    ]


def using(body: str, *, location: str = "") -> str:
    """A @main that trains one vector %w, used in `body`, which makes %0."""
    return f"""
    func.func @main(%w: {T}{location}, %x: {T} {{pcp.role = "data"}}, %i: tensor<2xi64>)
        -> tensor<f32> {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      {body}
      %loss = stablehlo.reduce(%0 init: %zero) applies stablehlo.add
          across dimensions = [0] : ({T}, tensor<f32>) -> tensor<f32>
      return %loss : tensor<f32>
    }}"""


# How a vector is used, and how it starts.
USES = {
    "gain": (f"%0 = stablehlo.multiply %x, %w : {T}", "ones"),
    "bias": (f"%0 = stablehlo.add %x, %w : {T}", "zeros"),
    "gain_and_bias": (
        f"""%1 = stablehlo.add %x, %w : {T}
        %0 = stablehlo.multiply %1, %w : {T}""",
        "ones",
    ),
    "through_moves": (
        f"""%1 = stablehlo.convert %w : ({T}) -> tensor<4xf64>
        %2 = stablehlo.convert %1 : (tensor<4xf64>) -> {T}
        %3 = stablehlo.reshape %2 : ({T}) -> tensor<2x2xf32>
        %4 = stablehlo.transpose %3, dims = [1, 0]
            : (tensor<2x2xf32>) -> tensor<2x2xf32>
        %5 = stablehlo.reshape %4 : (tensor<2x2xf32>) -> {T}
        %0 = stablehlo.multiply %5, %x : {T}""",
        "ones",
    ),
    "unused": (f"%0 = stablehlo.negate %x : {T}", "zeros"),
}


@pytest.mark.parametrize("use", USES)
def test_first_values_follow_from_use(use: str) -> None:
    body, init = USES[use]
    assert inferred(using(body))[0] == {"init": init, "name": "arg0", "role": "param"}


NAMES = {
    ' loc("h.0.ln.weight")': "h.0.ln.weight",
    ' loc("w"("model.py":3:4))': "w",
    ' loc("model.py":3:4)': "arg0",
    " loc(unknown)": "arg0",
}


@pytest.mark.parametrize("location", NAMES)
def test_names_come_from_name_locations(location: str) -> None:
    text = using(USES["bias"][0], location=location)
    assert inferred(text)[0]["name"] == NAMES[location]


def test_a_written_name_is_nobody_elses() -> None:
    """Argument 1 would be called arg1, but argument 0 says it is."""
    text = f"""func.func @main(%a: tensor<f32> {{pcp.name = "arg1"}}, %b: {T},
        %i: tensor<2xi64>) -> tensor<f32> {{ return %a : tensor<f32> }}"""
    assert [a["name"] for a in inferred(text)] == ["arg1", "arg1_1", "arg2"]


def test_it_can_run_twice() -> None:
    once = run_passes(using(USES["gain"][0]), "pcp-infer-roles")
    assert str(run_passes(str(once), "pcp-infer-roles")) == str(once)


def test_forward_programs_need_no_loss() -> None:
    text = f"func.func @main(%a: {T}, %b: {T}) -> {T} {{ return %a : {T} }}"
    roles = [a["role"] for a in inferred(text, "training=false")]
    assert roles == ["data", "data"]


def test_another_function() -> None:
    text = using(USES["gain"][0]).replace("@main", "@model")
    module = run_passes(text, "pcp-infer-roles{func=model}")
    assert 'pcp.init = "ones"' in str(module)
    with pytest.raises(PassError, match="no function @main"):
        run_passes(text, "pcp-infer-roles")
    assert str(InferRoles(func="model")) == "pcp-infer-roles{func=model}"
