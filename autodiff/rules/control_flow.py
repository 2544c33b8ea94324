"""Control flow: case, if, while with a known number of iterations.

A branch is walked back inside the same branch of the reverse op. A loop becomes
a loop that runs backwards; `residuals` says what it needs of the forward one.
"""

from collections.abc import Sequence

from pcp.autodiff import functions, loops, registry, residuals
from pcp.autodiff.activity import Activity, propagate
from pcp.autodiff.cotangents import Cotangents, materialize
from pcp.autodiff.forward import Tangents, push_forward, tangent_or_zeros
from pcp.autodiff.kinds import NoGradient, Site, Vjp
from pcp.autodiff.reverse import pull_back
from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value

# --- case and if ---


def _branches(at: Site) -> list[Value | None]:
    """The same op on the same predicate; each branch computes its own VJP.

    A branch is run again for the values it needs. All branches return a cotangent
    of everything that any of them captures: zeros where one does not use it.
    """
    wanted = [v for v, want in zip(at.inputs, at.wanted, strict=True) if want]
    name = at.op.name.removeprefix("stablehlo.")
    husk = at.op.clone()
    reverse = hlo.op(
        name, [at[0]], [v.type for v in wanted], regions=len(at.op.regions)
    )
    for index in range(len(at.op.regions)):
        block = reverse.regions[index].blocks.append()
        with ir.InsertionPoint(block):
            end = hlo.op("return", [], [])
        results, ops = functions.splice(husk.regions[index].blocks[0], [], before=end)
        with ir.InsertionPoint(end):
            _return_cotangents(ops, results, at.cotangents, wanted, at.active)
        end.erase()
    husk.erase()
    answers = dict(zip(wanted, reverse.results, strict=True))
    return [answers.pop(v, None) for v in at.inputs]


def _return_cotangents(
    ops: Sequence[ir.Operation],
    results: Sequence[Value],
    seeds: Sequence[Value | None],
    wanted: Sequence[Value],
    active: Activity,
) -> None:
    """Walk a branch back and end it with the cotangents of `wanted`."""
    inner = propagate(ops, {v: active[v] for v in wanted})
    cotangents = Cotangents()
    for result, seed in zip(results, seeds, strict=True):
        cotangents.add(result, seed)
    pull_back(ops, cotangents, inner)
    hlo.op("return", [materialize(cotangents.take(v), v) for v in wanted], [])


# --- while ---


class _Loop:
    """A loop's activity: which carries and captures the derivative runs through."""

    def __init__(self, at: Site) -> None:
        self.at = at
        self.count = len(at.op.operands)
        self.body = loops.block_of(at.op, 1)
        self.ops = [op.operation for op in self.body.operations][:-1]
        self.arguments = list(self.body.arguments)
        self.returned = loops.returned(self.body)
        self.captures = list(at.inputs[self.count :])
        self.inner = self._forward()
        live, needed = self._backward()
        self.carries = [j for j in range(self.count) if j in live]
        self.used = [c for c in self.captures if c in needed and c in at.active]

    def _forward(self) -> Activity:
        """The least set of active carries that the body maps into itself."""
        active = {j for j in range(self.count) if self.at.wanted[j]}
        while True:
            inner: Activity = {
                v: self.at.active[v] for v in self.captures if v in self.at.active
            }
            inner.update((self.arguments[j], "the loop's carry") for j in active)
            propagate(self.ops, inner)
            more = {j for j, r in enumerate(self.returned) if r in inner}
            if more <= active:
                return inner
            active |= more

    def _backward(self) -> tuple[set[int], set[Value]]:
        """Carries and values that a live cotangent reaches, over all iterations."""
        live = {j for j, g in enumerate(self.at.cotangents) if g is not None}
        while True:
            needed = {self.returned[j] for j in live}
            for op in reversed(self.ops):
                if any(r in needed and r in self.inner for r in op.results):
                    needed.update(op.operands)
                    if len(op.regions):
                        needed.update(loops.captured(op))
            more = {j for j, a in enumerate(self.arguments) if a in needed}
            if more <= live:
                break
            live |= more
        return {j for j in live if self.arguments[j] in self.inner}, needed


