"""Programs with imports in them, written by hand; compiled with pcp's flags alone."""

from functools import cache

import numpy as np

from pcp.bundle import Bundle, Collective, Function, Manifest, Mesh, Module, TensorSpec
from pcp.compiler.iree import COMMON_FLAGS
from pcp.manifest import Role

SIZE = 40_000
WIDE = 512
VEC = f"tensor<{SIZE}xf32>"
MAT = f"tensor<{WIDE}x{WIDE}xf32>"
COARSE = 'attributes {iree.abi.model = "coarse-fences", nosideeffects}'


def declare(name: str, given: str, result: str) -> str:
    return f"util.func private @pcp_rt.{name}({given}) -> {result} {COARSE}\n"


def call(to: str, name: str, value: str, given: str, result: str) -> str:
    return f"%{to} = util.call @pcp_rt.{name}(%{value}) : ({given}) -> {result}\n"


def dot(to: str, a: str, b: str) -> str:
    return (
        f"%{to} = stablehlo.dot_general %{a}, %{b}, contracting_dims = [1] x [0]"
        f" : ({MAT}, {MAT}) -> {MAT}\n"
    )


TWO = (
    declare("first", VEC, VEC)
    + declare("second", MAT, MAT)
    + f"func.func @main(%a: {VEC}, %w: {MAT}) -> ({VEC}, {MAT}) {{\n"
    + call("r", "first", "a", VEC, VEC)
    + "".join(dot(f"m{i + 1}", f"m{i}" if i else "w", "w") for i in range(6))
    + call("q", "second", "m6", MAT, MAT)
    + f"%s = stablehlo.add %r, %a : {VEC}\n"
    + f"%t = stablehlo.add %q, %q : {MAT}\n"
    + f"return %s, %t : {VEC}, {MAT}\n}}\n"
)


def compiled(source: str) -> bytes:
    from iree.compiler import compile_str

    module = compile_str(
        source,
        target_backends=["llvm-cpu"],
        extra_args=["--iree-llvmcpu-target-cpu=host", *COMMON_FLAGS],
    )
    assert module is not None
    return module


def spec(name, shape, dtype="f32", role: Role = "data"):
    return TensorSpec(name=name, shape=tuple(shape), dtype=dtype, role=role)


def bundle(source, functions, collectives=None, mesh=None) -> Bundle:
    module = Module(
        file="modules/cpu.vmfb", target="cpu", backend="llvm-cpu", driver="local-task"
    )
    manifest = Manifest(
        mode="forward",
        functions=functions,
        collectives=collectives or {},
        mesh=mesh or {},
        modules={"cpu": module},
    )
    return Bundle.build(manifest, {"modules/cpu.vmfb": compiled(source)})


def collective(kind, shape, **more) -> Collective:
    count = int(np.prod(shape))
    defaults = {"reduction": "sum", "axes": ("workers",), "mesh": "m", "dtype": "f32"}
    return Collective(kind=kind, shape=shape, bytes=4 * count, **defaults | more)


@cache
def two() -> Bundle:
    """Two sums, one of them late: the other's result is needed sooner."""
    io = (spec("a", [SIZE]), spec("w", [WIDE, WIDE]))
    return bundle(
        TWO,
        {"main": Function(inputs=io, results=io)},
        {
            "first": collective("all_reduce", [SIZE]),
            "second": collective("all_reduce", [WIDE, WIDE]),
        },
        {"m": Mesh(axes={"workers": -1})},
    )


PLAIN = {"small": 40_000, "large": 300_000}
"""Elements of f32: every member sums the small vector, the large one goes by chunks."""


@cache
def plain() -> Bundle:
    """Twice a vector, summed, as it is: a function for each of `PLAIN`."""
    text, functions, collectives = "", {}, {}
    for name, count in PLAIN.items():
        vector = f"tensor<{count}xf32>"
        text += declare(f"{name}_0_f32_{count}", vector, vector)
        text += f"func.func @{name}(%x: {vector}) -> {vector} {{\n"
        text += f"%a = stablehlo.add %x, %x : {vector}\n"
        text += call("y", f"{name}_0_f32_{count}", "a", vector, vector)
        text += f"return %y : {vector}\n}}\n"
        io = (spec("x", [count]),)
        functions[name] = Function(inputs=io, results=io)
        collectives[f"{name}_0_f32_{count}"] = collective("all_reduce", [count])
    return bundle(text, functions, collectives, {"m": Mesh(axes={"workers": -1})})
