"""The one reverse walk: ops in reverse program order, each to its rule.

The walk is linear in the number of ops: each is visited once, and only those
whose results have a cotangent and whose inputs are active do any work.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pcp.autodiff.core import registry
from pcp.autodiff.core.activity import Activity, inputs, require_held
from pcp.autodiff.core.cotangents import Cotangents
from pcp.autodiff.core.kinds import Site
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import IRError, MissingRule, PassError


def pull_back(
    ops: Sequence[ir.Operation], cotangents: Cotangents, active: Activity
) -> None:
    """Carry `cotangents` from results to inputs through `ops` (program order).

    Emits at the current insertion point, each op with its primal's location.
    Raises `MissingRule` at an op on the active path that has no rule.
    """
    for op in reversed(ops):
        if any(result in cotangents for result in op.results):
            with op.location:
                _visit(op, cotangents, active)
        elif registry.is_boundary(op.name) and any(v in active for v in op.operands):
            _refuse(op, active)


def _refuse(op: ir.Operation, active: Activity) -> None:
    """An active value leaves the program, or a cotangent reaches one that came in."""
    nothing = (None,) * len(op.results)
    wanted = tuple(v in active for v in op.operands)
    rule = registry.find(op.name)
    if rule is not None:
        rule.vjp(Site(op, tuple(op.operands), nothing, wanted, active))


def _visit(op: ir.Operation, cotangents: Cotangents, active: Activity) -> None:
    values = inputs(op)
    wanted = tuple(v in active for v in values)
    if not any(wanted):
        if registry.is_boundary(op.name):
            _refuse(op, active)
        return
    require_held(op, [v for v, want in zip(values, wanted, strict=True) if want])
    if len(op.regions):  # what its regions carry to and fro is among its results
        require_held(op, op.results)
    rule = registry.find(op.name)
    if rule is None:
        source = next(active[v] for v in values if v in active)
        raise registry.missing(op, source)
    gathered = tuple(cotangents.take(result) for result in op.results)
    with naming(op):
        answer = rule.vjp(Site(op, values, gathered, wanted, active))
        for value, want, cotangent in zip(values, wanted, answer, strict=True):
            cotangents.add(value, cotangent if want else None)


@contextmanager
def naming(op: ir.Operation) -> Iterator[None]:
    """Errors of a rule's builders say which op's rule it was, and where."""
    try:
        yield
    except (MissingRule, PassError):
        raise  # it names the op
    except (IRError, ValueError) as error:
        if "its derivative rule" in str(error):
            raise  # of an op inside this one
        where = location_string(op.location)
        raise IRError(f"{where}: {op.name}: its derivative rule: {error}") from error
