"""From a module to a bundle: modes, signatures, targets, errors."""

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.models.stablehlo_small import (
    FORWARD,
    TRAIN,
    train_inputs,
    train_loss_and_gradients,
)
from helpers.sampled import sampled

from pcp.bundle import Bundle
from pcp.compiler import driver, iree, pipelines
from pcp.compiler.catalog import PASSES
from pcp.compiler.options import MODES, OPT_LEVELS, CompileOptions
from pcp.compiler.targets import TARGETS
from pcp.dialect.context import parse
from pcp.manifest import TensorSpec
from pcp.runtime.program.executor import Program


def compile(text: str, *targets: str, **options: object) -> Bundle:
    chosen = CompileOptions(targets=targets or ("cpu",), **options)  # pyright: ignore[reportArgumentType]
    return driver.compile(parse(text), chosen)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def trained(cache: Path) -> Bundle:
    """The small model as a training bundle, for two kinds of device."""
    return compile(TRAIN, "cpu", "sm_90a", cache=cache)


# --- modes -------------------------------------------------------------------


def mode_of(text: str, **options: object) -> tuple[str, list[str]]:
    lines: list[str] = []
    chosen = CompileOptions(report=lines.append, **options)  # pyright: ignore[reportArgumentType]
    return driver.choose_mode(parse(text), chosen), lines


UNMARKED = TRAIN.replace("pcp.role", "pcp.note")
NO_DATA = "func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }"


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (TRAIN, "train", "returns a scalar loss and has parameters"),
        (UNMARKED, "train", "returns a scalar loss and has parameters"),
        (FORWARD, "forward", "does not return one floating-point scalar"),
        (NO_DATA, "forward", "no argument of @main is a parameter"),
        (NO_DATA.replace("f32", "i32"), "forward", "does not return one"),
    ],
)
def test_default_mode_says_why(text: str, mode: str, why: str) -> None:
    chosen, lines = mode_of(text)
    assert chosen == mode
    assert len(lines) == 1
    assert lines[0].startswith(f"mode {mode}: ")
    assert why in lines[0]


def test_a_mode_that_was_asked_for_is_not_explained() -> None:
    assert mode_of(TRAIN, mode="forward") == ("forward", [])


def test_defaults_of_training_are_reported() -> None:
    lines: list[str] = []
    texts = driver.training_methods(CompileOptions(report=lines.append))
    assert texts[0].startswith("adamw")
    assert texts[1] == "diloco"
    assert [line.split()[0] for line in lines] == ["optimizer", "algorithm"]
    lines.clear()
    chosen = CompileOptions(
        optimizer="sgd{lr=0.5}", algorithm="average", report=lines.append
    )
    assert driver.training_methods(chosen) == ("sgd{lr=0.5}", "average")
    assert lines == []


@pytest.mark.parametrize("asked", [None, "ddp", "none"])
def test_over_a_mesh_there_is_no_algorithm(asked: str | None) -> None:
    lines: list[str] = []
    options = CompileOptions(
        mesh="dp=2", mode="train", algorithm=asked, report=lines.append
    )
    program = driver.lower(parse(TRAIN), options)
    assert "outer_step" not in program.manifest.functions
    said = [line for line in lines if "algorithm" in line]
    none = "algorithm none: over a mesh each step synchronises the members"
    assert said == ([] if asked == "none" else [none])


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_pipelines_name_known_passes_only(mode: str, spread: bool) -> None:
    front = pipelines.front(
        mode, spread=spread, optimizer="sgd{lr=0.1}", algorithm="average"
    )
    steps = [*front.steps, *pipelines.device(mode).steps]
    ours = [step.name for step in steps if step.name.startswith("pcp-")]
    assert ours
    assert set(ours) <= set(PASSES)


# --- the training bundle -----------------------------------------------------


def roles(tensors: Iterable[TensorSpec]) -> list[str]:
    return [tensor.role for tensor in tensors]


