"""A small Llama in numpy: its folder as transformers writes it, its greedy tokens."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from helpers.serving.model_folder import write

from pcp.training.storage import safetensors_io

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY = 32, 64, 2, 4, 2, 320
THETA, EPSILON = 10000.0, 1e-6
Weights = dict[str, np.ndarray]


def weights(seed: int = 0) -> Weights:
    """Random ones, large enough for greedy tokens to vary."""
    draw, head = np.random.default_rng(seed), WIDTH // HEADS

    def matrix(rows: int, columns: int) -> np.ndarray:
        return draw.normal(0, 0.3, (rows, columns)).astype(np.float32)

    made = {"model.embed_tokens.weight": matrix(VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            made[f"{at}.self_attn.{name}_proj.weight"] = matrix(rows * head, WIDTH)
        made[f"{at}.self_attn.o_proj.weight"] = matrix(WIDTH, HEADS * head)
        made[f"{at}.mlp.gate_proj.weight"] = matrix(INNER, WIDTH)
        made[f"{at}.mlp.up_proj.weight"] = matrix(INNER, WIDTH)
        made[f"{at}.mlp.down_proj.weight"] = matrix(WIDTH, INNER)
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"{at}.{name}.weight"] = np.ones(WIDTH, np.float32)
    made["model.norm.weight"] = np.ones(WIDTH, np.float32)
    made["lm_head.weight"] = matrix(VOCABULARY, WIDTH)
    return made


def save(folder: Path, positions: int = 128, seed: int = 0) -> Weights:
    """The folder of the model, with its tokenizer."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": positions,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    made = weights(seed)
    write(folder)
    (folder / "config.json").write_text(json.dumps(config))
    store(folder, made)
    return made


def store(folder: Path, made: Weights) -> None:
    """The weights into the folder."""
    (folder / "model.safetensors").write_bytes(safetensors_io.to_bytes(made))


def greedy(made: Weights, prompt: Sequence[int], count: int) -> list[int]:
    """The most probable tokens behind a prompt, each from all before it."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(_logits(made, tokens).argmax()))
    return tokens[len(prompt) :]


def _logits(made: Weights, tokens: Sequence[int]) -> np.ndarray:
    """Of the token behind the last."""
    x = made["model.embed_tokens.weight"][tokens]
    for layer in range(LAYERS):
        part = {
            name.removeprefix(f"model.layers.{layer}."): value
            for name, value in made.items()
        }
        x = x + _attention(part, _normal(x))
        h = _normal(x)
        gate = h @ part["mlp.gate_proj.weight"].T
        up = h @ part["mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ part["mlp.down_proj.weight"].T
    return _normal(x)[-1] @ made["lm_head.weight"].T


def _normal(x: np.ndarray) -> np.ndarray:
    """RMS norm (arXiv:1910.07467) with a scale of one."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)


def _attention(part: Weights, x: np.ndarray) -> np.ndarray:
    length, head = len(x), WIDTH // HEADS

    def heads(name: str, count: int) -> np.ndarray:
        y = x @ part[f"self_attn.{name}_proj.weight"].T
        return y.reshape(length, count, head).transpose(1, 0, 2)

    q, k = _turned(heads("q", HEADS)), _turned(heads("k", KV_HEADS))
    k, v = (np.repeat(y, HEADS // KV_HEADS, 0) for y in (k, heads("v", KV_HEADS)))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(head)
    scores += np.triu(np.full((length, length), -np.inf), 1)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    y = (share @ v).transpose(1, 0, 2).reshape(length, WIDTH)
    return y @ part["self_attn.o_proj.weight"].T


def _turned(x: np.ndarray) -> np.ndarray:
    """Rotary positions (arXiv:2104.09864), halves turned against each other."""
    _, length, head = x.shape
    angles = np.outer(np.arange(length), THETA ** (-np.arange(0, head, 2) / head))
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., : head // 2], x[..., head // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