def _while(at: Site) -> list[Value | None]:
    """A loop from the last iteration to the first over cotangents of the carries.

    Captured values gather their cotangent in further carries.
    """
    counter = loops.counter(at.op)
    if counter is None:
        raise at.refuse(
            "a derivative flows through a loop whose number of iterations is not "
            "static; give it a counter with constant start, step and bound (as "
            "fori_loop and scan do)"
        )
    if counter.trips == 0:
        return [*at.cotangents, *[None] * (len(at.inputs) - len(at.cotangents))]
    loop = _Loop(at)
    seeds = [materialize(at.cotangents[j], at.op.results[j]) for j in loop.carries]
    zeros = [hlo.zeros(c.type) for c in loop.used]
    reverse = _reverse_loop(loop, counter, [*seeds, *zeros])
    answers: list[Value | None] = [None] * len(at.inputs)
    results = list(reverse.results)[1:]
    for j, result in zip(loop.carries, results, strict=False):
        answers[j] = result
    of_capture = dict(zip(loop.used, results[len(loop.carries) :], strict=True))
    for i, value in enumerate(at.inputs[loop.count :], start=loop.count):
        answers[i] = of_capture.get(value)
    return answers


def _reverse_loop(
    loop: _Loop, counter: loops.Counter, starts: list[Value]
) -> ir.Operation:
    """`for k = trips-1 ... 0`: one VJP of the body each."""
    i32 = hlo.tensor((), ir.IntegerType.get_signless(32))
    last = hlo.constant(counter.trips - 1, i32)
    operands = [last, *starts]
    types = [v.type for v in operands]
    reverse = hlo.op("while", operands, types, regions=2)
    hlo.body(reverse, types, lambda k, *_: hlo.compare("GE", k, hlo.zeros(i32)))
    location = reverse.location
    block = reverse.regions[1].blocks.append(*types, arg_locs=[location] * len(types))
    k, *carried = block.arguments
    with ir.InsertionPoint(block):
        step = _counter_value(loop, counter, k)
        less = hlo.subtract(k, hlo.constant(1, i32))
        anchor = less.owner
        hlo.op("return", [less, *_body_cotangents(loop, carried)], [])
    kept = residuals.Residuals(loop.at.op, counter, step, k)
    kept.resolve(reverse, anchor.operation)
    _attach_tapes(loop.at.op, counter, kept, reverse)
    return reverse


def _counter_value(loop: _Loop, counter: loops.Counter, k: Value) -> Value:
    """start + k·step in the counter's own type."""
    element = hlo.element_type(loop.arguments[counter.index])
    value = hlo.convert(k, element)
    if counter.step != 1:
        value = hlo.multiply(value, hlo.constant(counter.step, value.type))
    if counter.start != 0:
        value = hlo.add(value, hlo.constant(counter.start, value.type))
    return value


def _body_cotangents(loop: _Loop, carried: list[Value]) -> list[Value]:
    """Emit one iteration backwards; uses the forward body's values as they are."""
    cotangents = Cotangents()
    for j, g in zip(loop.carries, carried, strict=False):
        cotangents.add(loop.returned[j], g)
    for capture, total in zip(loop.used, carried[len(loop.carries) :], strict=True):
        cotangents.add(capture, total)
    pull_back(loop.ops, cotangents, loop.inner)
    targets = [loop.arguments[j] for j in loop.carries] + loop.used
    return [materialize(cotangents.take(v), v) for v in targets]


def _attach_tapes(
    op: ir.Operation,
    counter: loops.Counter,
    kept: residuals.Residuals,
    reverse: ir.Operation,
) -> None:
    """Make the forward loop write what the placeholders stand for."""
    if not kept.taped:
        return
    k = reverse.regions[1].blocks[0].arguments[0]

    def count(body: ir.Block) -> Value:
        value = body.arguments[counter.index]
        if counter.start != 0:
            value = hlo.subtract(value, hlo.constant(counter.start, value.type))
        if counter.step != 1:
            value = hlo.divide(value, hlo.constant(counter.step, value.type))
        return hlo.convert(value, ir.IntegerType.get_signless(32))

    _, tapes = residuals.record(op, list(kept.taped), counter.trips, count)
    for placeholder, tape in zip(kept.taped.values(), tapes, strict=True):
        with ir.InsertionPoint(placeholder), placeholder.location:
            placeholder.results[0].replace_all_uses_with(residuals.read(tape, k))
        placeholder.erase()


