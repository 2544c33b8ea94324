"""pcp-device-precision: members of different types meet in f32, and stay alike."""

import re

import ml_dtypes
import numpy as np
import pytest
from helpers.models import sharded
from helpers.oracles import pipelines
from helpers.oracles.spmd import whole

from pcp.compiler import lockstep
from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.layout import shard
from pcp.passes.sharding.mesh import read_meshes

#: Relative rounding of bf16 (8 bits of mantissa) and f16 (11 bits).
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}
#: The element type of a contraction's first operand, in the text of an op.
CONTRACTS = re.compile(r"(?:dot_general|convolution)\b.* : \(tensor<[\dx]*x(\w+)>,")
#: Rounding decides between two nearly equal pixels of a max pooling: the cotangent
#: goes to the other one, and one feature's window of the kernel's gradient with it.
POOLED = {("cnn", (3, 3, 3, 8)): 3 * 3 * 3}
SPLIT = (
    "builtin.module(pcp-propagate-sharding,pcp-insert-reshards,pcp-partition,"
    "pcp-device-precision,pcp-verify-plan)"
)


def _devices(types: tuple[str, ...]) -> str:
    target = (
        '"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", '
        'sym_name = "cpu"} : () -> ()\n'
    )
    return target + "".join(
        f'"pcp.device"() {{sym_name = "m_{i}", target = @cpu, '
        f"precision = #pcp.precision<{compute}, f32, f32>}} : () -> ()\n"
        for i, compute in enumerate(types)
    )


def _gradients(name: str, types: tuple[str, ...]):
    """(each member's results, the whole's, contractions by element type and member)."""
    text = sharded.annotate(name, {"dp": 2}, sharded.dp)
    head, body = text.split("{\n", 1)
    module = parse(head + "{\n" + _devices(types) + body)
    pipeline(SPLIT).run(module)
    arguments = sharded.models()[name].arguments
    names = sharded.models()[name].names
    with module.context:
        (mesh,) = read_meshes(module).values()
        layouts = [
            sharded.layout(sharded.dp, n, np.shape(a))
            for n, a in zip(names, arguments, strict=True)
        ]
        parts = [shard(a, x, mesh) for a, x in zip(arguments, layouts, strict=True)]
        narrow = {
            view.operation.attributes["sym_name"].value: CONTRACTS.findall(str(view))
            for view in module.body.operations
            if view.operation.name == "builtin.module"
        }
        results = lockstep.run(module, "main", list(zip(*parts, strict=True)))
    return results, whole(sharded.gradient_text(name), arguments), narrow


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("mlp", ("bf16", "f32")),
        pytest.param("mlp", ("bf16", "f16"), marks=pytest.mark.slow),
        pytest.param("gpt", ("bf16", "f32"), marks=pytest.mark.slow),
        pytest.param("cnn", ("f16", "f32"), marks=pytest.mark.slow),
    ],
)
def test_members_of_different_types_get_the_same_gradients(
    name, types, elsewhere
) -> None:
    job = elsewhere.submit(_gradients, name, types)
    members, expected, narrow = job.result(200)
    for member, compute in zip(("m_0", "m_1"), types, strict=True):
        # What the partition gathers and all members compute alike stays f32.
        assert set(narrow[member]) <= {compute, "f32"}
        assert narrow[member].count(compute) >= 0.6 * len(narrow[member]) > 0
    bound = 8 * max(ROUNDING.get(compute, 0.0) for compute in types)
    errors = []
    for first, second, exact in zip(*members, expected, strict=True):
        assert first.dtype == second.dtype == np.float32
        assert first.tobytes() == second.tobytes()
        apart = np.sort(np.abs(first - exact), axis=None)
        apart = apart[: apart.size - POOLED.get((name, exact.shape), 0)]
        size = float(np.linalg.norm(exact))
        errors.append(float(np.linalg.norm(apart)) / (1e-3 + size))
    assert 1e-5 < max(errors) < bound  # it does round, and no more than that


# --- pipeline stages ---

STAGED = (
    "builtin.module(pcp-stage{microbatches=2},pcp-schedule{kind=1f1b},"
    "pcp-lower-schedule,pcp-device-precision,pcp-verify-plan)"
)
ROUND = {
    "bf16": lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32),
    "f16": lambda x: x.astype(np.float16).astype(np.float32),
    "f32": lambda x: x,
}
BATCH = 8


def _chain_inputs() -> dict[tuple[str, str], np.ndarray]:
    random = np.random.default_rng(3)
    x = random.normal(size=(BATCH, 4)).astype(np.float32)
    weights = [random.normal(size=(4, 4)).astype(np.float32) for _ in range(2)]
    params = {("param", f"w{i}"): w for i, w in enumerate(weights)}
    return {("data", "x"): x} | params


def _run_chain(types: tuple[str, ...]) -> dict[tuple[str, str], np.ndarray]:
    """Two layers as two stages of two devices each, in the lockstep executor."""
    module = pipelines.chain(2, BATCH)
    own = '%arg0: tensor<8x4xf32> {pcp.name = "x", pcp.role = "data"'
    text = str(module)
    assert text.count(own) == 2
    text = text.replace(
        own, own + ', pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>'
    )
    axes = 'axes = [#pcp.axis<"pp", 2>, #pcp.axis<"dp", 2>]'
    listed = ", ".join(f"@m_{i}" for i in range(4))
    mesh = f'"pcp.mesh"() {{{axes}, devices = [{listed}], sym_name = "m"}} : () -> ()'
    head, body = text.split("{\n", 1)
    module = parse(head + "{\n" + _devices(types) + mesh + "\n" + body)
    pipeline(STAGED).run(module)
    return pipelines.run_mixed(module, "grad", _chain_inputs())


def _emulated(types: tuple[str, ...]) -> dict[tuple[str, str], np.ndarray]:
    """The same in numpy: each device rounds what it multiplies, and adds up in f32."""
    x, *weights = _chain_inputs().values()
    total = {("loss", "loss"): np.zeros(()), ("grad", "w0"): 0.0, ("grad", "w1"): 0.0}
    for place, part in enumerate(np.split(x, 2)):
        first, second = ROUND[types[place]], ROUND[types[2 + place]]
        h0 = np.tanh(first(part) @ first(weights[0]))
        h1 = np.tanh(second(h0) @ second(weights[1]))
        g1 = 1 - h1**2
        g0 = (second(g1) @ second(weights[1]).T) * (1 - h0**2)
        total["loss", "loss"] = total["loss", "loss"] + h1.sum()
        # A weight is less to send than slopes: the second stage makes both gradients.
        total["grad", "w0"] = total["grad", "w0"] + second(part).T @ second(g0)
        total["grad", "w1"] = total["grad", "w1"] + second(h0).T @ second(g1)
    return total


@pytest.mark.parametrize(
    "types", [("bf16", "bf16", "f16", "f16"), ("bf16", "f32", "f32", "f16")]
)
def test_a_stage_multiplies_in_its_devices_type(types, elsewhere) -> None:
    found = elsewhere.submit(_run_chain, types).result(200)
    emulated, exact = _emulated(types), _emulated(("f32",) * 4)
    assert found.keys() == exact.keys()
    for key, value in found.items():
        assert value.dtype == np.float32
        rounding = np.linalg.norm(emulated[key] - exact[key])
        assert rounding > 1e-4 * np.linalg.norm(exact[key])
        assert np.linalg.norm(value - emulated[key]) < 0.1 * rounding, key
