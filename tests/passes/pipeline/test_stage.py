"""pcp-stage: what stages compute together is what the whole program computes."""

import math
import re
from collections import Counter

import pytest
from helpers.models import sharded
from helpers.oracles import pipelines
from helpers.random_programs import losses

from pcp.compiler.catalog import pipeline
from pcp.dialect.base import symbol
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.core.functions import ROLE, argument_attributes, string, symbol_name

CASES = [
    (model, f"stages={stages} microbatches={count} tied={tied}", kind)
    for model, tied, counts in (
        ("mlp", "false", (1, 2, 8)),
        ("block", "false", (2, 4)),
        ("cnn", "false", (2,)),
        ("gpt", "true", (1, 4)),
        ("gpt8", "true", (8,)),
        ("llama", "false", (2,)),
    )
    for count in counts
    for stages in (2, 4)
    for kind in ("gpipe", "1f1b", "zb-h1")
]
FAST = {
    ("mlp", "stages=4 microbatches=8 tied=false", "1f1b"),
    ("mlp", "stages=4 microbatches=8 tied=false", "zb-h1"),
    ("cnn", "stages=2 microbatches=2 tied=false", "gpipe"),
}


@pytest.mark.parametrize(
    ("model", "options", "kind"),
    [pytest.param(*c, marks=() if c in FAST else pytest.mark.slow) for c in CASES],
)
def test_stages_equal_the_whole(model: str, options: str, kind: str, elsewhere) -> None:
    job = elsewhere.submit(pipelines.error, model, options, kind)
    assert job.result(200) <= 1e-5


#: (model, mesh, plan of `spmd_models`, options, schedule)
MIXED = [
    ("mlp", {"pp": 2, "dp": 2}, "dp", "microbatches=2", "1f1b"),
    ("mlp", {"dp": 2, "pp": 2}, "zero3", "microbatches=2", "zb-h1"),
]
SLOW_MIXED = [
    ("gpt", {"pp": 2, "tp": 2}, "tp", "microbatches=2 tied=true", "1f1b"),
    ("mlp", {"pp": 2, "tp": 2}, "tp", "microbatches=8", "1f1b"),
    ("mlp", {"tp": 2, "pp": 3, "dp": 2}, "dp_tp", "microbatches=4", "1f1b"),
    ("mlp", {"pp": 2, "dp": 2, "tp": 2}, "zero3_tp", "microbatches=2", "gpipe"),
    ("block", {"pp": 2, "tp": 2}, "tp", "microbatches=2", "gpipe"),
    ("block", {"pp": 2, "dp": 2}, "zero3", "microbatches=2", "1f1b"),
    ("cnn", {"pp": 2, "dp": 2}, "dp", "microbatches=2", "1f1b"),
    ("llama", {"pp": 2, "tp": 2}, "tp", "microbatches=2", "zb-h1"),
    ("llama", {"pp": 2, "dp": 2}, "zero3", "microbatches=2", "1f1b"),
    ("gpt", {"pp": 2, "dp": 2}, "dp", "microbatches=2 tied=true", "1f1b"),
    ("gpt", {"pp": 2, "dp": 2}, "zero3", "microbatches=2 tied=true", "1f1b"),
    ("gpt8", {"pp": 4, "dp": 2}, "dp", "microbatches=4 tied=true", "1f1b"),
    ("gpt8", {"pp": 2, "dp": 2, "tp": 2}, "dp_tp", "microbatches=2 tied=true", "zb-h1"),
]


@pytest.mark.parametrize(
    ("model", "axes", "plan", "options", "kind"),
    [*MIXED, *(pytest.param(*c, marks=pytest.mark.slow) for c in SLOW_MIXED)],
)
def test_stages_cut_along_other_axes_equal_the_whole(
    model: str, axes: dict[str, int], plan: str, options: str, kind: str, elsewhere
) -> None:
    job = elsewhere.submit(pipelines.mixed_error, model, axes, plan, options, kind)
    assert job.result(200) <= 1e-5


