"""Shardy's own propagation tests, each before and behind its propagation, as JSON.

    python benchmarks/shardy_programs.py CHECKOUT > programs.json

CHECKOUT is a work tree of openxla/shardy; nothing of it is kept here. Each function of
the test files becomes a module of its own, with what it calls. Shardy is the one that
jaxlib carries, its whole propagation pipeline. On some programs it ends its process, so
every program gets a fork.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jax._src.interpreters import mlir
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy

TESTS = "shardy/dialect/sdy/transforms/propagation/test"
FILES = (
    *("aggressive_propagation", "basic_propagation", "basic_propagation_conservative"),
    *("basic_propagation_data_flow_edges", "op_priority_propagation"),
    *("propagation_pipeline", "propagation_pipeline_data_flow_edges"),
    *("sharding_group_propagation", "user_priority_propagation"),
)

_FUNCTION = re.compile(r"^\s*func\.func (public |private )?@(\w+)", re.MULTILINE)
_EDGES = ("sdy.data_flow_edge", "sdy.func_data_flow_edge")
_REGIONS = (
    *("sdy.named_computation", "stablehlo.case", "stablehlo.if", "stablehlo.while"),
)

Program = dict[str, Any]


def programs(checkout: Path) -> Iterator[Program]:
    """Every function of the tests; a private one says so, it goes with its caller."""
    context = get_context("fork")
    for file in FILES:
        text = (checkout / TESTS / f"{file}.mlir").read_text()
        for number, chunk in enumerate(text.split("// -----")):
            for visibility, name in _FUNCTION.findall(chunk):
                said = {"file": file, "chunk": number, "name": name}
                if visibility.strip() == "private":
                    yield said | {"private": True}
                    continue
                here, there = context.Pipe(duplex=False)
                child = context.Process(target=_one, args=(chunk, name, there))
                child.start()
                there.close()
                try:
                    yield said | here.recv()
                except EOFError:
                    yield said | {"error": "Shardy ended its process"}
                child.join()


def _one(chunk: str, name: str, answer: Connection) -> None:
    try:
        answer.send(_propagated(chunk, name))
    except Exception as error:
        answer.send({"error": str(error).splitlines()[0]})


def _propagated(chunk: str, name: str) -> Program:
    """The function before and behind Shardy's propagation, in generic form."""
    with mlir.make_ir_context():
        module = ir.Module.parse(chunk)
        _drop_edges(module)
        _keep(module, name)
        before = _generic(module)
        _run(module, "sdy-propagation-pipeline")
        _say_replicated(module, name)
        return {"before": before, "behind": _generic(module)}


def _generic(module: ir.Module) -> str:
    return str(module.operation.get_asm(print_generic_op_form=True))


def _run(module: ir.Module, name: str) -> None:
    passes = f"builtin.module({name})"
    passmanager.PassManager.parse(passes).run(module.operation)


def _keep(module: ir.Module, name: str) -> None:
    """The function, and what it calls."""
    for op in _top(module):
        if op.operation.name != "func.func":
            continue
        if op.name.value != name:
            op.attributes["sym_visibility"] = ir.StringAttr.get("private")
        elif "sym_visibility" in op.attributes:
            del op.attributes["sym_visibility"]
    _run(module, "symbol-dce")


# --- data-flow edges, which the pipeline adds itself ---


def _drop_edges(module: ir.Module) -> None:
    """Their shardings go to the ops whose results they are of."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in _EDGES:
            found.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for edge in found:
        (given,) = edge.operands
        if "sharding" in edge.attributes and not isinstance(given.owner, ir.Block):
            _annotate(given, edge.attributes["sharding"])
        edge.results[0].replace_all_uses_with(given)
        edge.erase()


def _annotate(value: ir.Value, sharding: ir.Attribute) -> None:
    owner: Any = value.owner
    mesh = re.findall(r"@(\w+)", str(sharding))[0]
    if "sdy.sharding" in owner.attributes:
        said = owner.attributes["sdy.sharding"]
        given = list(sdy.TensorShardingPerValueAttr(said).shardings)
    else:
        given = [ir.Attribute.parse(_of(mesh, r.type, "{?}")) for r in owner.results]
    given[list(owner.results).index(value)] = sharding
    owner.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get(given)


# --- what has no sharding behind propagation is whole ---


def _say_replicated(module: ir.Module, name: str) -> None:
    text = str(module)
    meshes = [o.sym_name.value for o in _top(module) if _is_mesh(o)]
    named = Counter(n for n in re.findall(r"<@(\w+), \[", text) if n in meshes)
    if not meshes:
        return
    mesh = named.most_common(1)[0][0] if named else meshes[0]
    for op in _top(module):
        if op.operation.name == "func.func" and op.name.value == name:
            _ports(op.operation, "arg_attrs", op.type.inputs, mesh)
            _ports(op.operation, "res_attrs", op.type.results, mesh)
            for block in op.body.blocks:
                _ops(block, mesh)


def _top(module: ir.Module) -> list[Any]:
    return list(module.body.operations)


def _is_mesh(op: Any) -> bool:
    return op.operation.name == "sdy.mesh"


def _of(mesh: str, type_: ir.Type, dim: str) -> str:
    """A sharding that says the same of each dimension."""
    is_tensor = isinstance(type_, ir.RankedTensorType)
    rank = len(ir.RankedTensorType(type_).shape) if is_tensor else 0
    return f"#sdy.sharding<@{mesh}, [{', '.join([dim] * rank)}]>"


def _ports(op: ir.Operation, which: str, types: Sequence[ir.Type], mesh: str) -> None:
    empty = [ir.DictAttr.get({}) for _ in types]
    has = which in op.attributes
    old = list(ir.ArrayAttr(op.attributes[which])) if has else empty
    new = []
    for entry, type_ in zip(old, types, strict=True):
        facts = {named.name: named.attr for named in ir.DictAttr(entry)}
        if isinstance(type_, ir.RankedTensorType):
            whole = ir.Attribute.parse(_of(mesh, type_, "{}"))
            facts = {"sdy.sharding": whole} | facts
        new.append(ir.DictAttr.get(facts))
    op.attributes[which] = ir.ArrayAttr.get(new)


def _ops(block: ir.Block, mesh: str) -> None:
    for view in block.operations:
        op = view.operation
        is_ours = op.name.startswith("sdy.") or op.name == "func.call"
        tensors = [isinstance(r.type, ir.RankedTensorType) for r in op.results]
        if any(tensors) and not is_ours and "sdy.sharding" not in op.attributes:
            whole = [_of(mesh, r.type, "{}") for r in op.results]
            listed = ", ".join(s.removeprefix("#sdy.sharding") for s in whole)
            per_value = f"#sdy.sharding_per_value<[{listed}]>"
            op.attributes["sdy.sharding"] = ir.Attribute.parse(per_value)
        for region in op.regions if op.name in _REGIONS else ():
            for inner in region.blocks:
                _ops(inner, mesh)


if __name__ == "__main__":
    print(json.dumps(list(programs(Path(sys.argv[1])))))
