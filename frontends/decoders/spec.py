"""What a decoder computes, as values: the families differ in these and nothing else.

A block with two norms (Llama) is `x + attention(norm(x))`, then `x + mlp(norm(x))`.
With `sandwich` (Gemma 2) what is added is normed too; with `parallel` (Phi) both are
added to the same x and share a norm.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod

#: Where the tensors of a layer lie in the files, as Llama has it, without `.weight`.
LAYER_NAMES: Mapping[str, str] = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "router": "mlp.gate",
    "experts_gate": "mlp.experts.*.gate_proj",
    "experts_up": "mlp.experts.*.up_proj",
    "experts_down": "mlp.experts.*.down_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}
MODEL_NAMES: Mapping[str, str] = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
}


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: pair i of a head turns by position * frequencies[i].

    Dimensions beyond the pairs stay as they are. Cosines and sines are multiplied by
    `scale` (YaRN's attention factor).
    """

    frequencies: tuple[float, ...]
    scale: float = 1.0


#: The products of a layer's MLP, and of one that is a mixture of experts.
DENSE = ("gate", "up", "down")
SPARSE = ("router", "experts_gate", "experts_up", "experts_down")


@dataclass(frozen=True)
class Layer:
    """What differs between the layers of a model; `window` 0 sees all positions.

    The MLP of a `sparse` one is a mixture of experts.
    """

    rope: Rope
    window: int = 0
    sparse: bool = False


@dataclass(frozen=True)
class Experts:
    """`count` MLPs of width `ffn` inside, of which a token has the `taken` likeliest.

    Their probabilities are weights of a sum, which `normed` makes add up to one.
    """

    count: int
    taken: int
    ffn: int
    normed: bool


@dataclass(frozen=True)
class Norm:
    """`rms`: x / sqrt(mean x² + eps) · (offset + w); `layer`: with mean and bias."""

    kind: str
    eps: float
    offset: float = 0.0


@dataclass(frozen=True)
class Piece:
    """A tensor of a program: rows of a tensor of the files, as its shape has them.

    `rows` is which of them (None: all). With `stacked` it is so many tensors, one
    behind the other, whose numbers stand where `tensor` has a star. A product's
    weight has the dimensions of its result in front, those that it sums over behind.
    """

    tensor: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None
    stacked: int = 0

    @property
    def name(self) -> str:
        """As the program has it: `qkv_proj.weight[0:64]` are rows 0 to 63.

        `experts.[0:8].up_proj.weight` are `experts.0.up_proj.weight` and 7 more.
        """
        rows = "" if self.rows is None else f"[{self.rows[0]}:{self.rows[1]}]"
        if self.stacked:
            return self.tensor.replace("*", f"[0:{self.stacked}]")
        return self.tensor + rows


@dataclass(frozen=True)
class Decoder:
    """A decoder-only transformer. Sizes are numbers of elements.

    `heads` is of queries, `kv_heads` of keys and values; a group of heads / kv_heads
    queries shares a key. `ffn` is the width inside the MLP. `biased` are the products
    that have a bias, `fused` the products that stand in one tensor of the files.
    `attention_cap` and `logit_cap` are the c of c·tanh(x / c); 0 is none.
    """

    family: str
    vocabulary: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    layers: tuple[Layer, ...]
    norm: Norm
    activation: str
    attention_scale: float
    positions: int
    gated: bool = True
    biased: frozenset[str] = frozenset()
    head_norms: bool = False
    sandwich: bool = False
    parallel: bool = False
    tied: bool = False
    embed_scale: float = 1.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    experts: Experts | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def group(self) -> int:
        """Queries that share a key."""
        return self.heads // self.kv_heads

    def layer_tensor(self, layer: int, what: str, part: str = "weight") -> str:
        """The name in the files of a layer's tensor."""
        named = {**LAYER_NAMES, **self.names}[what]
        return f"model.layers.{layer}.{named}.{part}"

    def model_tensor(self, what: str, part: str = "weight") -> str:
        """The name in the files of a tensor outside the layers."""
        return f"{ {**MODEL_NAMES, **self.names}[what] }.{part}"

    # --- its tensors ---

    def pieces(self) -> dict[str, Piece]:
        """Every tensor of a program by `embed.weight`, `3.q.weight`, ..., in order."""
        found = {
            "embed.weight": Piece(
                self.model_tensor("embed"), (self.vocabulary, self.width)
            )
        }
        for i in range(len(self.layers)):
            found |= {f"{i}.{key}": piece for key, piece in self._layer(i)}
        found |= dict(self._norm_pieces("norm", self.model_tensor))
        if not self.tied:
            name, shape = self.model_tensor("head"), (self.vocabulary, self.width)
            found["head.weight"] = Piece(name, shape)
            if "head" in self.biased:
                name = self.model_tensor("head", "bias")
                found["head.bias"] = Piece(name, shape[:1])
        return found

    def products(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Of each product of a layer: dimensions of its result, and summed over."""
        queries = (self.kv_heads, self.group, self.head_dim)
        keys, x, inner = (self.kv_heads, self.head_dim), (self.width,), (self.ffn,)
        found = {
            "q": (queries, x),
            "k": (keys, x),
            "v": (keys, x),
            "o": (x, queries),
            "up": (inner, x),
            "down": (x, inner),
        }
        found |= {"gate": (inner, x)} if self.gated else {}
        if self.experts is not None:
            count, each = self.experts.count, (self.experts.ffn,)
            found |= {
                "router": ((count,), x),
                "experts_gate": ((count, *each), x),
                "experts_up": ((count, *each), x),
                "experts_down": ((count, *x), each),
            }
        return found

    def norms(self) -> tuple[str, ...]:
        """The norms of a layer over its width."""
        if self.parallel:
            return ("attention_norm",)
        if self.sandwich:
            return (
                "attention_norm",
                "attention_out_norm",
                "mlp_norm",
                "mlp_out_norm",
            )
        return ("attention_norm", "mlp_norm")

    def _layer(self, i: int) -> Iterator[tuple[str, Piece]]:
        absent = DENSE if self.layers[i].sparse else SPARSE
        for what, (result, summed) in self.products().items():
            if what in absent:
                continue
            whole, rows = self._rows(what)
            tensor = self.layer_tensor(i, whole or what)
            stacked = result[0] if "*" in tensor else 0
            yield f"{what}.weight", Piece(tensor, (*result, *summed), rows, stacked)
            if what in self.biased:
                bias = self.layer_tensor(i, whole or what, "bias")
                yield f"{what}.bias", Piece(bias, result, rows)
        for what in self.norms():
            yield from self._norm_pieces(what, partial(self.layer_tensor, i))
        if self.head_norms:
            for what in ("q_norm", "k_norm"):
                tensor = self.layer_tensor(i, what)
                yield f"{what}.weight", Piece(tensor, (self.head_dim,))

    def _rows(self, what: str) -> tuple[str | None, tuple[int, int] | None]:
        """The fused tensor in which a product's weight stands, and its rows there."""
        for whole, parts in self.fused.items():
            if what in parts:
                sizes = {part: prod(self.products()[part][0]) for part in parts}
                begin = sum(sizes[part] for part in parts[: parts.index(what)])
                return whole, (begin, begin + sizes[what])
        return None, None

    def _norm_pieces(
        self, what: str, named: Callable[[str, str], str]
    ) -> Iterator[tuple[str, Piece]]:
        parts = ("weight", "bias") if self.norm.kind == "layer" else ("weight",)
        for part in parts:
            yield f"{what}.{part}", Piece(named(what, part), (self.width,))
