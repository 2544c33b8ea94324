"""Tiny random decoders of transformers' families, in folders and as programs to serve.

The weights are large enough for greedy tokens to vary.
"""

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from pcp.bundle import Bundle
from pcp.serving.engine import SlotEngine
from pcp.serving.interface import Chunk, Sampled, Sampling, Step, Tick
from pcp.tools.serving.decoder_bundle import compile_folder

CONTEXT, CHUNK, VOCABULARY = 96, 32, 101
GREEDY = Sampling()

_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
_GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
}

#: Class of transformers, and what it has besides `_SMALL`.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": _LLAMA3, "attention_bias": True}),
    "llama-even": ("Llama", {"vocab_size": 104, "num_key_value_heads": 4}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama-yarn": ("Llama", {"rope_parameters": _YARN, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": 16, "head_dim": 24}),
    "qwen2": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
    "gemma": ("Gemma", {"head_dim": 24}),
    "gemma2": ("Gemma2", {"head_dim": 24, "sliding_window": 16}),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 24,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": _GEMMA3_ROPE,
        },
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "head_dim": 24,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe-mixed": (
        "Qwen3Moe",
        {
            "num_experts": 32,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 16,
            "mlp_only_layers": [0],
            "tie_word_embeddings": True,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi": ("Phi", {"num_key_value_heads": 4}),
    "phi3": ("Phi3", {}),
}


def made(name: str) -> Any:
    """A model of a family, with the same weights each time."""
    import torch
    import transformers

    kind, special = FAMILIES[name]
    config = getattr(transformers, f"{kind}Config")(**{**_SMALL, **special})
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():  # biases and norms begin as constants, which hide mistakes
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += torch.randn_like(parameter) * 0.1
        if config.tie_word_embeddings:  # or each token follows itself
            model.get_input_embeddings().weight *= 0.1
    return model.eval()


def saved(name: str, folder: Path, dtype: str = "float32", **options: Any) -> Any:
    """A model's folder as `save_pretrained` writes it; the model as it is there."""
    import torch

    made(name).to(getattr(torch, dtype)).save_pretrained(folder, **options)
    return of_folder(folder)


def of_folder(folder: Path) -> Any:
    """The model of a folder, in f32."""
    import torch
    import transformers

    kind = transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


@cache
def compiled(
    folder: Path,
    phases: tuple[str, ...] = (f"prefill:{CHUNK}", "decode:1,4"),
    ranks: int = 1,
    stages: int = 1,
    *,
    sampler: bool = False,
) -> Bundle:
    """The bundle to serve of a folder, over `ranks` along tp times `stages`."""
    sizes = {"tp": ranks, "pp": stages}
    mesh = {axis: n for axis, n in sizes.items() if n > 1}
    return compile_folder(folder, phases, CONTEXT, mesh=mesh, sampler=sampler)


def generated(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that transformers makes, greedily, whatever they are."""
    import torch

    given = torch.tensor([list(prompt)])
    model.generation_config.eos_token_id = None
    found = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=count,
        do_sample=False,
    )
    return found[0, len(prompt) :].tolist()


class Request:
    """A request as a scheduler has it: its chunks, then its steps, in a slot."""

    def __init__(
        self,
        number: int,
        prompt: Sequence[int],
        count: int,
        slot: int,
        sampling: Sampling = GREEDY,
        chunk: int = CHUNK,
    ) -> None:
        self.number, self.slot, self.sampling = number, slot, sampling
        self.tokens, self.prompt, self.count = list(prompt), len(prompt), count
        self.chunk, self.computed = chunk, 0

    @property
    def made(self) -> list[int]:
        """The tokens that were sampled."""
        return self.tokens[self.prompt :]

    @property
    def done(self) -> bool:
        """Whether all are there."""
        return len(self.made) == self.count

    def next(self) -> Chunk | Step:
        """What the engine is to compute of it."""
        left = self.tokens[self.computed :]
        if self.computed and len(left) == 1 and self.made:
            step = (self.slot, left[0], self.computed, self.number, self.sampling)
            self.computed += 1
            return Step(*step)
        piece, start = tuple(left[: self.chunk]), self.computed
        self.computed += len(piece)
        last = self.computed == len(self.tokens)
        said = (self.slot, piece, start, last, self.number, self.sampling)
        return Chunk(*said, prompt=self.prompt)

    def take(self, sampled: Sequence[Sampled]) -> None:
        """More tokens, up to the last that is wanted."""
        left = self.count - len(self.made)
        self.tokens += [each.token for each in sampled][:left]
        self.computed += len(sampled) - 1


def advance(engine: SlotEngine, requests: Sequence[Request]) -> None:
    """One tick with all of these requests."""
    asked = [(request, request.next()) for request in requests]
    chunks = tuple(a for _, a in asked if isinstance(a, Chunk))
    steps = tuple(a for _, a in asked if isinstance(a, Step))
    by_slot = {request.slot: request for request in requests}
    found = engine.tick(Tick(chunks, steps))
    for slot, sampled in groupby(found, lambda each: each.slot):
        by_slot[slot].take(list(sampled))


def run(engine: SlotEngine, *requests: Request) -> list[list[int]]:
    """All of them until they are done; the tokens of each."""
    for _ in range(5000):
        if not (left := [r for r in requests if not r.done]):
            return [r.made for r in requests]
        advance(engine, left)
    raise AssertionError("requests that do not end")
