"""pcp-plan: which groups there are, what is left out, what fits, what it costs."""

import pytest
from helpers.models import sharded
from helpers.models.clusters import FAST, devices, training

from pcp.compiler import pipelines
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.core.functions import find
from pcp.passes.planning import pipelined, tensor_groups
from pcp.passes.planning.candidates import Candidate
from pcp.passes.planning.plan import Found, Plan, Search, parse_axes
from pcp.passes.sharding.mesh import read_meshes

SQUARE, FOUR = "tensor<8x8xf32>", range(4)
SLOW = "memory = 8000000000, throughput = {f32 = 5.0e7}, membw = 1.0e7"


def _search(name: str, cluster: str, **wanted):
    module = training(name, cluster)
    with module.context:
        return Search.of(module, **wanted)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("mlp", {"w1": 1, "b1": 0, "w2": 0}),
        ("block", {"up": 1, "down": 0}),
        ("block", {"q": 1, "k": 1, "v": 1, "out": 0}),
    ],
)
def test_columns_bring_their_rows(name: str, group: dict[str, int]) -> None:
    module = parse(sharded.training_text(name))
    pipelines.front("grad", spread=True).run(module)
    with module.context:
        main = find(module, "main")
        assert main is not None
        found = [g.cut for g in tensor_groups.find(main, 2)]
    assert group in found


def test_equal_layers_are_one_group() -> None:
    module = parse(sharded.training_text("gpt"))
    pipelines.front("grad", spread=True).run(module)
    with module.context:
        main = find(module, "main")
        assert main is not None
        found = [g.cut for g in tensor_groups.find(main, 2)]
    (group,) = [set(cut) for cut in found if cut.get("layers.0.up") == 1]
    assert {"layers.0.up", "layers.1.up", "layers.0.down", "layers.1.down"} <= group


def test_a_weight_is_cut_once_in_a_group() -> None:
    """Four equal layers pair up two ways; a pair takes no weight of another."""
    dot = f"contracting_dims = [1] x [0] : ({SQUARE}, {SQUARE}) -> {SQUARE}"
    said = [f'%w{i}: {SQUARE} {{pcp.name = "w.{i}", pcp.role = "param"}}' for i in FOUR]
    lines = [f"%{i + 1} = stablehlo.dot_general %{i}, %w{i}, {dot}" for i in FOUR]
    body = "\n".join(lines).replace("dot_general %0,", "dot_general %x,")
    body = body.replace("%", "%v").replace("%vw", "%w").replace("%vx", "%x")
    module = parse(
        f"func.func @main({', '.join(said)}, %x: {SQUARE}) -> {SQUARE} {{\n{body}\n"
        f"return %v4 : {SQUARE}\n}}"
    )
    with module.context:
        main = find(module, "main")
        assert main is not None
        found = [g.cut for g in tensor_groups.find(main, 2)]
    assert {"w.0": 1, "w.1": 0, "w.2": 1, "w.3": 0} in found
    assert {"w.1": 1, "w.2": 0} in found


@pytest.mark.slow
def test_every_plan_that_is_judged_partitions() -> None:
    choice = _search("block", devices(FAST, FAST, FAST, FAST)).run(keep=24)
    kinds = {(j.candidate.dp, j.candidate.tp) for j in choice.judged}
    assert {(2, 1), (4, 1), (1, 2), (2, 2)} <= kinds
    assert all(j.cost.seconds > 0 and j.memory > 0 for j in choice.judged)


def test_zero_holds_less_the_further_it_goes() -> None:
    """Of four devices. Of two, half of Adam's state is as much as a step's parameters,
    and those are held twice while they are gathered: IREE's allocator says so, too."""
    search = _search("mlp", devices(*[FAST] * 4), axes={"dp": 4})
    first = {c.zero: c for c in search.space.candidates() if c.dp == 4}
    held = [search.judge.judge(first[zero]) for zero in range(4)]
    assert all(held)
    memory = [j.memory for j in held if j is not None]
    assert memory == sorted(memory, reverse=True)
    assert len(set(memory)) == 4


