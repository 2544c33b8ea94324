"""Programs of one StableHLO collective over two members, and what they compute.

Members are the partitions of one replica. The oracle sees the arguments of both
stacked: member i's at index i.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
MEMBERS = f"replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, {CHANNEL}"
GROUPS = f"{MEMBERS}, use_global_device_ids"
F, HALF, WIDE = "tensor<4x6xf32>", "tensor<2x6xf32>", "tensor<2x12xf32>"


@dataclass(frozen=True)
class Collective:
    """A member's program, the shape of its argument, and all members' function."""

    name: str
    text: str
    shape: tuple[int, ...]
    stacked: Callable[[Any], Any]

    def __str__(self) -> str:
        return self.name


def _body(op: str) -> str:
    return f"""({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.{op} %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
      }})"""


def program(op: str, attributes: str, given: str, result: str, body: str = "") -> str:
    region = _body(body) if body else ""
    return f"""
    func.func @main(%x: {given}) -> {result} {{
      %0 = "stablehlo.{op}"(%x) {region} {{{attributes}}} : ({given}) -> {result}
      return %0 : {result}
    }}"""


#: Two results of one op, one of them without a derivative.
VARIADIC = f"""
    func.func @main(%x: {F}) -> {F} {{
      %i = stablehlo.iota dim = 0 : tensor<3xf32>
      %y = stablehlo.sine %x : {F}
      %0:3 = "stablehlo.all_reduce"(%x, %i, %y) {_body("add")} {{{GROUPS}}}
          : ({F}, tensor<3xf32>, {F}) -> ({F}, tensor<3xf32>, {F})
      %1 = stablehlo.multiply %0#0, %0#2 : {F}
      return %1 : {F}
    }}"""
ASYNC = f"""
    func.func @main(%x: {F}) -> {F} {{
      %f = "stablehlo.async_start"(%x) ({{
      ^bb0(%a: {F}):
        %c = "stablehlo.collective_permute"(%a)
          {{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>, {CHANNEL}}}
          : ({F}) -> {F}
        stablehlo.return %c : {F}
      }}) : ({F}) -> !stablehlo.future<{F}>
      %s = stablehlo.sine %x : {F}
      %y = "stablehlo.async_done"(%f) : (!stablehlo.future<{F}>) -> {F}
      %0 = stablehlo.multiply %s, %y : {F}
      return %0 : {F}
    }}"""


def _everywhere(x: Any) -> Any:
    return jnp.stack([x, x])


def _shifted(x: Any) -> Any:
    return jnp.stack([jnp.zeros_like(x[0]), x[0]])


def _exchanged(x: Any) -> Any:
    """Rows are cut in two, the pieces of both members joined along columns."""
    return jnp.stack([jnp.hstack([m[r : r + 2] for m in x]) for r in (0, 2)])


CASES = [
    Collective(
        "all_reduce",
        program("all_reduce", GROUPS, F, F, "add"),
        (4, 6),
        lambda x: _everywhere(x.sum(0)),
    ),
    Collective(
        "all_reduce_maximum",
        program("all_reduce", GROUPS, F, F, "maximum"),
        (4, 6),
        lambda x: _everywhere(x.max(0)),
    ),
    Collective(
        "all_reduce_minimum",
        program("all_reduce", GROUPS, F, F, "minimum"),
        (4, 6),
        lambda x: _everywhere(x.min(0)),
    ),
    Collective(
        "all_reduce_variadic",
        VARIADIC,
        (4, 6),
        lambda x: _everywhere(x.sum(0) * jnp.sin(x).sum(0)),
    ),
    Collective(
        "all_gather",
        program("all_gather", f"all_gather_dim = 0 : i64, {GROUPS}", HALF, F),
        (2, 6),
        lambda x: _everywhere(x.reshape(4, 6)),
    ),
    Collective(
        "all_gather_inner",
        program("all_gather", f"all_gather_dim = 1 : i64, {GROUPS}", HALF, WIDE),
        (2, 6),
        lambda x: _everywhere(jnp.hstack(list(x))),
    ),
    Collective(
        "reduce_scatter",
        program(
            "reduce_scatter", f"scatter_dimension = 0 : i64, {GROUPS}", F, HALF, "add"
        ),
        (4, 6),
        lambda x: x.sum(0).reshape(2, 2, 6),
    ),
    Collective(
        "all_to_all",
        program(
            "all_to_all",
            "split_dimension = 0 : i64, concat_dimension = 1 : i64, "
            f"split_count = 2 : i64, {MEMBERS}",
            F,
            WIDE,
        ),
        (4, 6),
        _exchanged,
    ),
    Collective(
        "collective_permute",
        program(
            "collective_permute",
            "source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>, "
            f"{CHANNEL}",
            F,
            F,
        ),
        (4, 6),
        lambda x: x[::-1],
    ),
    Collective(
        "collective_permute_one_way",
        program(
            "collective_permute",
            f"source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>, {CHANNEL}",
            F,
            F,
        ),
        (4, 6),
        _shifted,
    ),
    Collective("async", ASYNC, (4, 6), lambda x: jnp.sin(x) * _shifted(x)),
]
#: The interpreter ends its process on it.
BROADCAST = Collective(
    "collective_broadcast",
    program("collective_broadcast", MEMBERS, F, F),
    (4, 6),
    lambda x: _everywhere(x[0]),
)
