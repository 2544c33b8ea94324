"""Models of transformers from their configuration alone: two layers, random weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

VOCABULARY, BATCH, BLOCK = 96, 2, 12

_NARROW = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_GROUPED = _NARROW | {"num_key_value_heads": 2, "max_position_embeddings": 32}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Kind:
    """One architecture: class, configuration, and what the model is called with."""

    model: str
    config: str
    options: Mapping[str, Any]
    inputs: Callable[[Any, np.random.Generator], dict[str, Any]]


def tokens(_: Any, random: np.random.Generator) -> dict[str, Any]:
    """Ids, and as labels the same, as trainers of causal models give them."""
    ids = random.integers(3, VOCABULARY, (BATCH, BLOCK))
    return {"input_ids": ids, "labels": ids}


def padded(config: Any, random: np.random.Generator) -> dict[str, Any]:
    """As `tokens`, of unequal lengths: a mask, and labels that do not count."""
    given = tokens(config, random)
    mask = np.ones((BATCH, BLOCK), np.int64)
    mask[0, BLOCK - 4 :] = 0
    labels = np.where(mask, given["input_ids"], -100)
    return given | {"labels": labels, "attention_mask": mask}


def pairs(config: Any, random: np.random.Generator) -> dict[str, Any]:
    """Ids of a source, labels of a target."""
    given = tokens(config, random)
    return given | {"labels": random.integers(3, VOCABULARY, (BATCH, 7))}


def _images(config: Any, random: np.random.Generator) -> np.ndarray:
    size = getattr(config, "image_size", 32)
    return random.standard_normal((BATCH, 3, size, size), np.float32)


def images(config: Any, random: np.random.Generator) -> dict[str, Any]:
    """Images with classes."""
    labels = random.integers(0, config.num_labels, BATCH)
    return {"pixel_values": _images(config, random), "labels": labels}


def captions(config: Any, random: np.random.Generator) -> dict[str, Any]:
    """Images with texts, each of which ends in the largest id."""
    ids = random.integers(3, VOCABULARY - 1, (BATCH, BLOCK))
    ids[:, -1] = VOCABULARY - 1
    pixels = _images(config.vision_config, random)
    return {"input_ids": ids, "pixel_values": pixels, "return_loss": True}


def speech(config: Any, random: np.random.Generator) -> dict[str, Any]:
    """Mel spectra with transcripts."""
    shape = (BATCH, config.num_mel_bins, 2 * config.max_source_positions)
    features = random.standard_normal(shape, np.float32)
    labels = random.integers(3, VOCABULARY, (BATCH, 7))
    return {"input_features": features, "labels": labels}


_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_source_positions": 16,
    "max_target_positions": 16,
    "decoder_start_token_id": 1,
    **_ENDS,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LABELS = {"num_labels": 5}

ZOO: dict[str, Kind] = {
    "gpt2": Kind(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4}
        | {"n_positions": 32},
        tokens,
    ),
    "gpt2-padded": Kind(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4}
        | {"n_positions": 32},
        padded,
    ),
    "llama": Kind("LlamaForCausalLM", "LlamaConfig", _GROUPED, padded),
    "qwen2": Kind("Qwen2ForCausalLM", "Qwen2Config", _GROUPED, tokens),
    "qwen3": Kind(
        "Qwen3ForCausalLM", "Qwen3Config", _GROUPED | {"head_dim": 8}, tokens
    ),
    "mistral": Kind(
        "MistralForCausalLM", "MistralConfig", _GROUPED | {"sliding_window": 6}, tokens
    ),
    "gemma2": Kind(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        _GROUPED | {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8},
        tokens,
    ),
    "gemma3": Kind(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        _GROUPED
        | {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8}
        | {"sliding_window_pattern": 2},
        tokens,
    ),
    "phi": Kind("PhiForCausalLM", "PhiConfig", _GROUPED, tokens),
    "bert": Kind(
        "BertForMaskedLM",
        "BertConfig",
        _NARROW | {"max_position_embeddings": 32},
        padded,
    ),
    "t5": Kind(
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4}
        | {"num_layers": 2, "decoder_start_token_id": 0},
        pairs,
    ),
    "mixtral": Kind(
        "MixtralForCausalLM",
        "MixtralConfig",
        _GROUPED | {"num_local_experts": 4, "output_router_logits": True},
        tokens,
    ),
    "qwen3-moe": Kind(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        _GROUPED | _EXPERTS | {"head_dim": 8},
        tokens,
    ),
    "mamba2": Kind(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
        | {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2}
        | {"chunk_size": 4},
        tokens,
    ),
    "vit": Kind(
        "ViTForImageClassification",
        "ViTConfig",
        _TOWER | {"image_size": 16, "patch_size": 4} | _LABELS,
        images,
    ),
    "clip": Kind(
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": _NARROW
            | {"max_position_embeddings": 16, "eos_token_id": VOCABULARY - 1},
            "vision_config": _TOWER | {"image_size": 16, "patch_size": 4},
            "projection_dim": 16,
        },
        captions,
    ),
    "whisper": Kind(
        "WhisperForConditionalGeneration", "WhisperConfig", _SEQ2SEQ, speech
    ),
    "resnet18": Kind(
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "layer_type": "basic"}
        | {"depths": [2, 2, 2, 2]}
        | _LABELS,
        images,
    ),
    "convnext": Kind(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2, "patch_size": 2}
        | {"image_size": 16}
        | _LABELS,
        images,
    ),
}


@dataclass(frozen=True)
class Sample:
    """A model, and what it is called with."""

    model: Any
    keywords: dict[str, Any]

    def loss(self) -> Any:
        """The model's own loss, a tensor."""
        return self.model(**self.keywords).loss

    def gradients(self) -> dict[str, np.ndarray]:
        """torch's own, of each parameter; zeros where none comes back."""
        import torch

        named = self.model.named_parameters()
        given = {n: p for n, p in named if p.requires_grad}
        found = torch.autograd.grad(self.loss(), [*given.values()], allow_unused=True)
        pairs = zip(given.items(), found, strict=True)
        return {
            n: np.zeros(p.shape, np.float32) if g is None else g.numpy()
            for (n, p), g in pairs
        }


@cache
def sample(name: str) -> Sample:
    """One of `ZOO`, in evaluation mode, with seeded weights and inputs."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind = ZOO[name]
    config = getattr(transformers, kind.config)(**kind.options)
    model = getattr(transformers, kind.model)(config).eval()
    given = kind.inputs(config, np.random.default_rng(1))
    keywords = {
        k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v
        for k, v in given.items()
    }
    return Sample(model, keywords)


def resnet18() -> tuple[Any, dict[str, Any]]:
    """ResNet-18 in training mode, narrow, and a batch of small images for it."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind = ZOO["resnet18"]
    config = getattr(transformers, kind.config)(**kind.options)
    images = torch.randn(8, 3, 32, 32)
    labels = torch.arange(8) % config.num_labels
    model = getattr(transformers, kind.model)(config).train()
    return model, {"pixel_values": images, "labels": labels}
