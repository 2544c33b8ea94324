"""The cost model against closed forms; what starts early is waited for once."""

from typing import Any

import pytest

from pcp.dialect.context import parse
from pcp.mesh import Mesh
from pcp.passes.analysis.cluster import Cluster, Device, Link, Rates
from pcp.passes.core.rewriting import functions
from pcp.passes.core.walk import block_of
from pcp.passes.planning import cost

LINK = Link(bandwidth=1e9, latency=1e-4)
DEVICE = {"target": "cpu", "throughput": {"f32": 1e10}, "membw": 1e10}


def member(size: int, **more: bool) -> cost.PlannedMember:
    names = [f"d{i}" for i in range(size)]
    devices = {n: Device(n, **DEVICE, **more) for n in names}  # pyright: ignore[reportArgumentType]
    links = {frozenset((a, b)): LINK for a in names for b in names if a != b}
    mesh = Mesh("m", {"dp": size}, tuple(names))
    return cost.PlannedMember(Cluster(devices, links), mesh, mesh.members[0])


@pytest.mark.parametrize("k", [2, 3, 4, 8])
def test_a_ring_takes_two_rounds(k: int) -> None:
    n = 1e6
    expected = 2 * (k - 1) * (LINK.latency + n / (k * LINK.bandwidth))
    assert cost.wire_seconds("all_reduce", k, n, n, LINK) == pytest.approx(expected)
    half = cost.wire_seconds("reduce_scatter", k, n, n / k, LINK)
    assert half == pytest.approx(expected / 2)
    gather = cost.wire_seconds("all_gather", k, n / k, n, LINK)
    assert gather == pytest.approx(LINK.latency + (k - 1) / k * n / LINK.bandwidth)


def test_small_sums_go_at_once() -> None:
    seconds = cost.wire_seconds("all_reduce", 4, 8, 8, LINK)
    assert seconds == pytest.approx(LINK.latency + 24 / LINK.bandwidth)


def _cost(body: str, size: int = 2, **more: Any) -> cost.PlanCost:
    module = parse(f"""
"pcp.mesh"() {{axes = [#pcp.axis<"dp", {size}>], devices = [], sym_name = "m"}}
    : () -> ()
func.func @f(%a: tensor<512x512xf32>, %b: tensor<512x512xf32>) -> tensor<512x512xf32> {{
{body}
}}""")
    with module.context:
        (function,) = functions(module)
        return cost.block_cost(block_of(function, 0), member(size, **more))


T = "tensor<512x512xf32>"
DOT = f"contracting_dims = [1] x [0] : ({T}, {T}) -> {T}"
MATMUL = 2 * 512**3 / 1e10 + 3 * 4 * 512 * 512 / 1e10
WIRE = 2 * (1e-4 + 4 * 512 * 512 / (2 * 1e9))


def test_work_is_a_roofline() -> None:
    found = _cost(f"  %c = stablehlo.dot_general %a, %b, {DOT}\n  return %c : {T}")
    assert found.compute == pytest.approx(MATMUL)
    assert found.waiting == found.sent == 0


def test_waiting_for_a_sum_adds_to_the_work() -> None:
    found = _cost(f"""
  %c = stablehlo.dot_general %a, %b, {DOT}
  %s = "pcp.all_reduce"(%c) {{axes = ["dp"], kind = "sum", mesh = @m}} : ({T}) -> {T}
  return %s : {T}""")
    assert found.compute == pytest.approx(MATMUL)
    assert found.waiting == pytest.approx(WIRE)
    assert found.sent == 4 * 512 * 512


STARTED = f"""
  %f = "pcp.start"(%a) ({{
  ^bb0(%x: {T}):
    %r = "pcp.all_reduce"(%x) {{axes = ["dp"], kind = "sum", mesh = @m}} : ({T}) -> {T}
    "pcp.yield"(%r) : ({T}) -> ()
  }}) {{channel = 1}} : ({T}) -> !pcp.future<{T}>
  %c = stablehlo.dot_general %b, %b, {DOT}
  %s = "pcp.wait"(%f) : (!pcp.future<{T}>) -> {T}
  %y = stablehlo.dot_general %s, %c, {DOT}
  return %y : {T}"""


def test_a_started_sum_hides_behind_work() -> None:
    found = _cost(STARTED)
    assert MATMUL > WIRE  # so that nothing is left to wait for
    assert found.waiting == pytest.approx(0, abs=1e-12)
    # The first product reads one matrix twice.
    assert found.compute == pytest.approx(2 * MATMUL, rel=0.02)


def test_a_processor_moves_messages_itself() -> None:
    assert _cost(STARTED, overlaps=False).waiting == pytest.approx(WIRE)


def test_a_counted_loop_counts_its_rounds() -> None:
    found = _cost(f"""
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, {T}
   cond {{
    %n = stablehlo.constant dense<7> : tensor<i32>
    %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  }} do {{
    %j = stablehlo.add %i, %one : tensor<i32>
    %y = stablehlo.dot_general %x, %b, {DOT}
    stablehlo.return %j, %y : tensor<i32>, {T}
  }}
  return %r#1 : {T}""")
    assert found.compute == pytest.approx(7 * MATMUL, rel=0.05)


def test_a_collective_costs_besides_the_wire() -> None:
    body = f"""  %c = "pcp.all_reduce"(%a) {{axes = ["dp"], kind = "sum", mesh = @m}}
      : ({T}) -> {T}
  return %c : {T}"""
    found = _cost(body, exchange=1e-3, exchange_bw=1e9)
    bytes_ = 2 * 4 * 512 * 512
    assert found.seconds == pytest.approx(WIRE + 1e-3 + bytes_ / 1e9)


@pytest.mark.parametrize(("working", "slower"), [(1, 0.0), (2, 1 / 3), (4, 1.0)])
def test_devices_of_a_host_slow_each_other(working: int, slower: float) -> None:
    alone = Rates({"f32": 2e10}, 4e10)
    names = [f"d{i}" for i in range(4)]
    devices = {n: Device(n, host="h", alone=alone, **DEVICE) for n in names}
    devices["other"] = Device("other", host="i", **DEVICE)
    cluster = Cluster(devices, {}).among([*names[:working], "other"])
    found = cluster.devices["d0"]
    assert 1 / found.rate("f32") == pytest.approx((1 + slower) / 2e10)
    assert 1 / found.membw == pytest.approx((1 + 3 * slower) / 4e10)
    assert cluster.devices["other"] == devices["other"]
