"""What a JAX program says about where its tensors lie.

`NamedSharding`s in `in_shardings` and `out_shardings`, on arguments that are arrays
on several devices, and in `jax.lax.with_sharding_constraint` reach the module as
`pcp.mesh`, `pcp.sharding` and `pcp.constraint` (`dialect.shardy.sdy` reads them).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pcp.dialect.attributes import SHARDING
from pcp.dialect.bindings import ir
from pcp.dialect.shardy import sdy
from pcp.errors import IRError, UsageError
from pcp.frontends.signature import entry

_REPLICAS = re.compile(r"mhlo\.num_replicas = (\d+)")
_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")
_OTHERS = re.compile(r"\bmhlo\.sharding|@Sharding\b")


def jitted(jax: Any, fn: Callable[..., Any], shardings: dict[str, Any]) -> Any:
    """`fn` under `jax.jit` with these shardings; a jitted function has its own."""
    given = {key: value for key, value in shardings.items() if value is not None}
    if not hasattr(fn, "lower"):
        return jax.jit(fn, keep_unused=True, **given)
    if given:
        raise UsageError(
            f"{', '.join(given)}: the function is jitted already; say it to jax.jit, "
            "or pass the plain function"
        )
    return fn


def text_of(lowered: Any, name: str) -> str:
    """A lowered function as MLIR text: in generic form where it has shardings."""
    text = lowered.as_text(debug_info=True)
    _refuse(text, name)
    if not sdy.is_in(text):
        return text
    module = lowered.compiler_ir("stablehlo")
    return module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)


def _refuse(text: str, name: str) -> None:
    """`IRError` at copies of a program, and at shardings in the old notation."""

    def many(pattern: re.Pattern[str]) -> bool:
        return any(int(count) > 1 for count in pattern.findall(text))

    if many(_REPLICAS):
        raise IRError(
            f"{name}: the JAX program is one of several replicas (pmap); write it "
            "for the whole batch, under jax.jit with in_shardings"
        )
    if _OTHERS.search(text) or (many(_PARTITIONS) and not sdy.is_in(text)):
        raise IRError(
            f"{name}: the JAX program is sharded in GSPMD's notation; leave "
            "jax_use_shardy_partitioner on, and pcp reads its shardings"
        )


@dataclass(frozen=True)
class Ports:
    """The shardings of the entry's arguments and results."""

    arguments: tuple[ir.Attribute | None, ...]
    results: tuple[ir.Attribute | None, ...]

    @classmethod
    def of(cls, module: ir.Module) -> "Ports":
        """Read them; other passes may then write the attributes anew."""
        op = entry(module)
        type_ = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        return cls(
            _read(op, "arg_attrs", len(type_.inputs)),
            _read(op, "res_attrs", len(type_.results)),
        )

    def put_back(self, module: ir.Module) -> None:
        """Write them beside what there is by now."""
        op = entry(module)
        with module.context:
            _write(op, "arg_attrs", self.arguments)
            _write(op, "res_attrs", self.results)


def _read(op: ir.Operation, which: str, count: int) -> tuple[ir.Attribute | None, ...]:
    if which not in op.attributes:
        return (None,) * count
    entries = map(ir.DictAttr, ir.ArrayAttr(op.attributes[which]))
    return tuple(e[SHARDING] if SHARDING in e else None for e in entries)


def _write(
    op: ir.Operation, which: str, shardings: tuple[ir.Attribute | None, ...]
) -> None:
    if not any(s is not None for s in shardings):
        return
    entries = (
        [
            {n.name: n.attr for n in ir.DictAttr(e)}
            for e in ir.ArrayAttr(op.attributes[which])
        ]
        if which in op.attributes
        else [{} for _ in shardings]
    )
    for entry_, sharding in zip(entries, shardings, strict=True):
        if sharding is not None:
            entry_[SHARDING] = sharding
    op.attributes[which] = ir.ArrayAttr.get([ir.DictAttr.get(e) for e in entries])
