"""What of measured schedules is kept: what the program's own step is faster by."""

from typing import Any

import pytest

from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.passes.kernels.contractions import Contraction
from pcp.passes.kernels.tiles import KernelTiles, Schedule
from pcp.passes.kernels.tuned import parse as read
from pcp.passes.kernels.tuned import text_of
from pcp.tools.profile.figures import Timed, Times
from pcp.tools.tune.judge import Choices, kept, kernel_name
from pcp.tools.tune.search import products

LARGE = Contraction("NN", 0, 512, 64, 256)
HEADS = Contraction("NT", 8, 64, 32, 64)
OTHER_FORM = Contraction("NT", 0, 512, 64, 256)  # its kernels have the name of LARGE's
OLD, NEW = (Schedule(KernelTiles(64, 64, 8, 32, depth)) for depth in (4, 8))
USED = {LARGE: OLD, HEADS: None, OTHER_FORM: OLD}
BEST = {LARGE: NEW, HEADS: OLD, OTHER_FORM: OLD}


class _Step:
    """A step whose kernels take `alone` ms with new schedules, and it `whole`."""

    function = "grad"

    def __init__(self, alone: dict[Contraction, float], whole: float) -> None:
        self._alone, self._whole = alone, whole
        self.said: list[str] = []

    def compiled(self, choices: Choices) -> bytes:
        self.said.append(text_of(choices))
        return self.said[-1].encode()

    def times(self, contents: tuple[bytes, ...], *, each: bool) -> list[list[Times]]:
        return [self._turns(read(content.decode())) for content in contents]

    def _turns(self, choices: Choices) -> list[Times]:
        rows = [
            Timed(
                f"grad_dispatch_{number}_{kernel_name(shape, choices.get(shape))}_f32",
                2,
                self._alone[shape] if shape in choices else 1.0,
            )
            for number, shape in enumerate((LARGE, HEADS))
        ]
        whole = Times(self._whole if choices else 100.0, rows)
        return [Times(300.0, [Timed(r.name, r.calls, 9.0) for r in rows]), whole]


@pytest.mark.parametrize(
    ("alone", "whole", "expected"),
    [
        pytest.param((0.9, 0.9), 90.0, (NEW, OLD), id="both win"),
        pytest.param((0.9, 0.98), 90.0, (NEW, None), id="one is hardly faster"),
        pytest.param((1.2, 0.5), 98.0, (OLD, OLD), id="one is slower in the step"),
        pytest.param((0.5, 0.5), 99.5, (OLD, None), id="the step gains nothing"),
        pytest.param((0.5, 0.5), 105.0, (OLD, None), id="the step is slower"),
        pytest.param((1.0, 1.0), 90.0, (OLD, None), id="no kernel is faster"),
    ],
)
def test_what_is_kept(
    alone: tuple[float, float],
    whole: float,
    expected: tuple[Schedule | None, Schedule | None],
) -> None:
    step: Any = _Step(dict(zip((LARGE, HEADS), alone, strict=True)), whole)
    found = kept(step, USED, BEST, print)
    assert (found[LARGE], found[HEADS]) == expected
    assert found[OTHER_FORM] == OLD
    assert step.said[0] == ""


def test_nothing_is_compiled_where_nothing_is_new() -> None:
    step: Any = _Step({}, 1.0)
    assert kept(step, USED, USED, print) == USED
    assert not step.said


def test_options_say_what_they_are_read_as() -> None:
    turned = Schedule(KernelTiles(64, 32, 4, 16, 1), turned=True)
    panels = Schedule(KernelTiles(64, 32, 4, 16, 1), panels=True)
    choices = {LARGE: panels, HEADS: None, OTHER_FORM: turned}
    assert read(text_of(choices)) == choices


MODEL = """
func.func @main(%x: tensor<512x64xf32>, %w: tensor<64x256xf32>, %q: tensor<8x64x32xf32>)
    -> (tensor<512x256xf32>, tensor<8x64x64xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<512x64xf32>, tensor<64x256xf32>) -> tensor<512x256xf32>
  %1 = stablehlo.dot_general %q, %q, batching_dims = [0] x [0],
      contracting_dims = [2] x [2]
      : (tensor<8x64x32xf32>, tensor<8x64x32xf32>) -> tensor<8x64x64xf32>
  return %0, %1 : tensor<512x256xf32>, tensor<8x64x64xf32>
}"""


@pytest.mark.slow  # it compiles many
def test_kernels_have_the_names_that_are_looked_for() -> None:
    options = CompileOptions(mode="forward", targets=("cpu:host",))
    step, shapes = products(parse(MODEL), options)
    assert step.function == "main"
    assert set(shapes) == {LARGE, HEADS}
    panels = Schedule(KernelTiles(64, 64, 4, 16, 4), panels=True)
    for large in (NEW, panels):
        made = {LARGE: large, HEADS: None}
        ((times, *_),) = step.times([step.compiled(made)], each=True)
        names = [one.name for one in times.dispatches]
        for shape in shapes:
            name = f"_{kernel_name(shape, made[shape])}_f32"
            assert any(one.endswith(name) for one in names)