def test_a_slow_device_is_left_out() -> None:
    choice = _search("mlp", devices(FAST, SLOW)).run()
    assert choice.best.candidate.devices == ("d0",)
    assert "left out: d1" in choice.lines()


def test_a_device_without_links_is_left_out() -> None:
    lines = devices(FAST, FAST).splitlines()
    cluster = "\n".join(line for line in lines if "pcp.link" not in line)
    choice = _search("mlp", cluster).run()
    assert len(choice.best.candidate.devices) == 1


def _sets(cluster: str) -> set[tuple[str, ...]]:
    """The devices of all plans that cut a batch in two."""
    search = _search("mlp", cluster, axes={"dp": 2}, zero=0)
    return {candidate.devices for candidate in search.space.candidates()}


def test_devices_of_a_host_or_of_a_link_are_tried_together() -> None:
    """Wherever they stand in the file, and whoever else is as fast."""
    x, y = (f'{FAST}, host = "{host}"' for host in "xy")
    linked = devices(x, y, x, y)
    assert _sets(linked) == {("d0", "d1"), ("d0", "d2")}
    within = ("@d0, @d2", "@d1, @d3")
    lines = [
        line
        for line in linked.splitlines()
        if "pcp.link" not in line or any(pair in line for pair in within)
    ]
    assert _sets("\n".join(lines)) == {("d0", "d2"), ("d1", "d3")}
    alone = [s for s in lines if within[0] not in s]
    assert _sets("\n".join(alone)) == {("d1", "d3")}


@pytest.mark.slow  # a search of seconds
def test_a_plan_that_fits_is_taken_though_slower() -> None:
    (whole,) = _search("mlp", devices(FAST), axes={"dp": 1}).run().judged
    loose = _search("mlp", devices(FAST, FAST), axes={"dp": 2}).run(keep=24)
    room = int((min(j.memory for j in loose.judged) + whole.memory) / 2)
    small = f"memory = {room}, throughput = {{f32 = 5.0e10}}, membw = 1.0e10"
    tight = _search("mlp", devices(small, small, bandwidth=1e3)).run(keep=6)
    assert tight.best.memory <= room
    assert tight.best.candidate.devices == ("d0", "d1")


def _unequal(*memory: int) -> str:
    """Devices of which the first is five times as fast as the others."""
    fast, slow = "{f32 = 5.0e10}, membw = 5.0e10", "{f32 = 1.0e10}, membw = 1.0e10"
    speeds = [fast, *[slow] * (len(memory) - 1)]
    rooms = zip(memory, speeds, strict=True)
    return devices(*[f"memory = {room}, throughput = {speed}" for room, speed in rooms])


@pytest.mark.parametrize(
    ("memory", "split"), [((8_500, 9_000), (4, 4)), ((7_900, 10**9), (1, 7))]
)
def test_shares_follow_memory_where_those_by_speed_do_not_fit(
    memory: tuple[int, int], split: tuple[int, int]
) -> None:
    search = _search("mlp", _unequal(*memory), axes={"dp": 2}, zero=0)
    choice = search.run()
    fits = {j.candidate.split: j.fits for j in choice.judged}
    assert not fits.pop((7, 1))
    assert fits == {split: True}
    flags = choice.flags(choice.best.candidate)
    assert flags == ["--mesh", "dp=2", "--split", "dp={},{}".format(*split)]


def test_a_small_device_with_a_small_share_is_not_full() -> None:
    search = _search("mlp", _unequal(10**9, 8_000), axes={"dp": 2}, zero=0)
    first, *_ = search.space.candidates()
    assert first.split == (7, 1)
    assert search.space.guess(first).fullness < 1
    assert search.run().best.held["d1"] < 8_000


