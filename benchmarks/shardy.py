"""Shardy's SPMD pipeline, as jaxlib carries it, on a program annotated for pcp.

    python benchmarks/shardy.py < program.mlir       # JSON: bytes and counts

Runs as a process of its own: on some programs the pipeline ends its process.
"""

import json
import math
import re
import sys
from collections import Counter

PASSES = (
    "sdy-propagation-pipeline",
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
    "sdy-resolve-permutation-factors",
    "func.func(sdy-reshard-to-collectives)",
    "func.func(sdy-pad-for-divisibility)",
    "sdy-convert-global-to-local",
    "sdy-drop-sharding-and-mesh",
)


def to_sdy(text: str) -> str:
    """pcp's mesh and shardings as sdy's; nothing else of pcp may be in the text."""
    mesh = re.compile(
        r'"pcp\.mesh"\(\) \{axes = \[(.*?)\], devices = \[\], sym_name = "(\w+)"\}'
        r" : \(\) -> \(\)"
    )
    axis = re.compile(r'#pcp\.axis<"(\w+)", (\d+)(?: : i64)?>')
    text = mesh.sub(
        lambda m: f"sdy.mesh @{m[2]} = <[{axis.sub(_axis, m[1])}]>",
        text,
    )
    sharding = re.compile(
        r"pcp\.sharding = #pcp\.sharding<@(\w+), (\[.*?\]), \[\], \[\]>"
    )
    return sharding.sub(_sharding, text)


def _axis(match: re.Match[str]) -> str:
    return f'"{match[1]}"={match[2]}'


def _sharding(match: re.Match[str]) -> str:
    dims = ", ".join(
        "{" + ", ".join(f'"{axis}"' for axis in dim) + "}"
        for dim in json.loads(match[2])
    )
    return f"sdy.sharding = #sdy.sharding<@{match[1]}, [{dims}]>"


def partition(text: str) -> str:
    """The program of one member, with StableHLO collectives."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir, passmanager

    with mlir.make_ir_context():
        module = ir.Module.parse(to_sdy(text))
        for name in PASSES:
            manager = passmanager.PassManager.parse(f"builtin.module({name})")
            manager.run(module.operation)
        return str(module)


#: Bytes that a member sends of what it holds, in a ring of k members.
SENT = {
    "all_reduce": lambda k, given, result: 2 * (k - 1) / k * given,
    "all_gather": lambda k, given, result: (k - 1) * given,
    "reduce_scatter": lambda k, given, result: (k - 1) / k * given,
    "all_to_all": lambda k, given, result: (k - 1) / k * given,
    "collective_permute": lambda k, given, result: given,
    "permute": lambda k, given, result: given,
}


def count(text: str) -> dict[str, object]:
    """Bytes that a member sends, and how many collectives of each kind."""
    total, kinds = 0.0, Counter()
    op = re.compile(r'"stablehlo\.(\w+)"\(.*?\) <\{(.*?)\}>')
    signature = re.compile(r"\((tensor<[^)]*?>)\) -> (tensor<[^ ,]*>)")
    lines = iter(text.splitlines())
    for line in lines:
        match = op.search(line)
        if not match or match[1] not in SENT:
            continue
        attributes = match[2]
        while not (found := signature.findall(line)):
            line = next(lines)
        given, result = (_bytes(t) for t in found[-1])
        total += SENT[match[1]](_group(attributes), given, result)
        kinds[match[1]] += 1
    return {"bytes": total, "kinds": dict(kinds)}


def _group(attributes: str) -> int:
    shape = re.search(
        r"replica_groups = dense<.*?> : tensor<\d+x(\d+)xi64>", attributes
    )
    return int(shape[1]) if shape else 2


_WIDTHS = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "ui32": 4, "bf16": 2, "f16": 2}


def _bytes(type_: str) -> int:
    *shape, element = type_.removeprefix("tensor<").removesuffix(">").split("x")
    return math.prod(map(int, shape)) * _WIDTHS.get(element, 1)


if __name__ == "__main__":
    print(json.dumps(count(partition(sys.stdin.read()))))
