"""Sampling as StableHLO: what of `serving/sampling.py` needs no sorted numbers.

    largest_R(numbers[R, V]) -> drawn[R, M, 7]
    sample_R(numbers[R, V], adjusted[R, V], asked[R, 7]) -> drawn[R, M, 7]
    adjust_R(numbers[R, V], words[R, M, W], places[R, M, E], changes[R, M, E, 3])
        -> adjusted[R, V]

`numbers` are logits; `ASKED` and `FIELDS` of `decoder_phase` say what the seven are.
A row's token is the largest of adjusted / temperature + noise. Of all tokens: if it is
one that the cuts leave, it is the largest of those, too. If it is none, then nothing
less probable is left either, and the largest of the more probable ones is looked at.
After `TRIES` the row is not sure, and its logits are for numpy.

What is adjusted are the logits of few tokens, by `CHANGES` of each, and of all those
that a mask hides: bit v of a row's words is 0. Where nothing is, `numbers` are given
twice. More than E tokens are adjusted by several calls; a place may be there twice with
equal changes.

The vocabulary is in M equal parts, one for each member of a mesh that cuts it. Of a
part alone nobody knows which tokens the cuts leave: of several, all are looked at.
Words and places are of a part's own tokens.
"""

from collections.abc import Callable
from math import gcd

from pcp.decoder_phase import ADJUST, ASKED, CHANGED, CHANGES, FIELDS, sampler
from pcp.dialect import hlo, hlo_indexing
from pcp.dialect.bindings import ir
from pcp.dialect.threefry import threefry
from pcp.frontends.decoders import layers
from pcp.frontends.decoders.ports import Port
from pcp.frontends.decoders.ports import write as write_function

Value = ir.Value
Fold = Callable[[Value, Value], Value]

TRIES = 2
_LANES = 128
"""Numbers are folded so many at once, which vector units can; and then those."""
_INTEGERS = {"low", "high", "positions", "top_k"}
_LAST = (1 << 31) - 1
_MOST = (2 - 2**-23) * 2.0**127
_NEARLY = 1e-4
"""Sums of a cut may be wrong by that share, and then the row is not sure."""
IN_PARTS = ("numbers", "adjusted", "words", "places", "changes")
"""Arguments that a mesh cuts with the vocabulary, along their second dimension."""


def write(rows: int, vocabulary: int, parts: int) -> None:
    """The functions, for so many rows."""
    made = _Ports(rows, vocabulary, parts)
    shape = rows, parts, vocabulary // parts

    def drawn(given: list[Value]) -> list[Value]:
        xs = [hlo.reshape(x, shape) for x in given[:2]]
        found = (_Drawn(*xs, given[2]) if given[1:] else _Rows(*xs)).found()
        columns = [hlo.reshape(found[name], [rows, parts, 1]) for name in FIELDS]
        return [hlo.concatenate(columns, 2)]

    def adjusted(given: list[Value]) -> list[Value]:
        numbers, words, places, changes = given
        x = _changed(hlo.reshape(numbers, shape), places, changes)
        return [hlo.reshape(_masked(x, words), [rows, vocabulary])]

    made.write("largest", ["numbers"], "drawn", drawn)
    made.write("sample", ["numbers", "adjusted", "asked"], "drawn", drawn)
    made.write(ADJUST, ["numbers", "words", "places", "changes"], "adjusted", adjusted)


class _Ports:
    """What the functions take and give, by name."""

    def __init__(self, rows: int, vocabulary: int, parts: int) -> None:
        f32, i32, each = layers.f32(), _i32(), (rows, parts)
        words = -(-vocabulary // parts // 32)
        self.rows = rows
        self.types = {
            "numbers": hlo.tensor((rows, vocabulary), f32),
            "adjusted": hlo.tensor((rows, vocabulary), f32),
            "asked": hlo.tensor((rows, len(ASKED)), i32),
            "words": hlo.tensor((*each, words), i32),
            "places": hlo.tensor((*each, CHANGED), i32),
            "changes": hlo.tensor((*each, CHANGED, len(CHANGES)), f32),
            "drawn": hlo.tensor((*each, len(FIELDS)), f32),
        }

    def write(
        self,
        kind: str,
        inputs: list[str],
        result: str,
        body: Callable[[list[Value]], list[Value]],
    ) -> None:
        """One function."""
        taken = [Port(name, "data", self.types[name]) for name in inputs]
        given = Port(result, "result", self.types[result])
        write_function(sampler(kind, self.rows), taken, [given], body)


def _changed(x: Value, places: Value, changes: Value) -> Value:
    """With some logits as `CHANGES` say; x is [R, M, V / M]."""
    each = hlo.shape_of(places)
    bias, factor, less = (
        hlo.reshape(hlo.slice_(changes, [0, 0, 0, i], [*each, i + 1]), each)
        for i in range(len(CHANGES))
    )
    windows = hlo_indexing.Windows((), (2,), (0, 1), (0, 1), (2,), 3)
    indices = hlo.reshape(places, [*each, 1])
    old = hlo.add(hlo_indexing.gather(x, indices, windows, [1, 1, 1]), bias)
    more = hlo.compare("GT", old, hlo.zeros(old.type))
    new = hlo.select(more, hlo.divide(old, factor), hlo.multiply(old, factor))
    new = hlo.minimum(hlo.subtract(new, less), hlo.constant_like(new, _MOST))
    return hlo_indexing.scatter(x, indices, new, windows, lambda _, update: update)


def _masked(x: Value, words: Value) -> Value:
    """Without the tokens whose bit is 0."""
    rows, parts, count = hlo.shape_of(x)
    wide = (*hlo.shape_of(words), 32)
    each = layers.along(words, wide, 0, 1, 2)
    bits = hlo.shift_right_logical(each, hlo.iota(each.type, 3))
    bits = hlo.reshape(bits, [rows, parts, wide[2] * 32])
    bits = hlo.slice_(bits, [0, 0, 0], [rows, parts, count])
    allowed = hlo.and_(bits, hlo.constant_like(bits, 1))
    allowed = hlo.compare("NE", allowed, hlo.zeros(bits.type))
    return hlo.select(allowed, x, hlo.constant_like(x, float("-inf")))


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)


