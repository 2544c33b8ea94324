"""Tensors with the operators of machine words and of floats: formulas as they read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value


@dataclass(frozen=True)
class _Operand:
    value: Value

    def like(self, number: float) -> Self:
        """A constant of its type."""
        return type(self)(hlo.constant_like(self.value, number))

    def _with(
        self, build: Callable[[Value, Value], Value], other: "Self | float"
    ) -> Self:
        right = self.like(other) if isinstance(other, int | float) else other
        return type(self)(build(self.value, right.value))

    def __add__(self, other: "Self | float") -> Self:
        return self._with(hlo.add, other)

    def __sub__(self, other: "Self | float") -> Self:
        return self._with(hlo.subtract, other)

    def __mul__(self, other: "Self | float") -> Self:
        return self._with(hlo.multiply, other)

    def is_(self, direction: str, other: "Self | float") -> Value:
        """Compared: EQ NE GE GT LE LT; words as unsigned numbers."""
        right = self.like(other) if isinstance(other, int | float) else other
        return hlo.compare(direction, self.value, right.value)


class Word(_Operand):
    """A tensor of unsigned integers."""

    def __mod__(self, other: "Self | int") -> Self:
        return self._with(hlo.remainder, other)

    def __and__(self, other: "Self | int") -> Self:
        return self._with(hlo.and_, other)

    def __or__(self, other: "Self | int") -> Self:
        return self._with(hlo.or_, other)

    def __xor__(self, other: "Self | int") -> Self:
        return self._with(hlo.xor, other)

    def __lshift__(self, other: "Self | int") -> Self:
        return self._with(hlo.shift_left, other)

    def __rshift__(self, other: "Self | int") -> Self:
        return self._with(hlo.shift_right_logical, other)

    @property
    def width(self) -> int:
        """Bits of an element."""
        return ir.IntegerType(hlo.element_type(self.value)).width

    def float_bits(self) -> "Number":
        """The float of these bits."""
        element = ir.F64Type.get() if self.width == 64 else ir.F32Type.get()
        return Number(
            hlo.bitcast_convert(self.value, hlo.like(self.value, element=element))
        )

    def as_number(self) -> "Number":
        """As a float of its width, by way of signed integers, which targets prefer."""
        signed = ir.IntegerType.get_signless(self.width)
        number = hlo.bitcast_convert(self.value, hlo.like(self.value, element=signed))
        element = ir.F64Type.get() if self.width == 64 else ir.F32Type.get()
        return Number(hlo.convert(number, element))


class Number(_Operand):
    """A tensor of floats. What a fused multiply-add would change is never relied on."""

    def __radd__(self, other: float) -> "Number":
        return self.like(other) + self

    def __rsub__(self, other: float) -> "Number":
        return self.like(other) - self

    def __rmul__(self, other: float) -> "Number":
        return self.like(other) * self

    def __truediv__(self, other: "Self | float") -> Self:
        return self._with(hlo.divide, other)

    def __rtruediv__(self, other: float) -> "Number":
        return self.like(other) / self

    def __neg__(self) -> "Number":
        return Number(hlo.negate(self.value))

    def __abs__(self) -> "Number":
        return Number(hlo.abs(self.value))

    @property
    def width(self) -> int:
        """Bits of an element."""
        return ir.FloatType(hlo.element_type(self.value)).width

    def bits(self) -> Word:
        """As an unsigned integer of its width."""
        word = ir.IntegerType.get_unsigned(self.width)
        return Word(hlo.bitcast_convert(self.value, hlo.like(self.value, element=word)))

    def rounded(self) -> "Number":
        """The nearest whole number."""
        return Number(hlo.round_nearest_even(self.value))

    def known(self, value: "Number") -> "Number":
        """`value`, and NaN where this is NaN."""
        return choose(self.is_("EQ", self), value, self)

    def signed_like(self, other: "Number") -> "Number":
        """With the sign bit of `other`; of a number that has none."""
        top = 1 << (self.width - 1)
        return (self.bits() | (other.bits() & top)).float_bits()


def in_f32(function: Callable[..., Number], *operands: Value) -> Value:
    """Of tensors of up to 32 bits, computed in f32 and rounded once."""
    element = hlo.element_type(operands[0])
    wide = (Number(hlo.convert(x, ir.F32Type.get())) for x in operands)
    return hlo.convert(function(*wide).value, element)


def is_double(x: Value) -> bool:
    """Whether its elements are f64."""
    return isinstance(hlo.element_type(x), ir.F64Type)


T = TypeVar("T", Word, Number)


def choose(pred: Value, yes: T | float, no: T | float) -> T:
    """Elementwise; one of the two may be a constant."""
    if isinstance(yes, int | float):
        assert not isinstance(no, int | float)
        return type(no)(hlo.select(pred, no.like(yes).value, no.value))
    other = yes.like(no) if isinstance(no, int | float) else no
    return type(yes)(hlo.select(pred, yes.value, other.value))


def horner(x: Number, coefficients: Sequence[float]) -> Number:
    """A polynomial, its highest coefficient first."""
    value = x.like(coefficients[0])
    for c in coefficients[1:]:
        value = value * x + c
    return value


def is_negative(x: Value) -> Value:
    """By the sign: −0 is negative. Of f64 without its bits, which not all targets have.

    1/x has the sign of x, but is −0 for −∞.
    """
    if not is_double(x):
        number = Number(x)
        return number.bits().is_("GE", 1 << (number.width - 1))
    zero = hlo.zeros(x.type)
    inverse = hlo.divide(hlo.constant_like(x, 1), x)
    return hlo.or_(hlo.compare("LT", x, zero), hlo.compare("LT", inverse, zero))
