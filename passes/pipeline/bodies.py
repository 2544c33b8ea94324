"""The bodies of tasks: what they may hold, and calls in them inlined."""

from collections.abc import Iterable

from pcp.dialect import host
from pcp.dialect.bindings import ir
from pcp.passes.core.dialects import check_readable
from pcp.passes.core.rewriting import operations, refuse
from pcp.passes.pipeline.wiring import schedules
from pcp.passes.sharding.inline_calls import inline_task_calls

_PLACES = ("schedule", "task", "transfer")
_LAYS = "barrier_prop constraint from_part reshard sharding_group to_part".split()
_TRAINS = "grad microbatch optimizer outer step".split()

#: Ops of pcp that no task holds, and why.
REFUSED: dict[str, str] = {
    **{
        f"pcp.{name}": "a task runs on one device; write it beside the task, in the "
        "pcp.schedule"
        for name in _PLACES
    },
    **{
        f"pcp.{name}": "it says how a tensor lies on a mesh, and a task has its "
        "tensors whole, on one device; leave it out"
        for name in _LAYS
    },
    **{
        f"pcp.{name}": "a task's body is what a device computes; run "
        "pcp-expand-training, or pcp-grad, on a function of its own first"
        for name in _TRAINS
    },
}


def prepare_bodies(module: ir.Module, functions: Iterable[ir.Operation]) -> None:
    """Check the bodies of all tasks, and inline the calls in them but the host's."""
    tasks = [
        view.operation
        for function in functions
        for schedule in schedules(function)
        for view in schedule.regions[0].blocks[0].operations
        if view.operation.name == "pcp.task"
    ]
    inline_task_calls(module, tasks)
    for declared in host.host_functions(module).values():
        if (problem := host.problem(declared)) is not None:
            refuse(declared, problem)
    for task in tasks:
        for op in operations(task):
            check_readable(op)
            if (why := REFUSED.get(op.name)) is not None:
                refuse(op, why)


def declare(home: ir.Block, known: dict[str, ir.Operation]) -> None:
    """Copy the host functions that a device's program calls into its module."""
    called = {
        host.callee(op)
        for view in home.operations
        for op in operations(view.operation)
        if host.is_host_call(op, known)
    }
    with ir.InsertionPoint.at_block_begin(home):
        for name in known:
            if name in called:
                known[name].clone()
