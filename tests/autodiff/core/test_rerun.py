"""What must not run a second time, through calls and derivative rules."""

from collections import Counter

import pytest

from pcp.autodiff.core import functions
from pcp.autodiff.core.rerun import once_only
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse

T = "tensor<2xf32>"
FUNCTIONS = f"""
func.func private @pure({T}) -> {T} attributes {{nosideeffects}}
func.func private @acts({T}) -> {T}
func.func @calls(%x: {T}) -> {T} {{
  %y = call @acts(%x) : ({T}) -> {T}
  return %y : {T}
}}
func.func @ruled(%x: {T}) -> {T} {{
  return %x : {T}
}}
func.func @kept(%x: {T}) -> {T} {{
  return %x : {T}
}}
func.func @back(%x: {T}) -> {T} {{
  %y = call @acts(%x) : ({T}) -> {T}
  return %y : {T}
}}
func.func @twice(%x: {T}) -> {T} {{
  %y = call @pure(%x) : ({T}) -> {T}
  %z = call @pure(%y) : ({T}) -> {T}
  return %z : {T}
}}
func.func @around(%x: {T}) -> {T} {{
  %y = call @around(%x) : ({T}) -> {T}
  %z = call @calls(%y) : ({T}) -> {T}
  return %z : {T}
}}
"pcp.custom_jvp"() {{primal = @ruled, jvp = @calls}} : () -> ()
"pcp.custom_vjp"() {{primal = @kept, forward = @pure, backward = @back}} : () -> ()
"""


def _main(*names: str) -> ir.Module:
    calls = "\n".join(
        f"%x{i + 1} = call @{n}(%x{i}) : ({T}) -> {T}" for i, n in enumerate(names)
    )
    main = f"{calls}\nreturn %x{len(names)} : {T}"
    return parse(f"{FUNCTIONS}\nfunc.func @main(%x0: {T}) -> {T} {{ {main} }}")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["pure", "twice", "twice", "kept"], None),
        (["pure", "acts"], "acts"),
        (["twice", "calls", "acts"], "calls"),
        (["kept", "ruled"], "ruled"),
        (["around"], "around"),
    ],
)
def test_the_first_op_that_acts(names: list[str], found: str | None) -> None:
    """A rule's first function runs in the place of the call, and not the others."""
    module = _main(*names)
    op = once_only(functions.functions(module)["main"].regions[0])
    assert (None if op is None else functions.callee(op)) == found


def test_a_function_is_looked_at_once(monkeypatch) -> None:
    looked: Counter[str] = Counter()
    may_have_effects = functions.may_have_effects

    def counted(function: ir.Operation) -> bool:
        looked[functions.symbol(function)] += 1
        return may_have_effects(function)

    monkeypatch.setattr(functions, "may_have_effects", counted)
    module = _main("twice", "twice", "pure", "kept", "twice")
    assert once_only(functions.functions(module)["main"].regions[0]) is None
    assert looked == {"twice": 1, "pure": 1, "kept": 1}
