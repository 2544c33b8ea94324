"""Drawn config.json files of decoders, and what a model has that is made of one.

Keys of every family stand in files of each: what transformers reads, and in which order
of precedence, is seen in the modules that it makes.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from pcp.frontends.decoders.spec import Decoder

#: model_type, and transformers' name for it.
FAMILIES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma": "Gemma",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3",
    "phi": "Phi",
    "phi3": "Phi3",
}
SLIDING, FULL = "sliding_attention", "full_attention"

_SIZES = {
    "vocab_size": 32,
    "pad_token_id": 0,
    "hidden_size": 64,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_ACTIVATIONS = ("gelu", "relu", "silu", "gelu_new", "gelu_pytorch_tanh")

#: Key, how often it is said, and what it is then.
_KEYS: tuple[tuple[str, float, Sequence[Any]], ...] = (
    ("head_dim", 0.5, (16, 32)),
    ("rope_theta", 0.2, (20000.0,)),
    ("rope_local_base_freq", 0.1, (30000.0,)),
    ("original_max_position_embeddings", 0.15, (16, 32)),
    ("partial_rotary_factor", 0.1, (0.5, 1.0)),
    ("hidden_act", 0.2, _ACTIVATIONS),
    ("hidden_activation", 0.2, _ACTIVATIONS),
    ("sliding_window", 0.3, (8, 16, None)),
    ("use_sliding_window", 0.2, (True, False)),
    ("max_window_layers", 0.2, (2,)),
    ("layer_types", 0.15, ([FULL, SLIDING, FULL, SLIDING], [SLIDING] * 2 + [FULL] * 2)),
    ("sliding_window_pattern", 0.1, (2, 3)),
    ("attention_bias", 0.2, (True,)),
    ("mlp_bias", 0.1, (True,)),
    ("tie_word_embeddings", 0.3, (True, False)),
    ("rms_norm_eps", 0.15, (1e-3,)),
    ("layer_norm_eps", 0.1, (1e-3,)),
    ("query_pre_attn_scalar", 0.15, (7,)),
    ("attn_logit_softcapping", 0.15, (3.0, None)),
    ("final_logit_softcapping", 0.15, (5.0, None)),
)
_YARN: tuple[tuple[str, Any], ...] = (
    ("beta_fast", 16.0),
    ("beta_slow", 2.0),
    ("attention_factor", 1.3),
    ("mscale", 0.7),
    ("mscale_all_dim", 0.9),
    ("truncate", False),
)


def drawn(seed: int) -> dict[str, Any]:
    """A configuration; families take turns."""
    random = np.random.default_rng(seed)
    family = list(FAMILIES)[seed % len(FAMILIES)]
    config = {"model_type": family, **_SIZES}
    for key, share, values in _KEYS:
        if random.random() < share:
            config[key] = values[int(random.integers(len(values)))]
    if family.startswith(("gemma", "qwen3")):  # else larger than it need be
        config["head_dim"] = 16
    for key in ("rope_scaling", "rope_parameters"):
        if random.random() < 0.4:
            config[key] = _rope(random)
    if family == "gemma3_text" and "rope_parameters" in config:
        config["rope_parameters"] = {kind: _rope(random) for kind in (FULL, SLIDING)}
    return config


def _rope(random: np.random.Generator) -> dict[str, Any]:
    kind = str(random.choice(["", "default", "linear", "llama3", "yarn"]))
    said: dict[str, Any] = {
        str(random.choice(["type", "rope_type"])): kind or "default"
    }
    if kind in ("linear", "llama3", "yarn"):
        said["factor"] = float(random.choice([2, 4]))
    if kind == "llama3":
        said |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "yarn":
        said |= {key: value for key, value in _YARN if random.random() < 0.25}
        said["factor"] = None if random.random() < 0.25 else said["factor"]
    if kind in ("llama3", "yarn") and random.random() < 0.6:
        said["original_max_position_embeddings"] = int(random.choice([16, 32, 64]))
    if random.random() < 0.3:
        said["rope_theta"] = 5000.0
    return said


def of_decoder(spec: Decoder) -> dict[str, Any]:
    """What our decoder is, in the words of `of_transformers`."""
    names = [piece.tensor for piece in spec.pieces().values()]
    first = "model.layers.0."
    ours = {n.removeprefix(first) for n in names if n.startswith(first)}
    return {
        "layers": [
            [list(layer.rope.frequencies), layer.rope.scale, layer.window]
            for layer in spec.layers
        ],
        "attention_scale": spec.attention_scale,
        "attention_cap": spec.attention_cap,
        "logit_cap": spec.logit_cap,
        "activation": spec.activation,
        "eps": spec.norm.eps,
        "tied": spec.tied,
        "biases": sorted(n for n in ours if n.endswith("bias")),
    }


def of_transformers(config: dict[str, Any]) -> dict[str, Any]:
    """What transformers' model of the configuration computes with, by its modules."""
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    family = config["model_type"]
    made = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
    kind = getattr(transformers, f"{FAMILIES[family]}ForCausalLM")
    model = kind._from_config(made, attn_implementation="eager")
    block = model.model.layers[0]
    norm = next(m for m in block.modules() if "Norm" in type(m).__name__)
    eps = getattr(norm, "variance_epsilon", None)
    capped = family in ("gemma2", "gemma3_text")
    cap = getattr(block.self_attn, "attn_logit_softcapping", None)
    act = getattr(block.mlp, "act_fn", None) or block.mlp.activation_fn
    return {
        "layers": [_layer(model, made, i) for i in range(len(model.model.layers))],
        "attention_scale": float(block.self_attn.scaling),
        "attention_cap": float(cap or 0),
        "logit_cap": float((capped and made.final_logit_softcapping) or 0),
        "activation": _ACTIVATION[type(act).__name__],
        "eps": float(norm.eps if eps is None else eps),
        "tied": model.lm_head.weight is model.model.embed_tokens.weight,
        "biases": sorted(n for n, _ in block.named_parameters() if n.endswith("bias")),
    }


_ACTIVATION = {
    "SiLUActivation": "silu",
    "SiLU": "silu",
    "GELUActivation": "gelu",
    "NewGELUActivation": "gelu_tanh",
    "GELUTanh": "gelu_tanh",
    "ReLU": "relu",
}


def _layer(model: Any, made: Any, i: int) -> list[Any]:
    """Frequencies, their scale, and the window."""
    kinds, rotary = getattr(made, "layer_types", None), model.model.rotary_emb
    by_kind = made.model_type == "gemma3_text"
    prefix = f"{kinds[i]}_" if by_kind and kinds else ""
    window = getattr(made, "sliding_window", None) or 0
    if made.model_type not in ("mistral", "phi3"):  # whose layers are all alike
        sliding = made.model_type in ("qwen2", "qwen3", "gemma2", "gemma3_text")
        window = window if sliding and kinds and kinds[i] == SLIDING else 0
    frequencies = getattr(rotary, f"{prefix}inv_freq").tolist()
    return [frequencies, getattr(rotary, f"{prefix}attention_scaling"), window]


def assert_same(ours: dict[str, Any], theirs: dict[str, Any], what: str) -> None:
    """All of it; frequencies and scales to two places of f32."""
    for key, value in theirs.items():
        if key == "layers":
            for a, b in zip(ours[key], value, strict=True):
                np.testing.assert_allclose(a[0], b[0], rtol=3e-7, err_msg=what)
                np.testing.assert_allclose(a[1], b[1], rtol=3e-7, err_msg=what)
                assert a[2] == b[2], f"{what}: windows"
        else:
            assert ours[key] == value, f"{what}: {key}"
