"""Clusters to plan for, and programs in a module with them."""

from helpers.models import sharded

from pcp.compiler import pipelines
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse

FAST = "memory = 8000000000, throughput = {f32 = 5.0e10}, membw = 1.0e10"


def devices(*facts: str, bandwidth: float = 1e10, latency: float = 1000) -> str:
    """A cluster in which everybody is linked with everybody."""
    lines = [
        '"pcp.target"() {sym_name = "cpu", arch = "x86_64", driver = "local", '
        "caps = {}} : () -> ()"
    ]
    for i, fact in enumerate(facts):
        lines.append(
            f'"pcp.device"() {{sym_name = "d{i}", target = @cpu, ordinal = {i}, '
            f"{fact}}} : () -> ()"
        )
        lines += [
            f'"pcp.link"() {{ends = [@d{j}, @d{i}], bandwidth = {bandwidth:e}, '
            f"latency_ns = {latency:e}}} : () -> ()"
            for j in range(i)
        ]
    return "\n".join(lines)


def training(name: str, cluster: str) -> ir.Module:
    """A model's training program in a module with a cluster."""
    module = parse(sharded.training_text(name))
    pipelines.prepare(infer_roles=True).run(module)
    pipelines.front("train", spread=True, optimizer="adamw{lr=1e-3}").run(module)
    described = parse(cluster, module.context)
    with ir.InsertionPoint.at_block_begin(module.body):
        for view in described.body.operations:
            view.operation.clone()
    return module
