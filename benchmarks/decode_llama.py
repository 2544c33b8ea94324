"""llama.cpp as a contestant of decode.py: the same weights in its file format.

Needs `pip install cyllama gguf`: llama.cpp with a binding, and its writer of files.
"""

import json
import time
from pathlib import Path

import numpy as np

#: What weights become, by pcp's names.
KINDS = {"f32": "F32", "f16": "F16", "int8": "Q8_0", "int4": "Q4_0"}
_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write(folder: Path, file: Path, kind: str) -> None:
    """The Llama of a folder, its head tied, as a GGUF file without a tokenizer."""
    import gguf
    from safetensors.numpy import load_file

    said = json.loads((folder / "config.json").read_text())
    heads, keys = said["num_attention_heads"], said["num_key_value_heads"]
    out = gguf.GGUFWriter(file, "llama")
    out.add_context_length(said["max_position_embeddings"])
    out.add_embedding_length(said["hidden_size"])
    out.add_block_count(said["num_hidden_layers"])
    out.add_feed_forward_length(said["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(keys)
    out.add_layer_norm_rms_eps(said["rms_norm_eps"])
    out.add_rope_dimension_count(said["hidden_size"] // heads)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(said["vocab_size"])
    out.add_tokenizer_model("no_vocab")
    type_ = gguf.GGMLQuantizationType[KINDS[kind]]
    for name, array in load_file(folder / "model.safetensors").items():
        named = _named(name)
        if array.ndim == 1:
            out.add_tensor(named, array)
            continue
        if "attn_q." in named or "attn_k." in named:
            array = _interleaved(array, heads if "attn_q." in named else keys)
        packed = gguf.quants.quantize(array, type_)
        out.add_tensor(named, packed, raw_dtype=type_)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _named(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, rest = name.split(".", 3)
    part, _, end = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER[part]}.{end}"


def _interleaved(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order in which llama.cpp turns pairs: neighbours."""
    return w.reshape(heads, 2, -1, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


class LlamaCpp:
    """A context of llama.cpp on one thread with one sequence.

    The binding gives the logits of one row, as a list: `decoded` has the time without.
    """

    def __init__(self, folder: Path, kind: str, context: int) -> None:
        from cyllama.llama import llama_cpp as api

        api.disable_logging()
        self._api, self.decoded = api, (0.0, 0.0)
        file = folder / f"{kind}.gguf"
        if not file.exists():
            write(folder, file, kind)
        how = api.LlamaModelParams()
        how.n_gpu_layers = 0
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        # The binding's contexts ask a model for what 0.2.18 has on its vocabulary.
        named = type("Model", (api.LlamaModel,), {"n_vocab": vocabulary})
        self._model = named(str(file), how, verbose=False)
        given = api.LlamaContextParams()
        given.n_ctx, given.n_seq_max = context, 1
        given.n_threads = given.n_threads_batch = 1
        given.type_k = given.type_v = 0  # f32, as all others have it
        given.flash_attn_type = 0
        given.n_batch = given.n_ubatch = 512
        self._context = api.LlamaContext(self._model, given, verbose=False)

    def prefill(self, prompt: np.ndarray) -> np.ndarray:
        """The prompt of one row, from an empty cache."""
        self._context.kv_cache_clear(True)
        return self._decode([int(token) for token in prompt[0]], 0)

    def step(self, tokens: np.ndarray, position: int) -> np.ndarray:
        """A step of the one row."""
        return self._decode([int(tokens[0])], position)

    def _decode(self, tokens: list[int], start: int) -> np.ndarray:
        batch = self._api.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1)
        for i, token in enumerate(tokens):
            batch.add(token, start + i, [0], i == len(tokens) - 1)
        cpu, wall = time.process_time(), time.perf_counter()
        self._context.decode(batch)
        self.decoded = time.process_time() - cpu, time.perf_counter() - wall
        return np.array([np.argmax(self._context.get_logits())])
