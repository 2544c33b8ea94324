"""The families, a row each: what their config.json says, and what it leaves out.

A key that changes what is computed and that is not known here is an error, as is a
family without a row: a model is served right, or not at all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pcp.errors import ConfigError, nearest
from pcp.frontends.decoders.rope import rope
from pcp.frontends.decoders.spec import Decoder, Experts, Layer, Norm
from pcp.frontends.model_config import read_config

Config = Mapping[str, Any]
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Family:
    """What the models of one `model_type` have in common.

    `reads` are the keys that transformers reads for it besides `_READ`: what stands
    under others changes nothing. `defaults` are those of keys that files leave out;
    `layer_types` gives the kinds of layers where the file does not; `fixed` are fields
    of `Decoder`, `made` those that follow from the configuration. `partial` says
    whether a part of a head may be turned, `sparse` which layers have experts.
    """

    reads: str = ""
    defaults: Config = field(default_factory=dict)
    layer_types: Callable[[Config], list[str]] = lambda c: [FULL] * _layers(c)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    made: Callable[[Config], dict[str, Any]] = lambda c: {}
    norm: Callable[[Config], Norm] = lambda c: Norm("rms", c["rms_norm_eps"])
    partial: bool = False
    sparse: Callable[[Config, int], bool] = lambda c, layer: False


def read(folder: str | Path) -> Decoder:
    """The decoder of a folder; `ConfigError` says what of it is not supported."""
    return decoder(read_config(folder), str(Path(folder) / "config.json"))


def decoder(said: Config, source: str = "config.json") -> Decoder:
    """The decoder that a configuration describes; `source` names it in errors."""
    kind = said["model_type"]
    if kind not in FAMILIES:
        raise ConfigError(
            f"{source}: model_type {kind!r} is not served (there is: "
            f"{', '.join(FAMILIES)}).{nearest(str(kind), FAMILIES)}"
        )
    family = FAMILIES[kind]
    _check(said, source)
    known = {*_READ.split(), *family.reads.split()}
    config = {**_COMMON, **family.defaults}
    config |= {key: value for key, value in said.items() if key in known}
    try:
        return _made(kind, family, config, source)
    except KeyError as error:
        raise ConfigError(f"{source}: says no {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: {error}") from error


def _made(kind: str, family: Family, config: Config, source: str) -> Decoder:
    heads, width = config["num_attention_heads"], config["hidden_size"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or width // heads
    if heads % kv_heads:
        raise ConfigError(f"{source}: {heads} heads cannot share {kv_heads} keys")
    named = "hidden_activation" if "hidden_activation" in config else "hidden_act"
    activation = config[named]
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"{source}: {named} {activation!r} is not supported (there is: "
            f"{', '.join(ACTIVATIONS)}).{nearest(activation, ACTIVATIONS)}"
        )
    stated = {
        "family": kind,
        "vocabulary": config["vocab_size"],
        "width": width,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn": config["intermediate_size"],
        "layers": _layers_of(family, config, head_dim, source),
        "norm": family.norm(config),
        "activation": ACTIVATIONS[activation],
        "attention_scale": float(head_dim) ** -0.5,
        "positions": config["max_position_embeddings"],
        "biased": _biased(config),
        "tied": bool(config["tie_word_embeddings"]),
    }
    return Decoder(**{**stated, **family.fixed, **family.made(config)})


def _check(said: Config, source: str) -> None:
    for key, value in said.items():
        if not value:
            continue
        if key in _REFUSED:
            raise ConfigError(f"{source}: {key} {value!r}: {_REFUSED[key]}")
        if key not in _known() and not key.startswith("_") and "version" not in key:
            raise ConfigError(
                f"{source}: {key!r} is not known, and might change what is computed."
                f"{nearest(key, _known())} Remove it if transformers does not read it"
            )


@cache
def _known() -> frozenset[str]:
    """Keys that some family reads, or that change no number of any."""
    of_families = (f.reads for f in FAMILIES.values())
    return frozenset(" ".join([_READ, _OF_NO_NUMBER, *of_families]).split())


_READ = (
    "model_type vocab_size hidden_size intermediate_size num_hidden_layers "
    "num_attention_heads num_key_value_heads head_dim max_position_embeddings "
    "rope_theta rope_scaling rope_parameters original_max_position_embeddings "
    "partial_rotary_factor tie_word_embeddings"
)
"""Keys that every family reads."""

_OF_NO_NUMBER = (
    "architectures auto_map dtype torch_dtype transformers.js_config "
    "use_cache cache_implementation num_logits_to_keep "
    "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id tokenizer_class "
    "initializer_range pretraining_tp attention_dropout attn_pdrop embd_pdrop "
    "resid_pdrop hidden_dropout gradient_checkpointing router_aux_loss_coef "
    "output_attentions output_hidden_states return_dict chunk_size_feed_forward "
    "is_encoder_decoder id2label label2id problem_type task_specific_params "
    "is_llama_config default_theta use_unpad_attention seq_length "
    "unsloth_fixed output_router_logits router_jitter_noise"
)
"""Of training, of generation, of the file: read or not, they change no logit."""

#: Keys that change what is computed, in ways that no program here has.
_REFUSED = {
    "quantization_config": "quantised files are not read; take those of the model "
    "before its quantisation",
    "quantization": "quantised files are not read; take those of the model before its "
    "quantisation",
    "use_bidirectional_attention": "a decoder sees only what came before",
    "qk_layernorm": "layer norms of queries and keys are not supported",
    "rope_interleaved": "interleaved rotary pairs are not supported",
    "use_mrope": "positions of several dimensions are not supported",
}
_COMMON: Config = {
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}
#: Names of transformers, and those of `layers.ACTIVATIONS`.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}


def _biased(config: Config) -> frozenset[str]:
    found = ("q", "k", "v", "o") if config.get("attention_bias") else ()
    return frozenset((*found, *(_MLP if config.get("mlp_bias") else ())))


_MLP = ("gate", "up", "down")


# --- layers ---


def _layers(config: Config) -> int:
    return int(config["num_hidden_layers"])


def _layers_of(
    family: Family, config: Config, head_dim: int, source: str
) -> tuple[Layer, ...]:
    kinds = config.get("layer_types") or family.layer_types(config)
    if len(kinds) != _layers(config):
        raise ConfigError(
            f"{source}: {len(kinds)} layer_types for {_layers(config)} layers"
        )
    found = {}
    for kind in dict.fromkeys(kinds):
        if kind not in (SLIDING, FULL):
            raise ConfigError(f"{source}: layer type {kind!r} is not supported")
        said = _rope_said(config, kind)
        part = said.get("partial_rotary_factor") or 1
        if part != 1 and not family.partial:
            raise ConfigError(
                f"{source}: partial_rotary_factor {part}: models of "
                f"{config['model_type']} turn all of a head"
            )
        turned = rope(said, head_dim, config["max_position_embeddings"], source)
        window = int(config.get("sliding_window") or 0) if kind == SLIDING else 0
        if kind == SLIDING and not (window and config.get("use_sliding_window", True)):
            raise ConfigError(f"{source}: layers of {kind}, and no window is used")
        found[kind] = Layer(turned, window)
    return tuple(
        replace(found[kind], sparse=family.sparse(config, i))
        for i, kind in enumerate(kinds)
    )


def _rope_said(config: Config, kind: str) -> dict[str, Any]:
    """What is said of rotary embedding for a kind of layers, whatever the spelling.

    Today's files have `rope_parameters`, by kind where kinds differ (`_rope_by_kind`);
    older ones `rope_theta` beside `rope_scaling`, which transformers takes if both are
    there, as it takes `original_max_position_embeddings` that stands outside.
    """
    if "rope_local_base_freq" in config:
        return _rope_by_kind(config, kind)
    said = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    if {SLIDING, FULL} & said.keys():
        raise ConfigError(
            f"rope_parameters by kinds of layers: those of {config['model_type']} have "
            "one for all"
        )
    said.setdefault("rope_theta", config.get("rope_theta", 1e4))
    if config.get("partial_rotary_factor") is not None:
        said.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    if config.get("original_max_position_embeddings") is not None:
        trained = config["original_max_position_embeddings"]
        said["original_max_position_embeddings"] = trained
    named = said.get("rope_type", said.get("type"))
    if config["model_type"] == "phi3" and named not in (None, "default"):
        raise ConfigError(f"rope_type {named!r} of phi3 is not supported")
    return said


def _rope_by_kind(config: Config, kind: str) -> dict[str, Any]:
    """Gemma 3: layers with a window have a base of their own, and no scaling."""
    both = config.get("rope_parameters") or {}
    if both and not {SLIDING, FULL} & both.keys():
        raise ConfigError(
            "rope_parameters: those of gemma3_text are by kinds of layers, "
            f"{{{FULL!r}: ..., {SLIDING!r}: ...}}"
        )
    said = dict(both.get(kind) or {})
    if kind == FULL:
        said |= config.get("rope_scaling") or {}
    base = config["rope_theta" if kind == FULL else "rope_local_base_freq"]
    said.setdefault("rope_theta", base)
    if config.get("partial_rotary_factor") is not None:
        said.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    return said


def _all_sliding(config: Config) -> list[str]:
    kind = SLIDING if config.get("sliding_window") else FULL
    return [kind] * _layers(config)


def _windowless(config: Config) -> Config:
    return {**config, "sliding_window": None}


def _upper_sliding(config: Config) -> list[str]:
    """Qwen: from `max_window_layers` on, if at all."""
    used = config.get("use_sliding_window") and config.get("sliding_window")
    first = config["max_window_layers"] if used else _layers(config)
    return [SLIDING if i >= first else FULL for i in range(_layers(config))]


def _every(pattern: Callable[[Config], int]) -> Callable[[Config], list[str]]:
    """Each `pattern`th layer sees everything, the others a window."""

    def kinds(config: Config) -> list[str]:
        n = pattern(config)
        return [SLIDING if (i + 1) % n else FULL for i in range(_layers(config))]

    return kinds


# --- the table ---


def _one_plus(config: Config) -> Norm:
    return Norm("rms", config["rms_norm_eps"], offset=1.0)


def _embed_scale(config: Config) -> dict[str, Any]:
    return {"embed_scale": float(config["hidden_size"]) ** 0.5}


def _gemma(config: Config) -> dict[str, Any]:
    """The first files say `gelu` where the models were trained with its tanh form."""
    tanh = config["hidden_act"] == "gelu"
    return _embed_scale(config) | ({"activation": "gelu_tanh"} if tanh else {})


def _gemma2(config: Config) -> dict[str, Any]:
    return _embed_scale(config) | {
        "attention_scale": float(config["query_pre_attn_scalar"]) ** -0.5,
        "attention_cap": config.get("attn_logit_softcapping") or 0.0,
        "logit_cap": config.get("final_logit_softcapping") or 0.0,
    }


def _experts(config: Config) -> dict[str, Any]:
    """Qwen's name for their number is an older one of transformers' own."""
    count = config.get("num_local_experts", config.get("num_experts"))
    if not count:
        return {}
    taken = config["num_experts_per_tok"]
    if not 0 < taken <= count:
        raise ValueError(f"num_experts_per_tok {taken} of {count} experts")
    ffn = config.get("moe_intermediate_size", config["intermediate_size"])
    return {"experts": Experts(count, taken, ffn, config.get("norm_topk_prob", True))}


def _is_sparse(config: Config, layer: int) -> bool:
    """Qwen: each `decoder_sparse_step`th layer, but those named as MLPs."""
    return (
        bool(_experts(config))
        and layer not in (config.get("mlp_only_layers") or ())
        and (layer + 1) % config.get("decoder_sparse_step", 1) == 0
    )


_MIXTRAL_NAMES = {
    "router": "block_sparse_moe.gate",
    "experts_gate": "block_sparse_moe.experts.*.w1",
    "experts_up": "block_sparse_moe.experts.*.w3",
    "experts_down": "block_sparse_moe.experts.*.w2",
}
_GEMMA: Config = {"tie_word_embeddings": True, "head_dim": 256}
_TANH = "gelu_pytorch_tanh"
_GEMMA2: Config = _GEMMA | {
    "hidden_activation": _TANH,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_SANDWICH = {"sandwich": True, "names": {"mlp_norm": "pre_feedforward_layernorm"}}
_QWEN: Config = {
    "max_window_layers": 28,
    "sliding_window": 4096,
    "use_sliding_window": False,
}
_RMS = "hidden_act rms_norm_eps"
_WINDOWS = "sliding_window layer_types"
_OF_QWEN = f"{_RMS} {_WINDOWS} use_sliding_window max_window_layers"
_OF_GEMMA2 = (
    f"rms_norm_eps {_WINDOWS} hidden_activation attention_bias query_pre_attn_scalar "
    "attn_logit_softcapping final_logit_softcapping"
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(f"{_RMS} attention_bias mlp_bias"),
    "mistral": Family(f"{_RMS} sliding_window", {"sliding_window": 4096}, _all_sliding),
    "qwen2": Family(_OF_QWEN, _QWEN, _upper_sliding, {"biased": frozenset("qkv")}),
    "qwen3": Family(
        f"{_OF_QWEN} attention_bias",
        {"head_dim": 128, **_QWEN},
        _upper_sliding,
        {"head_norms": True},
    ),
    "qwen3_moe": Family(
        f"{_RMS} attention_bias sliding_window use_sliding_window decoder_sparse_step "
        "moe_intermediate_size num_experts num_local_experts num_experts_per_tok "
        "norm_topk_prob mlp_only_layers",
        {
            "sliding_window": 4096,
            "use_sliding_window": False,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
        lambda c: _all_sliding(c if c["use_sliding_window"] else _windowless(c)),
        {"head_norms": True},
        _experts,
        sparse=_is_sparse,
    ),
    "mixtral": Family(
        f"{_RMS} sliding_window num_local_experts num_experts_per_tok",
        {
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        _all_sliding,
        {"names": _MIXTRAL_NAMES},
        _experts,
        sparse=_is_sparse,
    ),
    "gemma": Family(
        f"{_RMS} attention_bias",
        {**_GEMMA, "hidden_act": _TANH},
        norm=_one_plus,
        made=_gemma,
    ),
    "gemma2": Family(
        _OF_GEMMA2,
        {**_GEMMA2, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
        _every(lambda c: 2),
        _SANDWICH,
        _gemma2,
        _one_plus,
    ),
    "gemma3_text": Family(
        f"{_OF_GEMMA2} rope_local_base_freq sliding_window_pattern",
        {**_GEMMA2, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
        _every(lambda c: c.get("sliding_window_pattern") or 6),
        {**_SANDWICH, "head_norms": True},
        _gemma2,
        _one_plus,
    ),
    "phi": Family(
        "hidden_act layer_norm_eps",
        {"hidden_act": "gelu_new", "partial_rotary_factor": 0.5},
        fixed={
            "gated": False,
            "parallel": True,
            "biased": frozenset(("q", "k", "v", "o", "up", "down", "head")),
            "names": {
                "o": "self_attn.dense",
                "up": "mlp.fc1",
                "down": "mlp.fc2",
                "norm": "model.final_layernorm",
            },
        },
        norm=lambda c: Norm("layer", c.get("layer_norm_eps", 1e-5)),
        partial=True,
    ),
    "phi3": Family(
        f"{_RMS} sliding_window",
        {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
        _all_sliding,
        {
            "fused": {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")},
            "names": {"qkv": "self_attn.qkv_proj", "gate_up": "mlp.gate_up_proj"},
        },
        partial=True,
    ),
}