def test_nothing_fits() -> None:
    tiny = "memory = 100, throughput = {f32 = 5.0e10}, membw = 1.0e10"
    with pytest.raises(PassError, match=r"nothing fits: the least memory is that of"):
        _search("mlp", devices(tiny, tiny)).run()


def test_a_type_without_a_rate() -> None:
    bf16 = "memory = 8000000000, throughput = {bf16 = 5.0e10}, membw = 1.0e10"
    with pytest.raises(PassError, match=r"@d0 has no throughput of f32 \(it has: bf16"):
        _search("mlp", devices(bf16)).run()


def test_the_pass_writes_what_the_search_says() -> None:
    first, second = (training("mlp", devices(FAST, FAST)) for _ in range(2))
    for module in (first, second):
        Plan(mesh="dp=2", explain=True, keep=2).run(module)
    with first.context:
        (mesh,) = read_meshes(first).values()
        assert mesh.axes == {"dp": 2}
        assert "pcp.alternatives" in first.operation.attributes
    assert str(first) == str(second)


def test_the_pass_says_how_stages_run() -> None:
    module = training("mlp", devices(FAST, FAST))
    Plan(mesh="pp=2", keep=2, explain=True).run(module)
    with module.context:
        (mesh,) = read_meshes(module).values()
        assert mesh.axes == {"pp": 2}
        lines = ir.ArrayAttr(module.operation.attributes["pcp.alternatives"])
        (taken,) = [s for line in lines if "<- taken" in (s := str(line))]
        said = ir.DictAttr(module.operation.attributes["pcp.pipeline"])
        count = ir.IntegerAttr(said["microbatches"]).value
        kind = ir.StringAttr(said["kind"]).value
        assert f"pp=2 microbatches={count} {kind} " in taken


@pytest.mark.parametrize("text", ["cp=2", "dp", "dp=0", "dp=x"])
def test_axes_that_no_plan_has(text: str) -> None:
    with pytest.raises(PassError, match="is not pp=N, dp=N, sp=N, ep=N or"):
        parse_axes(text)


def test_an_axis_that_is_said_twice() -> None:
    with pytest.raises(PassError, match='axis "dp" is said twice'):
        parse_axes("dp=2,tp=2,dp=4")


def test_a_mesh_larger_than_the_cluster() -> None:
    with pytest.raises(PassError, match="a mesh of 4 for 2 devices"):
        _search("mlp", devices(FAST, FAST), axes={"dp": 4})


def _stages(devices: str, schedule: str) -> Candidate:
    return Candidate(tuple(devices), pp=2, microbatches=4, schedule=schedule)


def test_an_order_that_is_refused_leaves_the_others(monkeypatch) -> None:
    """What no stages were found for is not tried in another order."""
    reasons = {
        ("ab", "zb-h1"): PassError("a deadlock"),
        ("ba", "1f1b"): pipelined.Uncut("op 3 mixes the batch"),
        ("cd", "1f1b"): pipelined.Uncut("op 7 mixes the batch"),
    }
    tried = []

    def judge(_, c: Candidate):
        tried.append(("".join(c.devices), c.schedule))
        if tried[-1] in reasons:
            raise reasons[tried[-1]]
        return c

    monkeypatch.setattr(pipelined, "judge", judge)
    found = Found(None)  # pyright: ignore[reportArgumentType]
    asked = [(d, s) for d in ("ab", "ba", "cd") for s in ("zb-h1", "1f1b", "gpipe")]
    found.add(_stages(*each) for each in asked[:2])
    found.add(_stages(*each) for each in [*asked[4:], *asked])
    assert tried == [*asked[:2], asked[4], asked[6], asked[7], asked[2]]
    assert found.impossible == [
        ("pp=2 microbatches=4 schedule=zb-h1", "a deadlock"),
        ("pp=2 microbatches=4", "op 3 mixes the batch"),
    ]
