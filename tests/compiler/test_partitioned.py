"""Training programs in pipeline stages: they train as the whole program does."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.models import sharded, stablehlo_small
from helpers.oracles import staged_training

from pcp.compiler import driver, partitioned
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import PcpError
from pcp.passes.collectives.overlap_collectives import usual_inflight
from pcp.passes.planning.candidates import Candidate

CLIPPED = "adamw{lr=1e-2,clip_norm=0.1}"
#: Without Adam's division, which makes much of small differences.
SGD = "sgd{lr=0.1,momentum=0.9,clip_norm=0.1}"


def _check(elsewhere, model: str, options: dict[str, Any]) -> None:
    job = elsewhere.submit(staged_training.differences, model, 2, **options)
    found = job.result(200)
    assert max(found.values()) <= 1e-5, found


@pytest.mark.parametrize(
    "options",
    [
        {"mesh": "pp=2,dp=2", "microbatches": 2, "zero": 1, "optimizer": CLIPPED},
        {"mesh": "pp=3", "microbatches": 4, "optimizer": SGD},
    ],
)
def test_stages_train(options: dict[str, Any], elsewhere) -> None:
    _check(elsewhere, "mlp", options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("mlp", {"mesh": "pp=2", "schedule": "zb-h1", "optimizer": CLIPPED}),
        ("mlp", {"mesh": "dp=2,pp=2", "zero": 2, "optimizer": CLIPPED}),
        ("mlp", {"mesh": "pp=2,dp=2", "zero": 3, "optimizer": CLIPPED}),
        ("mlp", {"mesh": "pp=2,dp=2,tp=2", "zero": 1, "optimizer": CLIPPED}),
        ("gpt", {"mesh": "pp=2", "microbatches": 4, "tied": True, "optimizer": SGD}),
        ("gpt", {"mesh": "pp=2,dp=2", "zero": 1, "tied": True, "optimizer": SGD}),
        ("gpt", {"mesh": "pp=2,tp=2", "tied": True, "optimizer": SGD}),
        ("llama", {"mesh": "pp=2,dp=2", "zero": 3, "optimizer": SGD}),
    ],
)
def test_more_stages_train(
    model: str, options: dict[str, Any], elsewhere, tmp_path: Path
) -> None:
    if "tp" in options["mesh"]:
        options = options | {"sharding": _sharding(model, tmp_path)}
    _check(elsewhere, model, options)


def _sharding(model: str, folder: Path) -> Path:
    """A sharding file of the plan `dp_tp`, or `tp` where dp is not in the mesh."""
    found = sharded.models()[model]
    plan = sharded.dp_tp if model == "mlp" else sharded.tp
    tensors = {}
    for name, array in zip(found.names, found.arguments, strict=True):
        layout = sharded.layout(plan, name, array.shape)
        tensors[name] = [list(axes) for axes in layout.dims]
    path = folder / "sharding.json"
    path.write_text(json.dumps({"tensors": tensors}))
    return path


def test_a_stage_holds_what_it_uses() -> None:
    """Its own parameters and their state; the step and the loss are everywhere."""
    program = staged_training.compiled("mlp", mesh="pp=2,dp=2")
    rows = (["mesh_0", "mesh_1"], ["mesh_2", "mesh_3"])
    params = staged_training.holders(program, "apply", "param")
    state = staged_training.holders(program, "apply", "state")
    assert len(params) == 5
    assert all(devices in rows for devices in params.values())
    assert params["w1"] == rows[0]
    assert params["w3"] == rows[1]
    assert state.pop("step") == [*rows[0], *rows[1]]
    assert {name: params[name.partition(".")[2]] for name in state} == state
    loss = staged_training.holders(program, "grad", "loss")
    assert loss == {"loss": [*rows[0], *rows[1]]}
    grads = staged_training.holders(program, "grad", "grad")
    assert grads == params


DEVICES = """
"pcp.device"() {sym_name = "a", target = @cqu} : () -> ()
"pcp.device"() {sym_name = "b", target = @cpu} : () -> ()
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"""  # noqa: E501


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        (DEVICES, r"@a is to be .* for @cqu, and there is no .* Did you mean 'cpu'"),
        (
            DEVICES.replace("@cqu", "@cpu, memory = 99"),
            "does not fit on @a: the arguments of @main need 160 bytes, and it has 99",
        ),
    ],
)
def test_what_a_device_cannot_be(devices: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "c.mlir").write_text(devices)
    options = CompileOptions(mode="grad", mesh="dp=2", cluster=tmp_path / "c.mlir")
    with pytest.raises(PcpError, match=says):
        driver.compile(parse(stablehlo_small.TANH_SUM), options)


@pytest.mark.parametrize(("pp", "zero"), [(1, 0), (1, 3), (2, 3), (2, 1)])
def test_a_plan_is_compiled_as_it_was_judged(pp: int, zero: int) -> None:
    stages = {"pp": pp, "microbatches": 4, "schedule": "zb-h1"} if pp > 1 else {}
    taken = Candidate(("a", "b", "c", "d"), 4 // pp, 1, zero, **stages)
    found = partitioned.as_planned(CompileOptions(), taken)
    assert partitioned.under_way(found) == usual_inflight(zero)
    if pp > 1:
        assert (found.microbatches, found.schedule) == (4, "zb-h1")
    asked = partitioned.as_planned(CompileOptions(inflight=1), taken)
    assert partitioned.under_way(asked) == 1