def test_training_functions(trained: Bundle) -> None:
    functions = trained.manifest.functions
    assert trained.manifest.mode == "train"
    assert {"main", "grad", "init", "apply", "outer_init", "outer_step"} <= set(
        functions
    )
    params, data = ["param"] * 2, ["data"] * 2
    assert roles(functions["main"].inputs) == params + data
    assert roles(functions["main"].results) == ["loss"]
    assert roles(functions["grad"].inputs) == params + data
    assert roles(functions["grad"].results) == ["loss", "grad", "grad"]
    assert roles(functions["init"].inputs) == ["seed"]
    state = ["state"] * 5  # m, m, v, v, step
    assert roles(functions["init"].results) == params + state
    assert roles(functions["apply"].inputs) == params + ["grad"] * 2 + state
    assert roles(functions["apply"].results) == params + state
    assert roles(functions["outer_init"].results) == ["outer"] * 2
    anchors = functions["outer_step"].inputs_of("anchor")
    assert len(anchors) == 2
    assert functions["outer_step"].inputs_of("tokens")


def test_what_is_donated(trained: Bundle) -> None:
    functions = trained.manifest.functions
    apply = functions["apply"]
    assert set(apply.donates) <= set(apply.inputs_of("param", "state"))
    assert set(apply.inputs_of("param")) <= set(apply.donates)
    assert functions["outer_step"].donates == ()
    assert functions["grad"].donates == ()


def test_names_and_parameters(trained: Bundle) -> None:
    manifest = trained.manifest
    names = ["embed.weight", "head.weight"]
    assert [p.name for p in manifest.parameters] == names
    assert [p.init for p in manifest.parameters] == ["normal(0.5)", "ones"]
    inputs = manifest.functions["grad"].inputs
    assert [tensor.name for tensor in inputs] == [*names, "x", "y"]
    assert [t.shape for t in inputs] == [(7, 5), (5, 7), (4,), (4,)]
    assert [t.dtype for t in inputs] == ["f32", "f32", "i64", "i64"]


def test_methods_and_collectives(trained: Bundle) -> None:
    manifest = trained.manifest
    assert manifest.optimizer is not None
    assert manifest.optimizer.kind == "adamw"
    assert manifest.optimizer.hyper["lr"] == 1e-3
    assert manifest.algorithm is not None
    assert manifest.algorithm.kind == "diloco"
    assert -1 in [n for mesh in manifest.mesh.values() for n in mesh.axes.values()]
    assert manifest.collectives
    for name, collective in manifest.collectives.items():
        assert f"pcp_rt.{name}" in trained.ir("program")
        assert collective.kind == "all_reduce"
        assert collective.axes == ("workers",)
        assert collective.bytes == 4 * int(np.prod(collective.shape))


def test_the_ptx_is_for_sm_90a(trained: Bundle) -> None:
    content = trained.module("sm_90a")
    assert b".target sm_90a\n" in content
    assert b"-arch" not in content
    module = trained.manifest.modules["sm_90a"]
    assert (module.backend, module.driver) == ("cuda", "cuda")


def test_toolchain_versions(trained: Bundle) -> None:
    producer = trained.manifest.producer
    assert producer["iree-base-compiler"] == iree.version()
    assert {"pcp", "torch-mlir"} <= set(producer)


def test_the_bundle_is_whole(trained: Bundle) -> None:
    assert Bundle.from_bytes(trained.to_bytes()) == trained
    json.loads(trained.manifest.model_dump_json())


def test_nothing_of_pcp_reaches_iree(trained: Bundle) -> None:
    content = trained.module("cpu")
    assert b"pcp.role" not in content
    assert b"embed.weight" not in content


@pytest.fixture
def program(trained: Bundle) -> Iterator[Program]:
    program = Program.load(trained, device="local-sync", module="cpu")
    yield program
    program.close()