# --- forward mode ---


def _while_forward(op: ir.Operation, tangents: Tangents) -> None:
    """The loop carries the tangents of its active carries along."""
    captured = {v: "" for v in loops.captured(op) if v in tangents}
    start = {j for j, v in enumerate(op.operands) if v in tangents}
    moving = sorted(_active_carries(op, start, captured))
    with ir.InsertionPoint(op):
        starts = [tangent_or_zeros(op.operands[j], tangents) for j in moving]
    ops = [inner.operation for inner in loops.block_of(op, 1).operations][:-1]

    def update(body: ir.Block, carried: list[Value]) -> list[Value]:
        inner: Tangents = {v: tangents[v] for v in captured}
        inner.update(zip((body.arguments[j] for j in moving), carried, strict=True))
        push_forward(ops, inner)
        after = loops.returned(body)
        return [tangent_or_zeros(after[j], inner) for j in moving]

    wider = residuals.widened(op, starts, update)
    for j, tangent in zip(moving, list(wider.results)[len(op.results) :], strict=True):
        tangents[wider.results[j]] = tangent


def _active_carries(op: ir.Operation, active: set[int], captured: Activity) -> set[int]:
    """The least set of carries, from `active`, that the body maps into itself."""
    body = loops.block_of(op, 1)
    ops = [inner.operation for inner in body.operations][:-1]
    while True:
        inner = {**captured, **{body.arguments[j]: "" for j in active}}
        propagate(ops, inner)
        more = {j for j, r in enumerate(loops.returned(body)) if r in inner}
        if more <= active:
            return active
        active = active | more


def _branches_forward(op: ir.Operation, tangents: Tangents) -> None:
    """Each branch returns the tangents of its floating-point results too."""
    moving = [j for j, r in enumerate(op.results) if hlo.is_differentiable(r)]
    types = [r.type for r in op.results]
    with ir.InsertionPoint(op):
        wider = hlo.op(
            op.name,
            list(op.operands),
            [*types, *(types[j] for j in moving)],
            regions=len(op.regions),
        )
    for index in range(len(op.regions)):
        op.regions[index].blocks[0].append_to(wider.regions[index])
        *ops, end = [o.operation for o in wider.regions[index].blocks[0].operations]
        inner = dict(tangents)
        with ir.InsertionPoint(end):
            push_forward(ops, inner)
            more = [tangent_or_zeros(end.operands[j], inner) for j in moving]
            hlo.op("return", [*end.operands, *more], [])
        end.erase()
    for old, new in zip(op.results, wider.results, strict=False):
        old.replace_all_uses_with(new)
    for j, tangent in zip(moving, list(wider.results)[len(types) :], strict=True):
        tangents[wider.results[j]] = tangent


# --- calls out of the program ---

#: Targets that only annotate their operand.
_ANNOTATIONS = frozenset({"Sharding", "annotate_device_placement"})


def _custom_call(at: Site) -> Sequence[Value | None]:
    """By target: a rule registered for it, an annotation, or an error."""
    target = ir.StringAttr(at.attribute("call_target_name")).value
    if (rule := registry.find(f"custom_call:{target}")) is not None:
        return rule.vjp(at)
    if target in _ANNOTATIONS and len(at.inputs) == 1:
        return [at.g]
    raise at.refuse(
        f'no derivative rule for the custom call "{target}"; register one as '
        f'"custom_call:{target}" with pcp.autodiff.registry.register, or write the '
        "computation in StableHLO"
    )


_no_input = NoGradient("it has no differentiable input")

RULES = {
    "case": Vjp(_branches, _branches_forward),
    "if": Vjp(_branches, _branches_forward),
    "while": Vjp(_while, _while_forward),
    "custom_call": Vjp(_custom_call),
    "after_all": NoGradient("tokens order effects and carry no value"),
    "create_token": _no_input,
    "infeed": _no_input,
    "outfeed": NoGradient("the host reads it; no result depends on it"),
    "partition_id": _no_input,
    "replica_id": _no_input,
    "rng_bit_generator": NoGradient("random bits do not depend on real inputs"),
    "rng": NoGradient("a sample's bounds are taken as constants, as jax does"),
}
