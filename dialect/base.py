"""The dialect itself, and what its ops share: checks, effects, reading attributes.

An op is a class whose annotated fields are operands, attributes, regions and
results, as `ext` reads them. Two more things stand in it:

* `optional`: attributes that may be there, with their kinds (`ext` knows no
  optional ones);
* `check(self)`: raises `Invalid` with what is wrong, in the user's words. It may
  rely on operands and attributes being there and of their kinds: that is checked
  before it runs. It sees one op; what spans ops is `pcp-verify-plan`'s.
"""

import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, get_args

from pcp.dialect.bindings import ext, ir

Values = Sequence[ext.Operand[Any]]
Results = Sequence[ext.Result[Any]]


class Pcp(ext.Dialect, name="pcp"):
    """A distributed heterogeneous program: devices, placement, communication."""

    _definitions: ClassVar[dict[int, bytes]] = {}

    @classmethod
    def _emit_module(cls) -> ir.Module:
        """The definitions of the ops, which `ext` builds op by op; once a process."""
        count = len(cls.operations)
        if (kept := cls._definitions.get(count)) is None:
            with io.BytesIO() as file:
                super()._emit_module().operation.write_bytecode(file)
                kept = cls._definitions[count] = file.getvalue()
        return ir.Module.parse(kept)


class Invalid(Exception):
    """What is wrong with an op; becomes the diagnostic at the op's location."""


def require(condition: object, message: str) -> None:
    """Raise `Invalid(message)` unless `condition` holds."""
    if not condition:
        raise Invalid(message)


def kinds(**attributes: Any) -> Mapping[str, Any]:
    """Optional attributes and their kinds, for `Op.optional`."""
    return MappingProxyType(attributes)


class Op(Pcp.Operation):
    """Base of all pcp ops: checks what the fields say, then `check()`."""

    optional = kinds()  # not annotated: `ext` would read it as a field

    def __init_subclass__(cls, **options: Any) -> None:
        """`ext` reads a variadic field by a segment attribute; ours need none."""
        super().__init_subclass__(**options)
        operands, _, results, _ = ext.partition_fields(cls._fields)
        if is_variadic(operands):
            setattr(cls, operands[0].name, property(lambda op: list(op.operands)))
        if is_variadic(results):
            setattr(cls, results[0].name, property(lambda op: list(op.results)))

    def check(self) -> None:
        """What an op can say about itself beyond its fields; nothing by default."""

    @staticmethod
    def verify_invariants(op: "Op") -> bool:
        """Run by MLIR's verifier, before its own check of the fields."""
        try:
            _check_fields(op)
            op.check()
        except Invalid as problem:
            op.location.emit_error(f"'{op.operation.name}' op {problem}")
            return False
        return True


# --- the fields ---


def is_variadic(fields: Sequence[ext.FieldDef]) -> bool:
    """Whether they are one group of any number, the only kind of group we have."""
    return len(fields) == 1 and fields[0].variadicity is ext.Variadicity.variadic


KINDS = {
    Any: "an attribute",
    ir.Attribute: "an attribute",
    ir.ArrayAttr: "an array",
    ir.BoolAttr: "true or false",
    ir.DictAttr: "a dictionary",
    ir.FlatSymbolRefAttr: "a symbol such as @name",
    ir.FloatAttr: "a number",
    ir.IntegerAttr: "an integer",
    ir.StringAttr: "a string",
    ir.TypeAttr: "a type",
    ir.UnitAttr: "a flag without a value",
}


def kind_words(kind: Any) -> str:
    """What an attribute's kind is called in messages and documents."""
    return " or ".join(
        KINDS.get(k, f"a {k.__name__}") for k in get_args(kind) or [kind]
    )


def _check_fields(op: Op) -> None:
    operands, attributes, results, regions = ext.partition_fields(op._fields)
    _check_count("operand", len(op.operands), operands)
    _check_count("result", len(op.results), results)
    _check_count("region", len(op.regions), regions)
    for field in attributes:
        kind = field.constraint
        if field.name not in op.attributes:
            raise Invalid(f"needs the attribute '{field.name}', {kind_words(kind)}")
        _check_kind(op, field.name, kind)
    for name, kind in op.optional.items():
        if name in op.attributes:
            _check_kind(op, name, kind)


def _check_count(what: str, count: int, fields: Sequence[ext.FieldDef]) -> None:
    if count == len(fields) or is_variadic(fields):
        return
    some = f"{len(fields)} {what}" + ("s" if len(fields) != 1 else "")
    raise Invalid(f"takes {some}, not {count}")


def _check_kind(op: Op, name: str, kind: Any) -> None:
    if kind is Any:
        return
    value = op.attributes[name]
    if not isinstance(value, get_args(kind) or kind):  # a message costs: none for good
        raise Invalid(f"attribute '{name}' must be {kind_words(kind)}, not {value}")


# --- reading attributes ---