def _bit() -> ir.Type:
    return ir.IntegerType.get_signless(1)


class _Rows:
    """Logits of all tokens, [R, M, V / M], and what is found of them."""

    def __init__(self, logits: Value) -> None:
        self.logits, self.shape = logits, hlo.shape_of(logits)
        wide = hlo.tensor(self.shape, _i32())
        before = hlo.multiply(hlo.iota(wide, 1), hlo.constant(self.shape[2], wide))
        self.tokens = hlo.add(before, hlo.iota(wide, 2))

    def found(self) -> dict[str, Value]:
        """Each of `FIELDS`, [R, M]."""
        largest = self.largest(self.logits)
        less = hlo.subtract(self.logits, self.wide(largest))
        ends = hlo.op("is_finite", [self.logits], [hlo.tensor(self.shape, _bit())])
        finite = hlo.convert(ends.result, layers.f32())
        found = {
            "largest": largest,
            "total": self.sum(hlo.exponential(less)),
            "finite": hlo.negate(self.largest(hlo.negate(finite))),
            **self.taken(largest),
        }
        return {name: hlo.convert(x, layers.f32()) for name, x in found.items()}

    def taken(self, largest: Value) -> dict[str, Value]:
        """The most probable token."""
        token = self.first(self.logits, largest)
        sure = hlo.constant_like(largest, 1)
        return {"value": largest, "logit": largest, "token": token, "sure": sure}

    # --- shapes ---

    def rows(self, x: Value) -> Value:
        """[R] for each token."""
        return layers.along(x, self.shape, 0)

    def wide(self, x: Value) -> Value:
        """[R, M] for each token."""
        return layers.along(x, self.shape, 0, 1)

    # --- looks at all tokens, [R, M] ---

    def largest(self, x: Value) -> Value:
        """Of each part."""
        return self._folded(x, hlo.scalar(float("-inf"), layers.f32()), hlo.maximum)

    def sum(self, x: Value) -> Value:
        """Of each part."""
        return self._folded(x, hlo.scalar(0, hlo.element_type(x)), hlo.add)

    def first(self, x: Value, value: Value) -> Value:
        """The smallest token that has this number."""
        its = hlo.compare("EQ", x, self.wide(value))
        found = hlo.select(its, self.tokens, hlo.constant_like(self.tokens, _LAST))
        return self._folded(found, hlo.scalar(_LAST, _i32()), hlo.minimum)

    def of(self, token: Value, x: Value) -> Value:
        """The number of a token."""
        its = hlo.compare("EQ", self.tokens, self.wide(token))
        return self.largest(hlo.select(its, x, hlo.constant_like(x, float("-inf"))))

    def _folded(self, x: Value, init: Value, combine: Fold) -> Value:
        lanes = gcd(self.shape[2], _LANES)
        split = hlo.reshape(x, [*self.shape[:2], self.shape[2] // lanes, lanes])
        return hlo.reduce(hlo.reduce(split, init, [2], combine), init, [2], combine)


class _Drawn(_Rows):
    """With noise, and without what the cuts leave out."""

    def __init__(self, logits: Value, adjusted: Value, asked: Value) -> None:
        super().__init__(logits)
        self.asked = {name: self._column(asked, i) for i, name in enumerate(ASKED)}
        zero = hlo.zeros(self.asked["temperature"].type)
        self.greedy = hlo.compare("EQ", self.asked["temperature"], zero)
        by = hlo.select(
            self.greedy, hlo.constant_like(zero, 1), self.asked["temperature"]
        )
        x = hlo.divide(adjusted, self.rows(by))
        self.x = hlo.minimum(x, hlo.constant_like(x, _MOST))
        noise = self._noise()
        none = hlo.zeros(noise.type)
        noisy = hlo.add(self.x, hlo.select(self.rows(self.greedy), none, noise))
        self.noisy = hlo.optimization_barrier(noisy)  # it is looked at several times

    def _column(self, asked: Value, i: int) -> Value:
        rows = self.shape[0]
        found = hlo.reshape(hlo.slice_(asked, [0, i], [rows, i + 1]), [rows])
        if ASKED[i] in _INTEGERS:
            return found
        return hlo.bitcast_convert(found, hlo.tensor((rows,), layers.f32()))

    def _each(self, name: str) -> Value:
        """What is asked, for each part."""
        return layers.along(self.asked[name], self.shape[:2], 0)

    def _noise(self) -> Value:
        """Gumbel's, of each token: -log(-log u), by the seed and the position."""
        key = self.rows(self.asked["low"]), self.rows(self.asked["high"])
        places = self.rows(self.asked["positions"])
        bits, _ = threefry(key, (places, self.tokens))
        top = hlo.shift_right_logical(bits, hlo.constant_like(bits, 9))
        number = hlo.convert(top, layers.f32())
        number = hlo.add(number, hlo.constant_like(number, 0.5))
        uniform = hlo.multiply(number, hlo.constant_like(number, 2.0**-23))
        return hlo.negate(hlo.log(hlo.negate(hlo.log(uniform))))

    def taken(self, largest: Value) -> dict[str, Value]:
        """The token that is drawn, and whether the cuts are known to leave it."""
        value = self.largest(self.noisy)
        token = self.first(self.noisy, value)
        sure = hlo.constant_like(value, 1)
        if self.shape[1] == 1:
            token, sure = self._tried(token)
        logit = self.of(token, self.logits)
        return {"value": value, "token": token, "logit": logit, "sure": sure}

    def _tried(self, token: Value) -> tuple[Value, Value]:
        less = hlo.subtract(self.x, self.wide(self.largest(self.x)))
        share = hlo.optimization_barrier(hlo.exponential(less))
        enough = hlo.compare("GE", share, self.rows(self.asked["min_p"]))
        whole = self.sum(hlo.select(enough, share, hlo.zeros(share.type)))
        for last in range(TRIES - 1, -1, -1):
            left, out, above = self._cuts(token, share, whole)
            if last:
                hidden = hlo.constant_like(self.noisy, float("-inf"))
                noisy = hlo.select(above, self.noisy, hidden)
                other = self.first(noisy, self.largest(noisy))
                token = hlo.optimization_barrier(hlo.select(out, other, token))
        return token, left

    def _cuts(self, token: Value, share: Value, whole: Value) -> tuple[Value, ...]:
        """Whether a token is left, whether it is left out, and which come before it.

        Of what top-k leaves the sum is not known, but that it is at least of those
        down to this one. So with top-k and top-p it may be neither.
        """
        at, number = self.wide(self.of(token, self.x)), self.wide(token)
        larger, equal = (hlo.compare(how, self.x, at) for how in ("GT", "EQ"))
        earlier = hlo.and_(equal, hlo.compare("LT", self.tokens, number))
        above = hlo.or_(larger, earlier)
        count = self.sum(hlo.convert(larger, _i32()))
        before = self.sum(hlo.select(above, share, hlo.zeros(share.type)))
        own = self.of(token, share)
        k, p, least = (self._each(name) for name in ("top_k", "top_p", "min_p"))
        ranked = hlo.compare("GT", k, hlo.zeros(k.type))
        within = hlo.or_(hlo.compare("LT", count, k), hlo.not_(ranked))
        uncut = hlo.compare("GE", p, hlo.constant_like(p, 1))

        def inside(whole: Value, by: float) -> Value:
            """Of top-p and min-p, where the numbers are as wrong as `by` says."""
            nucleus = hlo.multiply(p, hlo.multiply(whole, hlo.constant_like(p, by)))
            enough = hlo.multiply(least, hlo.constant_like(p, 2 - by))
            few = hlo.or_(uncut, hlo.compare("LT", before, nucleus))
            return hlo.and_(within, hlo.and_(few, hlo.compare("GE", own, enough)))

        least_sum = hlo.select(ranked, hlo.add(before, own), whole)
        greedy = layers.along(self.greedy, self.shape[:2], 0)
        left = hlo.or_(greedy, inside(least_sum, 1 - _NEARLY))
        out = hlo.not_(hlo.or_(greedy, inside(whole, 1 + _NEARLY)))
        return left, out, above
