"""Which values depend on what is differentiated, and what regions capture.

A value is *active* if it carries real numbers and depends on a source through ops
that pass derivatives on (`shifts` names one more that does not). What was received
from another program is a source too: its derivative would be owed there. The other
half of the usual analysis, whether a result depends on the value, needs no sets: the
reverse walk meets a cotangent exactly there. So the work done is the intersection of
both.

While a jvp rule is transposed, the active values are its tangents. A rule must hand
them on: a stop of one, in whatever loop or branch, has no transpose.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pcp.autodiff.core.registry import is_boundary, is_no_gradient
from pcp.autodiff.core.shifts import cancels
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import MissingRule
from pcp.passes.core.rewriting import STOP, captures

Value = ir.Value

#: Active values, each with the source it was first reached from, for messages.
Activity = dict[Value, str]


#: Types that hold tensors.
_HOLDERS = ("tuple<", "!pcp.future<", "!pcp.on<", "!stablehlo.future<")

_transposed: ContextVar[str | None] = ContextVar(
    "the jvp rule's function", default=None
)


@contextmanager
def transposing(function: str) -> Iterator[None]:
    """Inside, what is walked back is the jvp rule of `function` on its tangents."""
    token = _transposed.set(function)
    try:
        yield
    finally:
        _transposed.reset(token)


def is_transposing() -> bool:
    """Whether a jvp rule is walked back."""
    return _transposed.get() is not None


def inputs(op: ir.Operation) -> tuple[Value, ...]:
    """The operands, then what the regions capture."""
    operands = tuple(op.operands)
    return operands + tuple(captures(op)) if len(op.regions) else operands


def propagate(ops: Iterable[ir.Operation], active: Activity) -> Activity:
    """Extend `active` through `ops` in program order; returns it.

    Raises `MissingRule` at a stop of an active value while a jvp rule is transposed.
    """
    for op in ops:
        source = next((active[v] for v in inputs(op) if v in active), None)
        if source is None and is_boundary(op.name):
            source = f"what {op.name} receives"
        if source is None or is_no_gradient(op.name) or cancels(op):
            if source is not None and op.name == STOP:
                _require_no_transpose(op)
            continue
        for result in op.results:
            if carries(result.type):
                active[result] = source
    return active


def _require_no_transpose(stop: ir.Operation) -> None:
    """Raise `MissingRule` where the stop's operand is a tangent of a jvp rule."""
    if (function := _transposed.get()) is None:
        return
    raise MissingRule(
        f"{location_string(stop.location)}: {STOP}: the jvp rule of @{function} stops "
        "a tangent, so it has no transpose and serves forward mode only (as in JAX); "
        "stop what the tangent is multiplied by"
    )


def require_held(op: ir.Operation, values: Iterable[Value]) -> None:
    """Raise `MissingRule` if a derivative of one of `values` can live nowhere.

    Left out, it would be a silent zero (`hlo.NO_COTANGENT`).
    """
    for value in values:
        if (why := hlo.why_no_cotangent(value)) is not None:
            raise MissingRule(
                f"{location_string(op.location)}: {op.name}: a derivative flows "
                f"through {value.type}, but {why}: it can hold none; compute in a "
                "wider type, or declare the derivative zero with pcp.stop_gradient"
            )


def carries(type_: ir.Type) -> bool:
    """Whether real numbers can hide in a value of this type.

    Floats and complex numbers do, and so do what has no cotangent of its own but
    may be read back as numbers: quantized tensors, tuples, futures, what is placed on
    a device.
    """
    if hlo.is_differentiable(type_):
        return True
    if isinstance(type_, ir.RankedTensorType):
        return not isinstance(type_.element_type, ir.IntegerType | ir.IndexType)
    return str(type_).startswith(_HOLDERS)
