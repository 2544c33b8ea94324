"""pcp-compress-collectives: within its bounds, and the same bits as the runtime's."""

import ml_dtypes
import numpy as np
import pytest
from helpers.models import sharded
from helpers.oracles.spmd import PLAN, partitioned
from helpers.worlds.communicators import together, world

from pcp.bundle import Collective
from pcp.compiler import lockstep
from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.runtime.program.host_collectives import launch

COMPRESSED = PLAN.removesuffix(")") + (
    ",pcp-compress-collectives{{wire={} min-bytes=64}},pcp-bucket-collectives,"
    "pcp-overlap-collectives,pcp-verify-plan)"
)
EPS = {"bf16": 2.0**-8, "f16": 2.0**-11}
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
MEMBERS = 3
ROWS = 30
KINDS = {
    "all_reduce": (ROWS, 'kind = "sum"'),
    "reduce_scatter": (ROWS // MEMBERS, 'dim = 0, kind = "sum", sizes = []'),
    "all_gather": (ROWS * MEMBERS, "dim = 0, sizes = []"),
    "mean": (ROWS, 'kind = "mean"'),
}


def _name(kind: str) -> str:
    return "all_reduce" if kind == "mean" else kind


def _program(kind: str) -> str:
    rows, facts = KINDS[kind]
    given, result = f"tensor<{ROWS}x7xf32>", f"tensor<{rows}x7xf32>"
    group = 'axes = ["dp"], mesh = @m, ordered'
    op = f'"pcp.{_name(kind)}"(%x) {{{group}, {facts}}} : ({given}) -> {result}'
    main = f"func.func @main(%x: {given}) -> {result} {{\n%y = {op}\n"
    main += f"return %y : {result}\n}}"
    devices = [f"d{i}" for i in range(MEMBERS)]
    listed = ", ".join(f"@{device}" for device in devices)
    mesh = f'"pcp.mesh"() {{axes = [#pcp.axis<"dp", {MEMBERS}>], devices = [{listed}]'
    homes = "\n".join(f"module @{device} {{ {main} }}" for device in devices)
    return f'{mesh}, sym_name = "m"}} : () -> ()\n{homes}'


def _arrays() -> list[np.ndarray]:
    """Numbers of many sizes, infinities and ties included."""
    random = np.random.default_rng(3)
    made = []
    for _ in range(MEMBERS):
        x = random.normal(size=(ROWS, 7)) * 10.0 ** random.integers(-3, 4, (ROWS, 7))
        made.append(x.astype(np.float32))
    made[0][0, :2] = 1 + 2.0**-8, 1 + 3 * 2.0**-8  # halfway between two bf16
    made[1][1, 0] = np.inf
    return made


def _lockstep(kind: str, wire: str) -> list[np.ndarray]:
    module = parse(_program(kind))
    narrow = f"pcp-compress-collectives{{wire={wire} min-bytes=64}}"
    pipeline(f"builtin.module({narrow},pcp-verify-plan)").run(module)
    results = lockstep.run(module, "main", [[x] for x in _arrays()])
    return [member[0] for member in results]


def _gradients(model: str, plan: str, wire: str | None) -> list[np.ndarray]:
    axes, cut = sharded.PLANS[plan]
    arguments = sharded.models()[model].arguments
    text = sharded.annotate(model, axes, cut)
    passes = COMPRESSED.format(wire) if wire else PLAN
    return partitioned(text, arguments, passes)


@pytest.mark.parametrize("wire", EPS)
@pytest.mark.parametrize("kind", KINDS)
def test_members_get_what_the_runtime_gives(kind: str, wire: str, elsewhere) -> None:
    """Bit for bit, also where the type's range or precision ends."""
    found = elsewhere.submit(_lockstep, kind, wire).result(60)
    what = Collective(
        kind=_name(kind),
        mesh="m",
        axes=("dp",),
        reduction={"mean": "mean", "all_gather": None}.get(kind, "sum"),
        dtype="f32",
        shape=(ROWS, 7),
        wire=wire,
        bytes=ROWS * 7 * 4,
        attributes={"dim": 0, "sizes": []},
    )
    arrays = _arrays()
    with world("in_process", MEMBERS) as comms:
        expected = together(
            range(MEMBERS),
            lambda r: launch(comms[r], what, arrays[r].copy(), "x").result(20),
        )
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == np.float32
        assert a.tobytes() == np.ascontiguousarray(b.astype(np.float32)).tobytes()


@pytest.mark.parametrize("wire", EPS)
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
def test_errors_stay_within_the_bound(kind: str, wire: str, elsewhere) -> None:
    found = elsewhere.submit(_lockstep, kind, wire).result(60)[0]
    arrays = [x.astype(np.float64) for x in _arrays()]
    if kind == "all_gather":
        exact = np.concatenate(arrays)
        scale = np.abs(exact)
    else:
        exact = np.sum(arrays, axis=0)
        scale = np.sum(np.abs(arrays), axis=0) + np.abs(exact)
    finite = np.isfinite(exact)
    assert np.array_equal(found[~finite], exact[~finite].astype(np.float32))
    tiny = float(ml_dtypes.finfo(DTYPES[wire]).smallest_subnormal)
    error = np.abs(found[finite] - exact[finite])
    assert (error <= EPS[wire] * scale[finite] + MEMBERS * tiny).all()
    assert error.max() > 0  # it was narrow


@pytest.mark.parametrize(
    ("model", "plan", "wire"),
    [
        ("mlp", "dp3", "bf16"),
        pytest.param("gpt", "zero3-tp2", "bf16", marks=pytest.mark.slow),
        pytest.param("cnn", "dp3", "f16", marks=pytest.mark.slow),
    ],
)
def test_gradients_are_near(model: str, plan: str, wire: str, elsewhere) -> None:
    exact = elsewhere.submit(_gradients, model, plan, None).result(200)
    found = elsewhere.submit(_gradients, model, plan, wire).result(200)
    changed = False
    for a, b in zip(found, exact, strict=True):
        error = np.linalg.norm(a - b)
        assert error <= 4 * EPS[wire] * np.linalg.norm(b) + 1e-12
        changed |= bool(error)
    assert changed
