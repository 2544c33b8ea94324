"""The programs of a decoder: `@prefill_32_256`, `@decode_4_256`, in one module.

    prefill_NxC_S(parameters, the caches of N slots, tokens[N C], starts[N], counts[N])
        -> logits[N, V] behind token `count` - 1 of each slot, the slots' new caches
    decode_NxC_S(parameters, the caches of N slots, tokens[N C], starts[N])
        -> logits[N C, V] behind each token, the slots' new caches

Each slot has C tokens, at positions `start`, `start` + 1, ...; `prefill_32` is one of
1x32, `decode_4` one of 4x1. Decoding of several tokens is for those that were drafted:
the logits say how far they are right.

All functions take the same parameters, by the same names. A cache is state: per slot
and layer keys and values of all positions, [keys, positions, d], named
`cache.<slot of the call>.<layer>.k`. A call gives the caches back with the new rows
written into them, and consumes those that it was given. So which slots a call computes
is which caches it is called with. S is how many positions a call sees, at most those of
the cache.

A row sees the positions up to its own, so what lies behind them in a cache does not
matter: a chunk is filled up with any tokens, and a shorter prompt begins by writing
over a longer one.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pcp.decoder_phase import KINDS, Phase
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.dialect.roles import STAGE
from pcp.errors import UsageError
from pcp.frontends.decoders import experts, layers, ports, sampler, stored
from pcp.frontends.decoders.spec import Decoder, Piece
from pcp.frontends.decoders.stored import Quantized

Value = ir.Value


def phases(texts: Sequence[str], contexts: Sequence[int]) -> list[Phase]:
    """Every phase of `["prefill:32,4x32", "decode:1,4"]` at each context, once."""
    found = []
    for text in texts:
        kind, _, sizes = text.partition(":")
        if kind not in KINDS or not sizes:
            raise UsageError(
                f"phase {text!r}: write it as prefill:32,128 or decode:1,4"
            )
        for size in sizes.split(","):
            for context in contexts:
                if (phase := Phase.sized(kind, size, context)) is None:
                    raise UsageError(
                        f"phase {text!r}: {size!r} is no number of tokens, and no "
                        "SLOTSxTOKENS"
                    )
                found.append(phase)
    kinds = {phase.kind for phase in found}
    if kinds != set(KINDS) or not contexts or min(contexts) < 1:
        raise UsageError(
            "serving takes phases of both kinds and a context: "
            'phases=["prefill:32", "decode:1,4"], context=256'
        )
    for phase in found:
        if phase.rows > phase.context:
            raise UsageError(
                f"{phase.name}: a chunk of {phase.rows} tokens in a context of "
                f"{phase.context}"
            )
    return list(dict.fromkeys(found))


def build(
    spec: Decoder,
    wanted: Sequence[Phase],
    *,
    flat: bool = True,
    weights: str = "f32",
    stages: Sequence[int] = (),
    parts: int = 0,
) -> ir.Module:
    """A module with a function for each phase; caches have the largest context.

    `weights` is what the weights of products are (`stored`). With `flat` heads are one
    dimension in products. That is faster, and a mesh that cuts heads unequally, or
    inside a group, needs them apart. `stages` are the pipeline stages of the layers,
    of which the first one gets the logits; left out, there are none. With `parts` there
    are functions that sample (`sampler`), of a vocabulary in so many.
    """
    if weights not in stored.STORED:
        known = ", ".join(stored.STORED)
        raise UsageError(f"weights {weights!r} (known: {known})")
    if spec.experts is not None and weights in stored.INTEGERS:
        raise UsageError(
            f"weights {weights} of a mixture of experts: experts are kept as f32, bf16 "
            "or f16; take one of these"
        )
    context = max(phase.context for phase in wanted)
    if context > spec.positions:
        raise UsageError(
            f"a context of {context} positions, and the model has {spec.positions}"
        )
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for phase in wanted:
                with ir.Location.name(phase.name):
                    _Function(spec, phase, context, flat, weights, stages).write()
            rows = {phase.looked_at for phase in wanted} if parts else set()
            for count in sorted(rows):
                sampler.write(count, spec.vocabulary, parts)
        return module


class _Function:
    """One function while it is written."""

    def __init__(
        self,
        spec: Decoder,
        phase: Phase,
        context: int,
        flat: bool,
        kind: str,
        stages: Sequence[int],
    ) -> None:
        self.spec, self.phase, self.flat, self.stages = spec, phase, flat, stages
        self.marked = 0
        self.pieces = spec.pieces()
        self.i32 = ir.IntegerType.get_signless(32)
        f32, rows = layers.f32(), phase.slots * phase.rows
        self.held = {
            key: [
                ports.Port(f"{piece.name}{suffix}", "frozen", type_)
                for suffix, type_ in _types(kind, key, piece, spec).items()
            ]
            for key, piece in self.pieces.items()
        }
        self.parameters = [port for held in self.held.values() for port in held]
        kept = hlo.tensor((spec.kv_heads, context, spec.head_dim), f32)
        self.caches = [
            ports.Port(name, "state", kept) for name in phase.caches(len(spec.layers))
        ]
        each = hlo.tensor((phase.slots,), self.i32)
        given = {name: each for name in phase.data}
        given["tokens"] = hlo.tensor((rows,), self.i32)
        self.data = [ports.Port(name, "data", type_) for name, type_ in given.items()]
        shape = (phase.looked_at, spec.vocabulary)
        type_, to = hlo.tensor(shape, f32), 0 if stages else None
        self.logits = ports.Port("logits", "result", type_, to)

    def write(self) -> None:
        """The function with its body."""
        inputs = [*self.parameters, *self.caches, *self.data]
        results = [self.logits, *self.caches]
        ports.write(self.phase.name, inputs, results, self._body)

    def _body(self, arguments: list[Value]) -> list[Value]:
        first, last = len(self.parameters), len(self.parameters) + len(self.caches)
        held = self._held(arguments[:first])
        names = [p.name for p in self.caches]
        self.cache = dict(zip(names, arguments[first:last], strict=True))
        data = {p.name: v for p, v in zip(self.data, arguments[last:], strict=True)}
        positions = self._positions(data["starts"])
        self._prepare(data["starts"], positions)
        x = layers.embed(data["tokens"], held.__getitem__, self.spec)
        for i in range(len(self.spec.layers)):
            self._mark(i - 1)
            x = self._block(x, held.__getitem__, i)
        if self.phase.kind == "prefill":
            x = self._last(x, data["counts"])
        logits = self._head(x, held.__getitem__)
        self._mark(len(self.spec.layers) - 1)
        return [logits, *(self.cache[name] for name in names)]

    def _mark(self, layer: int) -> None:
        """What was written since the last call is on the stage of this layer."""
        if not self.stages:
            return
        ops = ir.InsertionPoint.current.block.operations
        for view in list(ops)[self.marked :]:
            view.operation.attributes[STAGE] = hlo.i64(self.stages[max(layer, 0)])
        self.marked = len(ops)

    def _held(self, arguments: Sequence[Value]) -> dict[str, Any]:
        """The weights by key, as `layers` takes them."""
        found, rest = dict[str, Any](), iter(arguments)
        for key, held in self.held.items():
            found[key] = next(rest)
            if len(held) == 2:
                shape = self.pieces[key].shape
                found[key] = Quantized(found[key], next(rest), shape)
        return found

    # --- positions ---

    def _positions(self, starts: Value) -> Value:
        """Of each row."""
        slots, rows = self.phase.slots, self.phase.rows
        if rows == 1:
            return starts
        counted = hlo.iota(hlo.tensor((slots, rows), self.i32), 1)
        found = hlo.add(counted, layers.along(starts, (slots, rows), 0))
        return hlo.reshape(found, [slots * rows])

    def _prepare(self, starts: Value, positions: Value) -> None:
        """What layers of one kind share: angles, and which positions are seen."""
        kinds = dict.fromkeys(self.spec.layers)
        self.turns = {kind: layers.turns(positions, kind.rope) for kind in kinds}
        self.seen = {
            kind: layers.visible(positions, self.phase.context, kind.window)
            for kind in kinds
        }
        self.places = [self._of_slot(starts, slot) for slot in range(self.phase.slots)]

    def _of_slot(self, numbers: Value, slot: int) -> Value:
        """One of [slots]."""
        return hlo.reshape(hlo.slice_(numbers, [slot], [slot + 1]), [])

    def _last(self, x: Value, counts: Value) -> Value:
        """The row of each slot's last token, [slots, width]."""
        zero = hlo.scalar(0, self.i32)

        def row(slot: int) -> Value:
            before = hlo.scalar(slot * self.phase.rows - 1, self.i32)
            place = hlo.add(self._of_slot(counts, slot), before)
            return hlo.dynamic_slice(x, [place, zero], [1, self.spec.width])

        return hlo.concatenate([row(slot) for slot in range(self.phase.slots)], 0)

    # --- a block ---

    def _block(self, x: Value, weights: layers.Weights, i: int) -> Value:
        spec = self.spec

        def norm(value: Value, what: str) -> Value:
            return layers.norm(value, weights, f"{i}.{what}", spec.norm)

        inside = norm(x, "attention_norm")
        attended = self._attention(inside, weights, i)
        mlp = experts.mixture if spec.layers[i].sparse else layers.mlp
        if spec.parallel:
            return hlo.add(x, hlo.add(attended, mlp(inside, weights, f"{i}", spec)))
        if spec.sandwich:
            attended = norm(attended, "attention_out_norm")
        x = hlo.add(x, attended)
        added = mlp(norm(x, "mlp_norm"), weights, f"{i}", spec)
        if spec.sandwich:
            added = norm(added, "mlp_out_norm")
        return hlo.add(x, added)

    def _attention(self, x: Value, weights: layers.Weights, i: int) -> Value:
        spec, kind = self.spec, self.spec.layers[i]
        q, k, v = (
            layers.product(x, weights, f"{i}.{what}", flat=self.flat) for what in "qkv"
        )
        if spec.head_norms:
            q = layers.norm(q, weights, f"{i}.q_norm", spec.norm)
            k = layers.norm(k, weights, f"{i}.k_norm", spec.norm)
        q, k = (layers.rotated(each, self.turns[kind]) for each in (q, k))
        q = hlo.multiply(q, hlo.constant_like(q, spec.attention_scale))
        attend = self._attend_rows if self.phase.rows == 1 else self._attend
        mixed = attend(q, k, v, i)
        return layers.product(mixed, weights, f"{i}.o", summed=3, flat=self.flat)

    def _attend(self, q: Value, k: Value, v: Value, i: int) -> Value:
        """Each slot has several rows: [slots * rows, keys, group, d]."""
        cap, seen = self.spec.attention_cap, self.seen[self.spec.layers[i]]

        def mixed(slot: int) -> Value:
            rows = slot * self.phase.rows, (slot + 1) * self.phase.rows
            keys, values = (
                self._kept(slot, i, part, _rows(each, *rows))
                for part, each in zip("kv", (k, v), strict=True)
            )
            own = _rows(q, *rows)
            scores = hlo.dot_general(own, keys, batch=([1], [0]), contract=([3], [2]))
            share = layers.softmax(layers.capped(scores, cap), _rows(seen, *rows), 1)
            return hlo.dot_general(share, values, batch=([0], [0]), contract=([3], [1]))

        found = [hlo.transpose(mixed(n), [1, 0, 2, 3]) for n in range(self.phase.slots)]
        return hlo.concatenate(found, 0)

    def _attend_rows(self, q: Value, k: Value, v: Value, i: int) -> Value:
        """Each slot has one row."""
        seen = self.seen[self.spec.layers[i]]

        def scores(row: int) -> Value:
            keys = self._kept(row, i, "k", _rows(k, row, row + 1))
            return hlo.dot_general(
                hlo.reshape(_rows(q, row, row + 1), hlo.shape_of(q)[1:]),
                keys,
                batch=([0], [0]),
                contract=([2], [2]),
            )

        found = _stacked(scores, self.phase.slots)
        share = layers.softmax(layers.capped(found, self.spec.attention_cap), seen, 0)

        def mixed(row: int) -> Value:
            values = self._kept(row, i, "v", _rows(v, row, row + 1))
            own = hlo.reshape(_rows(share, row, row + 1), hlo.shape_of(share)[1:])
            return hlo.dot_general(own, values, batch=([0], [0]), contract=([2], [1]))

        return _stacked(mixed, self.phase.slots)

    def _kept(self, slot: int, i: int, part: str, new: Value) -> Value:
        """A slot's keys or values, seen with their new rows [rows, keys, d]."""
        name = f"cache.{slot}.{i}.{part}"
        zero = hlo.scalar(0, self.i32)
        rows = hlo.transpose(new, [1, 0, 2])
        self.cache[name] = hlo.dynamic_update_slice(
            self.cache[name], rows, [zero, self.places[slot], zero]
        )
        keys, _, d = hlo.shape_of(self.cache[name])
        return hlo.slice_(self.cache[name], [0, 0, 0], [keys, self.phase.context, d])

    def _head(self, x: Value, weights: layers.Weights) -> Value:
        x = layers.norm(x, weights, "norm", self.spec.norm)
        name = "embed" if self.spec.tied else "head"
        return layers.capped(layers.product(x, weights, name), self.spec.logit_cap)


def _types(kind: str, key: str, piece: Piece, spec: Decoder) -> dict[str, ir.Type]:
    """What holds a tensor; all but the weights of products are f32."""
    what, part = key.split(".")[-2:]
    summed = 1 if what in ("embed", "head") else 0
    if what in spec.products():
        summed = len(spec.products()[what][1])
    if part != "weight" or not summed:
        kind = "f32"
    return stored.types(kind, piece.shape, summed or 1)


def _rows(x: Value, start: int, end: int) -> Value:
    """Some rows of x, [end - start, ...]; x itself if they are all."""
    rows, *rest = hlo.shape_of(x)
    if (start, end) == (0, rows):
        return x
    return hlo.slice_(x, [start, *[0] * len(rest)], [end, *rest])


def _stacked(build: Callable[[int], Value], count: int) -> Value:
    """`build(0)`, `build(1)`, ... along a new first dimension."""
    made = [build(row) for row in range(count)]
    shape = [1, *hlo.shape_of(made[0])]
    return hlo.concatenate([hlo.reshape(x, shape) for x in made], 0)