@pytest.mark.parametrize(
    "seeds", [range(10), pytest.param(range(10, 310), marks=pytest.mark.slow)]
)
def test_random_losses_equal_the_whole_or_are_refused(seeds, elsewhere) -> None:
    jobs = [elsewhere.submit(losses.outcome, seed) for seed in seeds]
    said = [job.result(900) for job in jobs]
    assert said.count("") >= len(seeds) // 2
    assert all(re.match(r"-:\d+:\d+: \w+\.\w+: ", why) for why in said if why)


def _layers(
    devices: str, mesh: str = "pp=2", more: str = "", options: str = ""
) -> list[int]:
    """How many of eight equal layers the first device of each stage has."""
    module = pipelines.chain(8, 16, marked=False)
    axes = dict(part.split("=") for part in mesh.split(","))
    listed = ", ".join(f'#pcp.axis<"{axis}", {n}>' for axis, n in axes.items())
    count = math.prod(map(int, axes.values()))
    names = ", ".join(f"@d{i}" for i in range(count))
    target = '"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", '
    text = f"""
{target} sym_name = "cpu"}} : () -> ()
{devices}
"pcp.mesh"() {{axes = [{listed}], devices = [{names}], sym_name = "m"}} : () -> ()
"""
    module = parse(text + "\n".join(map(str, module.body.operations)) + more)
    stage = f"pcp-stage{{microbatches=2 {options}}}"
    pipeline(
        f"builtin.module({stage},pcp-schedule{{kind=1f1b}},pcp-lower-schedule)"
    ).run(module)
    with module.context:
        held = []
        for i in range(0, count, count // int(axes["pp"])):
            home = next(op for op in module.body.operations if _is_home(op, f"d{i}"))
            body = home.operation.regions[0].blocks[0].operations
            grad = next(f.operation for f in body if symbol_name(f) == "grad")
            roles = [string(said, ROLE) for said in argument_attributes(grad)]
            held.append(roles.count("param"))
        return held


def _is_home(op: ir.OpView, name: str) -> bool:
    return op.operation.name == "builtin.module" and symbol_name(op) == name


def _device(name: str, **facts: float) -> str:
    said = ""
    if "speed" in facts:
        said += f"throughput = {{f32 = {facts['speed']:.1f}}}, "
    if "memory" in facts:
        said += f"memory = {int(facts['memory'])}, "
    return f'"pcp.device"() {{{said}sym_name = "{name}", target = @cpu}} : () -> ()'


@pytest.mark.parametrize(
    ("speeds", "layers"),
    [((1e9, 1e9), [4, 4]), ((3e9, 1e9), [6, 2]), ((1e9, 7e9), [1, 7])],
)
def test_a_faster_device_gets_more_layers(speeds, layers: list[int]) -> None:
    devices = [_device(f"d{i}", speed=speed) for i, speed in enumerate(speeds)]
    assert _layers("\n".join(devices)) == layers


def test_a_stage_is_as_fast_as_its_slowest_device() -> None:
    speeds = (3e9, 1e9, 3e9, 3e9)
    devices = [_device(f"d{i}", speed=speed) for i, speed in enumerate(speeds)]
    assert _layers("\n".join(devices), "pp=2,dp=2") == [2, 6]


def test_stages_are_as_fast_as_in_the_type_that_they_multiply_in() -> None:
    """One that nobody measured is refused, as pcp-plan refuses it."""
    slow, fast = (_device(f"d{i}", speed=speed) for i, speed in enumerate((1e9, 7e9)))
    narrow = "precision = #pcp.precision<bf16, f32, f32>, "
    slow = slow.replace("{throughput = {", f"{{{narrow}throughput = {{bf16 = 2.1e10, ")
    assert _layers(f"{slow}\n{fast}") == [6, 2]
    with pytest.raises(PassError, match=r"@d0 has no throughput of bf16 \(it has: f32"):
        _layers(f"{slow.replace('bf16 = 2.1e10, ', '')}\n{fast}")


def test_a_device_gets_no_more_than_it_holds() -> None:
    """A layer keeps its weight and gradient and two activations: 128 + 512 bytes."""
    fast = _device("d0", speed=3e9, memory=4 * 640 + 10)
    assert _layers(f"{fast}\n{_device('d1', speed=1e9)}") == [4, 4]


def test_optimizer_state_needs_room_too() -> None:
    """Of every weight 64 bytes more: then there is no room for the fourth."""
    said = [f'{{pcp.name = "m.w{i}", pcp.role = "state"}}' for i in range(8)]
    takes = ", ".join(f"%m{i}: tensor<4x4xf32> {a}" for i, a in enumerate(said))
    gives = ", ".join(f"tensor<4x4xf32> {a}" for a in said)
    names, types = ", ".join(f"%m{i}" for i in range(8)), "tensor<4x4xf32>, " * 8
    more = f"""
func.func @keep({takes}) -> ({gives}) {{
  return {names} : {types[:-2]}
}}"""
    fast = _device("d0", speed=3e9, memory=2400)
    devices = f"{fast}\n{_device('d1', speed=1e9)}"
    assert _layers(devices) == [4, 4]
    assert _layers(devices, more=more) == [3, 5]


def test_balanced_by_memory() -> None:
    devices = [_device(f"d{i}", speed=speed) for i, speed in enumerate((3e9, 1e9))]
    assert _layers("\n".join(devices), options="balance=memory") == [4, 4]


def test_a_stage_whose_devices_share_unevenly(elsewhere) -> None:
    """Four, two and two examples of eight, each in two microbatches."""
    split = "pcp-split-batch{weights=2,1,1},"
    arguments = ("mlp", {"pp": 2, "dp": 3}, "dp", "microbatches=2", "1f1b", split)
    assert elsewhere.submit(pipelines.mixed_error, *arguments).result(200) <= 1e-5


def test_gradients_are_summed_between_devices_once() -> None:
    """Behind the last of four microbatches: one sum for each result."""
    module = pipelines.mixed("mlp", {"pp": 2, "dp": 2}, sharded.dp)
    passes = "pcp-stage{microbatches=4},pcp-schedule{kind=1f1b},pcp-lower-schedule"
    pipeline(f"builtin.module({passes})").run(module)
    sums, sends = Counter(), set()
    for op in module.body.operations:
        if op.operation.name == "builtin.module":
            device = symbol_name(op)
            for inner in op.regions[0].blocks[0].operations[0].regions[0].blocks[0]:
                name = inner.operation.name
                sums[device] += name == "pcp.all_reduce"
                if name == "pcp.send":
                    sends.add((device, symbol(inner.operation, "to")))
    assert sums["m_0"] + sums["m_2"] == 6  # of five parameters and the loss
    assert sums == {"m_0": sums["m_1"], "m_1": sums["m_1"]} | {
        "m_2": sums["m_3"],
        "m_3": sums["m_3"],
    }
    here_and_there = {("m_0", "m_2"), ("m_2", "m_0"), ("m_1", "m_3"), ("m_3", "m_1")}
    assert sends == here_and_there


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("mlp", "stages=4 microbatches=3", "batch of 8 cannot be cut into 3 equal"),
        ("mlp", "stages=15", "too few for 15 stages"),
        ("gpt", "stages=4", "parameter token is used by two stages"),
        ("mlp", "stages=2 balance=luck", "balance=luck is not one of time, memory"),
        ("mlp", "stages=2 func=man", "no function @man"),
    ],
)
def test_what_cannot_be_staged_is_said(model: str, options: str, says: str) -> None:
    with pytest.raises(PassError, match=says):
        pipeline(f"builtin.module(pcp-stage{{{options}}})").run(pipelines.named(model))
