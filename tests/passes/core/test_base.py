"""How passes are written: options, pipelines, and what runs around them."""

from dataclasses import dataclass

import pytest

from pcp.compiler import catalog
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.core.base import (
    CppPasses,
    Pass,
    Pipeline,
    parse_options,
    parse_pipeline,
    split_top_level,
)

MODEL = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  %1 = stablehlo.add %a, %a : tensor<4xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""


@dataclass(frozen=True)
class Example(Pass):
    """A pass with an option of each kind."""

    name = "pcp-example"
    required: str
    max_steps: int = 3
    scale: float = 1.0
    fast: bool = False
    wrt: tuple[int, ...] = ()
    limit: int | None = None
    name_: str = ""

    def run(self, module):
        """Leave a mark."""
        module.operation.attributes["test.seen"] = ir.StringAttr.get(
            self.required, module.context
        )


@dataclass(frozen=True)
class Breaking(Pass):
    """A pass that leaves IR that does not verify."""

    name = "pcp-breaking"

    def run(self, module):
        """Drop the function's end."""
        block = module.body.operations[0].regions[0].blocks[0]
        block.operations[len(block.operations) - 1].operation.erase()


def lookup(name):
    return {"pcp-example": Example, "pcp-breaking": Breaking}.get(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("required=a", Example("a")),
        ("required=a max-steps=7 scale=1e-3", Example("a", 7, 1e-3)),
        ("required=a max_steps=7", Example("a", 7)),
        ("required=a fast", Example("a", fast=True)),
        ("required=a fast=false wrt=0,2", Example("a", wrt=(0, 2))),
        ("required=a limit=4 name=b", Example("a", limit=4, name_="b")),
        ("required=adamw{lr=0.1 eps=1}", Example("adamw{lr=0.1 eps=1}")),
        ('required="a b"', Example("a b")),
        ("required=a  fast", Example("a", fast=True)),
    ],
)
def test_options_are_read_as_their_fields(text, expected):
    step = parse_pipeline(f"pcp-example{{{text}}}", lookup).steps[0]
    assert step == expected
    # What it prints reads back as itself.
    assert parse_pipeline(str(step), lookup).steps[0] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-steps=1", "option 'required' is required"),
        ("required=a max-step=1", r"unknown option 'max-step'.*Did you mean 'max-st"),
        ("required=a max-steps=two", "option max-steps='two' is not a int"),
        ("required=a fast=maybe", "option fast='maybe' is not a bool"),
        ("required=a wrt=0,x", "option wrt='0,x' is not a list of int, as wrt=0,2"),
        ("required=a,wrt=0", "'wrt=0' stands behind a comma; .* separated by spaces"),
    ],
)
def test_wrong_options_are_named(text, message):
    with pytest.raises(PassError, match=message):
        parse_pipeline(f"pcp-example{{{text}}}", lookup)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("builtin.module(cse,canonicalize)", ["cse", "canonicalize"]),
        ("cse", ["cse"]),
        ("", []),
        ("builtin.module()", []),
        (
            "builtin.module(pcp-breaking, func.func(cse,canonicalize{a=1 b=2}),cse)",
            ["pcp-breaking", "func.func(cse,canonicalize{a=1 b=2})", "cse"],
        ),
        ("pcp-example{required=a} , pcp-breaking", ["pcp-example", "pcp-breaking"]),
    ],
)
def test_a_pipeline_is_split_at_the_top(text, names):
    pipeline = parse_pipeline(text, lookup)
    assert [step.name for step in pipeline.steps] == names
    assert parse_pipeline(str(pipeline), lookup) == pipeline


@pytest.mark.parametrize("text", ["a(", "a)", "a{", "a{b}}", 'a{b="c}', "(a]("])
def test_unbalanced_brackets_are_an_error(text):
    with pytest.raises(PassError, match="unbalanced"):
        split_top_level(text)


def test_options_without_a_value_are_empty():
    assert parse_options("a b=1 c=") == {"a": "", "b": "1", "c": ""}


def test_observers_see_every_step_in_order():
    seen = []
    pipeline = parse_pipeline("cse,pcp-example{required=a}", lookup)
    module = pipeline.run(
        parse(MODEL), [lambda step, module, when: seen.append((step.name, when))]
    )
    assert seen == [
        ("cse", "before"),
        ("cse", "after"),
        ("pcp-example", "before"),
        ("pcp-example", "after"),
    ]
    assert module.operation.attributes["test.seen"].value == "a"
    assert str(module).count("stablehlo.add") == 1


def test_a_pass_that_breaks_the_ir_is_named():
    seen = []
    with pytest.raises(PassError, match=r"-:4:8: .*\(after pcp-breaking\)"):
        parse_pipeline("pcp-breaking", lookup).run(
            parse(MODEL), [lambda step, module, when: seen.append(when)]
        )
    assert seen == ["before", "failed"]


class _Raises(Pass):
    name = "example-raises"

    def run(self, module: ir.Module) -> None:
        raise KeyError("w")


def test_what_an_extensions_pass_raises_is_its_own():
    says = r"example-raises, a pass of the extension .*test_base: KeyError: 'w'"
    with pytest.raises(PassError, match=says):
        Pipeline((_Raises(),)).run(parse(MODEL))


def test_verification_can_be_left_out():
    pipeline = parse_pipeline("pcp-breaking", lookup)
    pipeline.run(parse(MODEL), verify_each=False)


def test_an_unknown_pass_of_mlir_is_an_error_when_it_runs():
    with pytest.raises(PassError, match="no-such-pass"):
        CppPasses("no-such-pass").run(parse(MODEL))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pcp-verify-plam", "no pass named 'pcp-verify-plam'. Did you mean 'pcp-v"),
        ("canonicalise", "no pass named 'canonicalise'. Did you mean 'canonicalize'"),
        ("func.func(pcp-verify-plan)", "pcp-verify-plan runs on the module"),
        ("cse{max=1}", "no such option max"),
    ],
)
def test_the_catalog_refuses_before_anything_runs(text, message):
    with pytest.raises(PassError, match=message):
        catalog.pipeline(text)


def test_a_pass_of_mlir_on_functions_is_nested_for_a_flag():
    assert catalog.step_text("cse") == "cse"
    assert catalog.step_text("chlo-legalize-to-stablehlo") == (
        "func.func(chlo-legalize-to-stablehlo)"
    )
    assert catalog.step_text("pcp-verify-plan", "a=1") == "pcp-verify-plan{a=1}"
