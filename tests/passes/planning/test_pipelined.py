"""Plans with stages: their timeline in closed form, what is alive, what is refused."""

import pytest
from helpers.models.clusters import FAST, devices, training

from pcp.dialect.context import parse
from pcp.mesh import Mesh
from pcp.passes.analysis.cluster import Cluster, Device, Link
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import device_modules
from pcp.passes.planning.cost import PlannedMember
from pcp.passes.planning.pipelined import Program, Run, split_contractions
from pcp.passes.planning.plan import Search

N, COUNT = 512, 3
T = f"tensor<{N}x{N}xf32>"
DOT = f"contracting_dims = [1] x [0] : ({T}, {T}) -> {T}"
BYTES = 4 * N * N
#: Seconds of a product, of handing a message over, and of its bytes on the link.
PRODUCT = 2 * N**3 / 1e10 + 3 * BYTES / 1e10
OVER, WIRE, LATENCY = 2e-3 + BYTES / 5e8, BYTES / 1e9, 7e-3


def _members(*, overlaps: bool) -> list[PlannedMember]:
    facts = {"throughput": {"f32": 1e10}, "membw": 1e10, "overlaps": overlaps}
    facts |= {"exchange": 2e-3, "exchange_bw": 5e8}
    cluster = Cluster(
        {name: Device(name, "cpu", **facts) for name in "ab"},
        {frozenset("ab"): Link(bandwidth=1e9, latency=LATENCY)},
    )
    mesh = Mesh("m", {"pp": 2}, ("a", "b"))
    return [PlannedMember(cluster, mesh, place) for place in mesh.members]


def _run(*, overlaps: bool) -> Run:
    """@a multiplies and sends three times, @b receives and multiplies."""
    numbers = range(COUNT)
    first = "\n".join(
        f"%y{i} = stablehlo.dot_general %w, %w, {DOT}\n"
        f'"pcp.send"(%y{i}) {{channel = {i + 1}, to = @b}} : ({T}) -> ()'
        for i in numbers
    )
    second = "\n".join(
        f'%x{i} = "pcp.recv"() {{channel = {i + 1}, source = @a}} : () -> {T}\n'
        f"%y{i} = stablehlo.dot_general %x{i}, %x{i}, {DOT}"
        for i in numbers
    )
    returned = ", ".join(f"%y{i}" for i in numbers)
    types = ", ".join([T] * COUNT)
    module = parse(f"""
module @a {{ func.func @f(%w: {T}) {{ {first}
  return }} }}
module @b {{ func.func @f() -> ({types}) {{ {second}
  return {returned} : {types} }} }}""")
    with module.context:
        homes = {symbol_name(op): op.operation for op in module.body.operations}
        programs = [Program.read(homes[name]) for name in "ab"]
        return Run.of(programs, _members(overlaps=overlaps))


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_timeline_is_what_its_messages_let_it_be(overlaps: bool) -> None:
    """The last message leaves behind three products; @b is done with the others."""
    sender = PRODUCT + OVER + (0.0 if overlaps else WIRE)
    travel = LATENCY + (WIRE if overlaps else 0.0)
    found = _run(overlaps=overlaps)
    expected = COUNT * sender + travel + OVER + PRODUCT
    assert found.timeline.length == pytest.approx(expected)
    cost = found.cost()
    assert cost.compute == pytest.approx(COUNT * PRODUCT)
    assert cost.seconds == pytest.approx(expected)
    assert cost.sent == COUNT * BYTES


@pytest.mark.slow  # seconds of planning
def test_every_order_holds_what_it_may() -> None:
    near = {"bandwidth": 1e15, "latency": 1e-3}
    module = training("mlp", devices(FAST, FAST, **near))
    with module.context:
        choice = Search.of(module, axes={"pp": 2}).run(keep=24)
    assert {j.candidate.schedule for j in choice.judged} == {"1f1b", "gpipe", "zb-h1"}
    for j in choice.judged:
        count = j.candidate.microbatches
        most = {"1f1b": (min(2, count), 1), "gpipe": (count, count)}
        assert j.alive == most.get(j.candidate.schedule, (min(2, count),) * 2)
    held = {str(j.candidate): j.memory for j in choice.judged}
    assert held["pp=2 microbatches=8 1f1b"] <= held["pp=2 microbatches=8 gpipe"]
    waits = {str(j.candidate): j.bubble for j in choice.judged}
    assert waits["pp=2 microbatches=8 1f1b"] < waits["pp=2 microbatches=1 1f1b"]


def test_contractions_are_split_as_each_target_does() -> None:
    """A processor's of rows, in chunks; not those of the device beside it."""
    x, y = "tensor<1024x128xf32>", "tensor<128x128xf32>"
    module = parse(
        "\n".join(
            f"""module @{name} {{ func.func @f(%x: {x}) -> {y} {{
  %y = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : ({x}, {x}) -> {y}
  return %y : {y} }} }}"""
            for name in "ab"
        )
    )
    cluster = Cluster(
        {"a": Device("a", "cuda"), "b": Device("b", "cpu", overlaps=False)}, {}
    )
    with module.context:
        split_contractions(module, cluster)
        split = {
            n: "batching" in str(home) for n, home in device_modules(module).items()
        }
    assert split == {"a": False, "b": True}