def test_it_computes_what_numpy_says(program: Program) -> None:
    inputs = train_inputs()
    loss, *gradients = program["grad"](*inputs)
    want_loss, *want = train_loss_and_gradients(*inputs)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
    for gradient, expected in zip(gradients, want, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_twenty_steps_lower_the_loss(program: Program) -> None:
    inputs = train_inputs()
    params_and_state = program["init"](np.int64(0))
    losses = []
    for _ in range(20):
        params, state = params_and_state[:2], params_and_state[2:]
        loss, *gradients = program["grad"](*params, *inputs[2:])
        losses.append(float(loss))
        params_and_state = program["apply"](*params, *gradients, *state)
    assert losses[-1] < losses[0]
    assert all(b < a for a, b in pairwise(losses))


# --- the driver's manners ----------------------------------------------------


def test_the_callers_module_is_not_touched(cache: Path) -> None:
    module = parse(TRAIN)
    before = str(module)
    driver.compile(module, CompileOptions(targets=("cpu",), cache=cache))
    assert str(module) == before
    assert not module.context.allow_unregistered_dialects


def test_the_same_input_gives_the_same_bundle(cache: Path, trained: Bundle) -> None:
    again = compile(TRAIN, "cpu", "sm_90a", cache=cache)
    assert again.to_bytes() == trained.to_bytes()


def test_the_second_time_comes_from_the_cache(
    cache: Path, trained: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> bytes:
        raise AssertionError("iree-compile ran")

    monkeypatch.setattr(iree, "compile_text", never)
    lines: list[str] = []
    again = compile(TRAIN, "cpu", "sm_90a", cache=cache, report=lines.append)
    assert again.members == trained.members
    assert sum("from the cache" in line for line in lines) == 2
    with pytest.raises(AssertionError, match="iree-compile ran"):
        compile(TRAIN, "cpu:x86-64-v3", cache=cache)


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    lines: list[str] = []
    compile(FORWARD, cache=blocked / "cache", report=lines.append)
    assert any("not written" in line for line in lines)


def test_a_failing_level_falls_back_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    def fail_high(text: str, flags: list[str], **_: object) -> bytes:
        tried.append(flags[0])
        if not flags[0].endswith("O1"):
            raise iree.Failure("too large", "4:2")
        return b"code"

    monkeypatch.setattr(iree, "compile_text", fail_high)
    lines: list[str] = []
    bundle = compile(FORWARD, opt_level="O3", report=lines.append)
    assert bundle.module() == b"code"
    assert tried == [f"--iree-opt-level={level}" for level in OPT_LEVELS]
    assert sum("IREE fails at" in line for line in lines) == 2


def test_keep_ir(tmp_path: Path, cache: Path) -> None:
    compile(TRAIN, "cpu", cache=cache, keep_ir=tmp_path / "ir")
    names = sorted(path.name for path in (tmp_path / "ir").iterdir())
    assert names[0] == "00-pcp-import.mlir"
    assert any("pcp-grad" in name for name in names)
    assert "target-cpu.mlir" in names
    assert "hal.device.targets" in (tmp_path / "ir/target-cpu.mlir").read_text()


@pytest.mark.slow  # a program more
def test_grad_mode(cache: Path) -> None:
    bundle = compile(TRAIN, mode="grad", cache=cache)
    assert set(bundle.manifest.functions) == {"main", "grad"}
    results = bundle.manifest.functions["grad"].results
    assert roles(results) == ["loss", "grad", "grad"]
    assert bundle.manifest.optimizer is None


def test_forward_mode(cache: Path) -> None:
    bundle = compile(FORWARD, cache=cache)
    main = bundle.manifest.functions["main"]
    assert roles(main.inputs) == ["data", "data"]
    assert roles(main.results) == ["result"]
    x, y = np.ones((4, 8), np.float32), np.full((8, 4), 2, np.float32)
    program = Program.load(bundle, device="local-sync")
    try:
        np.testing.assert_array_equal(program["main"](x, y), np.full((4, 4), 16))
    finally:
        program.close()


# --- every target ------------------------------------------------------------

PRODUCT = """
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x32xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}"""


def test_tiles_that_iree_cannot_follow_are_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[str] = []

    def refuse(text: str, flags: object, **_: object) -> bytes:
        given.append(text)
        if "compilation_info" in text:
            raise iree.Failure("exceeded stack allocation limit", "4:8")
        return b"module"

    monkeypatch.setattr(iree, "compile_text", refuse)
    said: list[str] = []
    compile(PRODUCT, report=said.append)
    assert ["compilation_info" in text for text in given] == [True, False]
    assert "stablehlo.dot_general" in given[1]
    assert any("exceeded stack" in line and "its own" in line for line in said)


@sampled("target", ["gfx942", "vulkan", "metal"], ["gfx942"])
def test_a_training_module_compiles_for(target: str) -> None:
    bundle = compile(TRAIN, target)
    assert len(bundle.module(target)) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_training_module_compiles_for_every_target(target: str) -> None:
    bundle = compile(TRAIN, target)
    assert len(bundle.module(target)) > 1000
    if target.startswith("sm_"):
        assert f".target {target}\n".encode() in bundle.module(target)
    if target.startswith("gfx"):
        assert target.encode() in bundle.module(target)