def text(op: ir.OpView | ir.Operation, name: str) -> str:
    """A string attribute."""
    return ir.StringAttr(op.attributes[name]).value


def integer(op: ir.OpView | ir.Operation, name: str, default: int = 0) -> int:
    """An integer attribute, or `default` where it is not there."""
    if name not in op.attributes:
        return default
    return ir.IntegerAttr(op.attributes[name]).value


def number(op: ir.OpView | ir.Operation, name: str) -> float:
    """An integer or float attribute as a float."""
    return as_number(op.attributes[name], name)


def symbol(op: ir.OpView | ir.Operation, name: str) -> str:
    """The name a symbol attribute refers to, without the `@`."""
    return ir.FlatSymbolRefAttr(op.attributes[name]).value


def strings(op: ir.OpView | ir.Operation, name: str) -> list[str]:
    """An array of strings."""
    return as_strings(op.attributes[name], name)


def integers(op: ir.OpView | ir.Operation, name: str) -> list[int]:
    """An array of integers."""
    return as_integers(op.attributes[name], name)


def symbols(op: ir.OpView | ir.Operation, name: str) -> list[str]:
    """An array of symbols, as their names."""
    found = list(ir.ArrayAttr(op.attributes[name]))
    good = all(isinstance(a, ir.FlatSymbolRefAttr) for a in found)
    require(good, f"attribute '{name}' must hold symbols, as in [@a, @b]")
    return [ir.FlatSymbolRefAttr(a).value for a in found]


def as_strings(attribute: ir.Attribute, name: str) -> list[str]:
    """`attribute` as strings; `name` is what a message calls it."""
    attribute = attribute.maybe_downcast()  # a parameter comes as a plain one
    found = list(attribute) if isinstance(attribute, ir.ArrayAttr) else [None]
    strings = [a.value for a in found if isinstance(a, ir.StringAttr)]
    good = len(strings) == len(found)
    require(good, f"attribute '{name}' must hold strings, as in [\"dp\"]")
    return strings


def as_integers(attribute: ir.Attribute, name: str) -> list[int]:
    """`attribute` as integers; `name` is what a message calls it."""
    attribute = attribute.maybe_downcast()
    good = isinstance(attribute, ir.ArrayAttr) and all(
        isinstance(a, ir.IntegerAttr) for a in attribute
    )
    require(good, f"attribute '{name}' must hold integers, as in [0, 1]")
    return [ir.IntegerAttr(a).value for a in attribute]


def as_number(attribute: ir.Attribute, name: str) -> float:
    """`attribute` as a float; `name` is what a message calls it."""
    attribute = attribute.maybe_downcast()
    if isinstance(attribute, ir.FloatAttr):
        return ir.FloatAttr(attribute).value
    require(isinstance(attribute, ir.IntegerAttr), f"'{name}' must be a number")
    return float(ir.IntegerAttr(attribute).value)


def tensor(value: ir.Value, what: str = "the operand") -> ir.RankedTensorType:
    """The type of `value`, which must be a ranked tensor."""
    require(
        isinstance(value.type, ir.RankedTensorType),
        f"{what} must be a ranked tensor, not {value.type}",
    )
    return ir.RankedTensorType(value.type)


# --- effects ---


class Communicates:
    """Pure by default; a write effect where the op carries the flag `ordered`.

    While one program describes all devices, a collective can be merged, moved or
    dropped: all devices do the same. Once each device has a program of its own,
    dropping it on one is a deadlock, so the pass that makes those programs sets
    `ordered`.
    """

    class Effects(ir.MemoryEffectsOpInterface):
        """What CSE and dead-code elimination ask."""

        @staticmethod
        def get_effects(op: ir.OpView, effects: Any) -> None:
            """A write if ordered, nothing else."""
            if "ordered" in op.attributes:
                effects.append(ir.MemoryEffect.Write)

    class Speculatable(ir.ConditionallySpeculatable):
        """What hoisting asks."""

        @staticmethod
        def get_speculatability(op: ir.OpView) -> Any:
            """Only a pure collective may run where it was not asked to."""
            if "ordered" in op.attributes:
                return ir.Speculatability.NotSpeculatable
            return ir.Speculatability.Speculatable

    @staticmethod
    def attach(op_name: str) -> None:
        """Called by `ext` when the dialect is loaded."""
        Communicates.Effects.attach(op_name)
        Communicates.Speculatable.attach(op_name)


class Writes:
    """A write effect, always: never merged, moved or dropped."""

    class Effects(ir.MemoryEffectsOpInterface):
        """What CSE and dead-code elimination ask."""

        @staticmethod
        def get_effects(op: ir.OpView, effects: Any) -> None:
            """A write."""
            effects.append(ir.MemoryEffect.Write)

    @staticmethod
    def attach(op_name: str) -> None:
        """Called by `ext` when the dialect is loaded."""
        Writes.Effects.attach(op_name)
