"""Programs that IREE would let wait for themselves are found, and not made."""

import dataclasses

import pytest
from helpers.random_programs.spmd import random_program

from pcp.bundle import Bundle
from pcp.compiler import driver, fences, iree, partitioned
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context, parse
from pcp.errors import CompileError
from pcp.passes.collectives.import_order import keep_import_order

CPU = (
    "--iree-hal-target-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=generic",
    "--compile-to=stream",
)
X, V, W = "tensor<8x4xf32>", "tensor<8xf32>", "tensor<16xf32>"


def _import(name: str, type_: str) -> str:
    return (
        f'"util.func"() ({{}}) {{function_type = ({type_}) -> {type_}, '
        'iree.abi.model = "coarse-fences", nosideeffects, '
        f'sym_name = "pcp_rt.{name}", sym_visibility = "private"}} : () -> ()\n'
    )


def _program(whole: str) -> str:
    """`%early` is there before the sum of `%x`, `%late` needs it; `whole` has both."""
    return f"""
{_import("first", X)}{_import("second", W)}
func.func @main(%x: {X}) -> {W} {{
  %i = stablehlo.constant dense<3> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %early = stablehlo.reduce(%x init: %zero) applies stablehlo.add
    across dimensions = [1] : ({X}, tensor<f32>) -> {V}
  %sum = "util.call"(%x) {{callee = @pcp_rt.first}} : ({X}) -> {X}
  %late = stablehlo.reduce(%sum init: %zero) applies stablehlo.add
    across dimensions = [1] : ({X}, tensor<f32>) -> {V}
  {whole}
  %r = "util.call"(%c) {{callee = @pcp_rt.second}} : ({W}) -> {W}
  return %r : {W}
}}
"""


CONCATENATE = "%c = stablehlo.concatenate {}, {}, dim = 0 : " + f"({V}, {V}) -> {W}"
UPDATE = (
    CONCATENATE.format("%late", "%late").replace("%c", "%d", 1)
    + f"\n%c = stablehlo.dynamic_update_slice %d, %early, %i : ({W}, {V}, tensor<i32>)"
    + f" -> {W}"
)
#: What IREE moves the first import for.
MOVED = {
    "concatenate": CONCATENATE.format("%late", "%early"),
    "dynamic_update_slice": UPDATE,
}


def _kept(text: str) -> str:
    context = make_context()
    context.allow_unregistered_dialects = True
    with context:
        module = ir.Module.parse(text)
        assert keep_import_order(module) == 1
        return str(module)


@pytest.mark.parametrize("op", MOVED)
def test_an_import_in_front_of_its_operands_is_found_and_avoided(op: str) -> None:
    """The first half fails when IREE moves imports no more: then drop all of it."""
    text = _program(MOVED[op])
    with pytest.raises(iree.LateImport, match="calls first before the operands"):
        iree.compile_text(text, CPU, timeout=100)
    assert iree.compile_text(_kept(text), CPU, timeout=100)


def test_imports_in_order_are_let_through() -> None:
    text = _program(CONCATENATE.format("%early", "%late"))
    assert iree.compile_text(text, CPU, timeout=100)


DUMP = """
  %fence = hal.fence.create device(%device_0 : !hal.device) flags("None") : !hal.fence
  %fence_0 = hal.fence.create device(%device_0 : !hal.device) flags("None") : !hal.fence
  {}
  %7 = util.call @pcp_rt.a_0_f32_4(%1, %fence, %fence_0) : (!t, !f, !f) -> !t
  {}
"""
FILL = "stream.timepoint.chain_external on(#d) %0 => ({} : !hal.fence)"


@pytest.mark.parametrize(
    ("before", "behind", "found"),
    [
        (FILL.format("%fence"), "", []),
        ("", FILL.format("%fence"), ["a_0_f32_4"]),
        ("", "", ["a_0_f32_4"]),  # filled by an op of a name we do not know
        (FILL.format("%fence_0"), "", ["a_0_f32_4"]),
        (  # filled by an import: its result is the operand
            FILL.format("%fence_2")
            + "\n%6 = util.call @pcp_rt.b(%1, %fence_2, %fence) {pure} : (!t) -> !t",
            "",
            [],
        ),
        (  # a value of before
            FILL.format("%fence"),
            "%9 = util.call @pcp_rt.b(%2, %fence_0, %f) : (!t) -> !t",
            [],
        ),
    ],
)
def test_fences_are_read_in_order(before: str, behind: str, found: list[str]) -> None:
    assert fences.late(DUMP.format(before, behind)) == found


MODEL = f"""
func.func @main(%x: {X} {{pcp.name = "x", pcp.role = "data"}}) -> tensor<f32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0, 1]
    : ({X}, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}}
"""


def _compile(monkeypatch, error: CompileError, **changes: int):
    """What is reported, the options of each attempt; the first raises `error`."""
    lines: list[str] = []
    tried: list[tuple[int, int]] = []

    def bundled(program, options) -> Bundle:
        tried.append((options.bucket_bytes, options.inflight))
        if len(tried) == 1:
            raise error
        return Bundle.build(program.manifest, {})

    monkeypatch.setattr(driver, "bundled", bundled)
    options = CompileOptions(mode="forward", mesh="dp=2", report=lines.append)
    driver.compile(parse(MODEL), dataclasses.replace(options, **changes))
    return lines, tried


def _error(cause: Exception) -> CompileError:
    error = CompileError("m.mlir: target cpu: it would wait for itself")
    error.__cause__ = cause
    return error


def test_a_program_that_would_hang_is_compiled_again_without_overlap(
    monkeypatch,
) -> None:
    late = iree.LateImport("late", "")
    lines, tried = _compile(monkeypatch, _error(late), bucket_bytes=9, inflight=2)
    assert tried == [(9, 2), (0, 0)]
    assert any("again with --bucket-bytes 0 --inflight 0" in line for line in lines)


@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        (iree.Failure("another", ""), {"bucket_bytes": 9}),
        (iree.LateImport("late", ""), {"bucket_bytes": 0, "inflight": 0}),
    ],
)
def test_what_overlap_does_not_explain_stays_an_error(
    monkeypatch, cause: Exception, changes: dict[str, int]
) -> None:
    with pytest.raises(CompileError, match="wait for itself"):
        _compile(monkeypatch, _error(cause), **changes)


@pytest.mark.slow
def test_random_programs_are_compiled_as_asked() -> None:
    """With buckets and overlap, and never again without."""
    lines: list[str] = []
    asked = CompileOptions(mode="forward", cache=None, report=lines.append)
    assert asked.bucket_bytes
    assert partitioned.under_way(asked)
    exchanging = 0
    for seed in range(7000, 7006):
        text, _ = random_program(seed, 12)
        bundle = driver.compile(parse(text), asked)
        programs = bundle.manifest.programs.values()
        exchanging += any(program.collectives for program in programs)
    assert exchanging >= 3
    assert not [line for line in lines if "again with" in line]
