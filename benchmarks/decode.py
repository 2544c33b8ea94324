"""Decoding: pcp, PyTorch eager, JAX and llama.cpp on the same weights, one thread.

    python benchmarks/decode.py                     # 40 M parameters, batches 1 and 8
    python benchmarks/decode.py --size 110M --rounds 5
    python benchmarks/decode.py --ranks 2           # and two processes of a thread each
    python benchmarks/decode.py --weights int8 int4 # and narrow weights beside f32
    python benchmarks/decode.py --json decode.json

A random Llama in f32, positions 128 to 160 of a context of 256. Before any time is
believed all with weights of f32 must give the same tokens (llama.cpp the first eight:
it rounds otherwise, and a tie is soon met). They take turns; a figure is the least time
of a step over all rounds, in processor ms of this process, the wall's median behind
it. `tick` is the whole engine with its bookkeeping and greedy sampling, `program` the
compiled function alone. PyTorch and JAX update caches in place and attend with a mask;
JAX's cache is donated.

Needs what `pip install -e '.[hf,jax]'` installs; llama.cpp, which is left out without,
what `decode_llama` says.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # read when the libraries are loaded, below
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import decode_llama  # noqa: E402
import numpy as np  # noqa: E402

#: Width, layers, heads, keys, inside of the MLP.
SIZES = {
    "15M": (288, 6, 6, 2, 768),
    "40M": (512, 8, 8, 8, 1376),
    "110M": (768, 12, 12, 4, 2048),
}
VOCABULARY, CONTEXT, PROMPT, STEPS, THETA, EPS = 32000, 256, 128, 32, 10000.0, 1e-6
Tokens = np.ndarray
Step = Callable[[Tokens, int], Tokens]
"""Tokens [B] at a position to the next tokens [B]."""


def save(size: str, folder: Path) -> None:
    """A random Llama's folder."""
    import torch
    import transformers

    width, layers, heads, keys, inside = SIZES[size]
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=inside,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPS,
        tie_word_embeddings=True,
        initializer_range=0.05,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


# --- pcp ---


class Pcp:
    """The engine on `ranks` processes of one thread."""

    def __init__(
        self, folder: Path, batch: int, ranks: int, weights: str = "f32"
    ) -> None:
        from pcp.tools.serving import decoder_bundle, decoder_engine

        together = f",{batch}x{PROMPT}" if batch > 1 else ""
        phases = [f"prefill:{PROMPT}{together}", f"decode:{batch}"]
        bundle = decoder_bundle.compile_folder(
            folder,
            phases,
            CONTEXT,
            mesh={"tp": ranks},
            weights=weights,
            sampler=True,
            targets=["cpu:host"],
            report=_say,
        )
        self.batch = batch
        self.engine = decoder_engine.of_bundle(
            bundle, folder, slots=batch, device="local-sync"
        )

    def prefill(self, prompt: np.ndarray) -> Tokens:
        """All slots' prompts at once."""
        from pcp.serving.interface import Chunk, Sampling, Tick

        chunks = (
            Chunk(slot, tuple(prompt[slot]), 0, True, slot, Sampling())
            for slot in range(self.batch)
        )
        found = self.engine.tick(Tick(tuple(chunks)))
        return np.array([sampled.token for sampled in found])

    def tick(self, tokens: Tokens, position: int) -> Tokens:
        """A step of all slots by the engine."""
        from pcp.serving.interface import Sampling, Step, Tick

        steps = [
            Step(slot, int(token), position, slot, Sampling())
            for slot, token in enumerate(tokens)
        ]
        found = self.engine.tick(Tick(steps=tuple(steps)))
        return np.array([sampled.token for sampled in found])

    def program(self, tokens: Tokens, position: int) -> Tokens:
        """A step of all slots by the compiled function."""
        from pcp.serving.cached_model import Call
        from pcp.serving.frames import Order

        executor = self.engine._executor
        phase = executor.shapes.decode[0]
        slots, places = range(self.batch), [position] * self.batch
        call = Call(phase, tuple(slots), tuple(map(int, tokens)), tuple(places))
        (rows,) = executor.carry_out(Order(calls=(call,)))
        assert rows is not None
        return rows.logits().argmax(-1)

    def close(self) -> None:
        """Release it."""
        self.engine.close()


def _say(line: str) -> None:
    print(f"  {line}", file=sys.stderr)


# --- PyTorch ---


class Torch:
    """Eager, with a cache [B, keys, S, d] that is written in place."""

    def __init__(self, folder: Path, batch: int) -> None:
        import torch
        from safetensors.torch import load_file

        torch.set_num_threads(1)
        self.torch, self.weights = torch, load_file(folder / "model.safetensors")
        said = json.loads((folder / "config.json").read_text())
        self.layers, self.heads = said["num_hidden_layers"], said["num_attention_heads"]
        self.keys = said["num_key_value_heads"]
        self.d = said["hidden_size"] // self.heads
        shape = (batch, self.keys, CONTEXT, self.d)
        self.caches = [
            (torch.zeros(shape), torch.zeros(shape)) for _ in range(self.layers)
        ]
        powers = torch.arange(0, self.d, 2).float() / self.d
        angles = torch.arange(CONTEXT).float()[:, None] / THETA**powers
        self.cosines, self.sines = angles.cos(), angles.sin()

    def prefill(self, prompt: np.ndarray) -> Tokens:
        """All prompts at once."""
        return self._run(self.torch.from_numpy(prompt), 0)

    def step(self, tokens: Tokens, position: int) -> Tokens:
        """A step of all rows."""
        return self._run(self.torch.from_numpy(np.asarray(tokens))[:, None], position)

    def _run(self, tokens: Any, start: int) -> Tokens:
        with self.torch.inference_mode():
            return self._logits(tokens, start).argmax(-1).numpy()

    def _norm(self, x: Any, name: str) -> Any:
        mean = x.pow(2).mean(-1, keepdim=True)
        return x * self.torch.rsqrt(mean + EPS) * self.weights[name]

    def _logits(self, tokens: Any, start: int) -> Any:
        w, linear = self.weights, self.torch.nn.functional.linear
        batch, count = tokens.shape
        end = start + count
        turn = self.cosines[start:end], self.sines[start:end]
        x = w["model.embed_tokens.weight"][tokens]
        for i, (keys, values) in enumerate(self.caches):
            at = f"model.layers.{i}."
            h = self._norm(x, f"{at}input_layernorm.weight")

            def heads(what: str, n: int, h: Any = h, at: str = at) -> Any:
                found = linear(h, w[f"{at}self_attn.{what}_proj.weight"])
                return found.view(batch, count, n, self.d).transpose(1, 2)

            keys[:, :, start:end] = self._turned(heads("k", self.keys), turn)
            values[:, :, start:end] = heads("v", self.keys)
            mixed = self.torch.nn.functional.scaled_dot_product_attention(
                self._turned(heads("q", self.heads), turn),
                keys[:, :, :end],
                values[:, :, :end],
                is_causal=count > 1,
                enable_gqa=self.keys < self.heads,
            )
            mixed = mixed.transpose(1, 2).reshape(batch, count, -1)
            x = x + linear(mixed, w[f"{at}self_attn.o_proj.weight"])
            h = self._norm(x, f"{at}post_attention_layernorm.weight")
            gate = self.torch.nn.functional.silu(
                linear(h, w[f"{at}mlp.gate_proj.weight"])
            )
            h = gate * linear(h, w[f"{at}mlp.up_proj.weight"])
            x = x + linear(h, w[f"{at}mlp.down_proj.weight"])
        x = self._norm(x[:, -1], "model.norm.weight")
        return linear(x, w["model.embed_tokens.weight"])

    def _turned(self, x: Any, turn: tuple[Any, Any]) -> Any:
        a, b = x.chunk(2, -1)
        cosines, sines = turn
        parts = (a * cosines - b * sines, b * cosines + a * sines)
        return self.torch.cat(parts, -1)


# --- JAX ---


class Jax:
    """Jitted, with the caches donated."""

    def __init__(self, folder: Path, batch: int) -> None:
        import jax
        from safetensors.numpy import load_file

        self.jax = jax
        self.weights = {
            k: jax.numpy.asarray(v)
            for k, v in load_file(folder / "model.safetensors").items()
        }
        said = json.loads((folder / "config.json").read_text())
        heads, keys = said["num_attention_heads"], said["num_key_value_heads"]
        shape = (batch, keys, CONTEXT, said["hidden_size"] // heads)
        count = said["num_hidden_layers"]
        zeros = jax.numpy.zeros
        self.caches = [(zeros(shape), zeros(shape)) for _ in range(count)]
        run = partial(_jax_logits, heads=heads)
        self._run = jax.jit(run, donate_argnums=1)

    def prefill(self, prompt: np.ndarray) -> Tokens:
        """All prompts at once."""
        return self._call(prompt, 0)

    def step(self, tokens: Tokens, position: int) -> Tokens:
        """A step of all rows."""
        return self._call(np.asarray(tokens)[:, None], position)

    def _call(self, tokens: np.ndarray, start: int) -> Tokens:
        given = tokens.astype(np.int32)
        found, self.caches = self._run(self.weights, self.caches, given, start)
        return np.asarray(found)


def _jax_logits(w: Any, caches: Any, tokens: Any, start: Any, *, heads: int) -> Any:
    import jax
    import jax.numpy as jnp

    batch, count = tokens.shape
    _, kept, _, d = caches[0][0].shape
    places = start + jnp.arange(count)
    angles = places[:, None] / THETA ** (jnp.arange(0, d, 2) / d)
    cosines, sines = jnp.cos(angles), jnp.sin(angles)
    seen = jnp.arange(CONTEXT)[None] <= places[:, None]

    def norm(x: Any, name: str) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPS) * w[name]

    def turned(x: Any) -> Any:
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cosines - b * sines, b * cosines + a * sines], -1)

    x, new = w["model.embed_tokens.weight"][tokens], []
    for i, (keys, values) in enumerate(caches):
        at = f"model.layers.{i}."
        h = norm(x, f"{at}input_layernorm.weight")

        def split(what: str, n: int, h: Any = h, at: str = at) -> Any:
            found = h @ w[f"{at}self_attn.{what}_proj.weight"].T
            return found.reshape(batch, count, n, d).transpose(0, 2, 1, 3)

        where = (0, 0, start, 0)
        keys = jax.lax.dynamic_update_slice(keys, turned(split("k", kept)), where)
        values = jax.lax.dynamic_update_slice(values, split("v", kept), where)
        new.append((keys, values))
        q = turned(split("q", heads)).reshape(batch, kept, heads // kept, count, d)
        scores = jnp.einsum("bkgcd,bksd->bkgcs", q, keys) * d**-0.5
        share = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
        mixed = jnp.einsum("bkgcs,bksd->bckgd", share, values)
        mixed = mixed.reshape(batch, count, -1)
        x = x + mixed @ w[f"{at}self_attn.o_proj.weight"].T
        h = norm(x, f"{at}post_attention_layernorm.weight")
        gate = jax.nn.silu(h @ w[f"{at}mlp.gate_proj.weight"].T)
        x = x + (gate * (h @ w[f"{at}mlp.up_proj.weight"].T)) @ (
            w[f"{at}mlp.down_proj.weight"].T
        )
    logits = norm(x[:, -1], "model.norm.weight") @ w["model.embed_tokens.weight"].T
    return logits.argmax(-1), new


# --- turns ---


def contestants(
    folder: Path, batch: int, ranks: int, narrow: Sequence[str]
) -> dict[str, tuple[Any, Step]]:
    """Who takes part: the object with `prefill`, and its step.

    pcp and llama.cpp also with the weights of `narrow`; llama.cpp for one row.
    """
    pcp, torch, jax = Pcp(folder, batch, 1), Torch(folder, batch), Jax(folder, batch)
    found: dict[str, tuple[Any, Step]] = {
        "pcp program": (pcp, pcp.program),
        "pcp tick": (pcp, pcp.tick),
        "torch eager": (torch, torch.step),
        "jax": (jax, jax.step),
    }
    if ranks > 1:
        spread = Pcp(folder, batch, ranks)
        found[f"pcp tick, {ranks} ranks"] = (spread, spread.tick)
    for kind in narrow:
        other = Pcp(folder, batch, 1, kind)
        found[f"pcp program, {kind}"] = (other, other.program)
    if batch == 1 and find_spec("cyllama"):
        for kind in ("f32", *(k for k in narrow if k in decode_llama.KINDS)):
            llama = decode_llama.LlamaCpp(folder, kind, CONTEXT)
            found["llama.cpp" + f", {kind}" * (kind != "f32")] = (llama, llama.step)
    return found


def measure(
    folder: Path, batch: int, ranks: int, rounds: int, narrow: Sequence[str]
) -> list[dict[str, Any]]:
    """A row for each contestant: prefill and step, ms."""
    people = contestants(folder, batch, ranks, narrow)
    prompt = np.random.default_rng(0).integers(0, VOCABULARY, (batch, PROMPT))
    compare(people, prompt)
    times: dict[str, dict[str, list[tuple[float, float]]]] = {
        name: {"prefill": [], "step": []} for name in people
    }
    for _ in range(rounds):
        for name, (who, step) in people.items():
            tokens, took = _timed(lambda who=who: who.prefill(prompt))
            times[name]["prefill"].append(getattr(who, "decoded", took))
            for i in range(STEPS):
                tokens, took = _timed(lambda: step(tokens, PROMPT + i))  # noqa: B023
                times[name]["step"].append(getattr(who, "decoded", took))
    for who in {id(who): who for who, _ in people.values()}.values():
        if isinstance(who, Pcp):
            who.close()
    return [
        {"batch": batch, "contestant": name}
        | {
            f"{what}_{kind}_ms": 1e3 * reduce([t[i] for t in taken])
            for what, taken in kinds.items()
            for i, (kind, reduce) in enumerate(
                [("cpu", min), ("wall", statistics.median)]
            )
        }
        for name, kinds in times.items()
    ]


def _timed(what: Callable[[], Tokens]) -> tuple[Tokens, tuple[float, float]]:
    cpu, wall = time.process_time(), time.perf_counter()
    found = what()
    return found, (time.process_time() - cpu, time.perf_counter() - wall)


def compare(people: dict[str, tuple[Any, Step]], prompt: np.ndarray) -> None:
    """All with weights of f32 give the same tokens, or it ends."""
    made: dict[str, list[list[int]]] = {}
    for name, (who, step) in people.items():
        if "," in name and "ranks" not in name:
            continue
        rows = [who.prefill(prompt)]
        for i in range(STEPS):
            rows.append(step(rows[-1], PROMPT + i))
        made[name] = np.array(rows).tolist()
    for name, tokens in made.items():
        count = 8 if name.startswith("llama") else len(tokens)
        if tokens[:count] != made["torch eager"][:count]:
            raise SystemExit(f"{name} gives other tokens than torch: no times")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="40M")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--ranks", type=int, default=1)
    kinds = ("bf16", "f16", "int8", "int4")
    parser.add_argument("--weights", nargs="*", choices=kinds, default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        save(flags.size, Path(scratch))
        for batch in flags.batch:
            how = flags.ranks, flags.rounds, flags.weights
            new = measure(Path(scratch), batch, *how)
            best = min(
                r["step_cpu_ms"]
                for r in new
                if "pcp" not in r["contestant"] and "," not in r["contestant"]
            )
            print(f"{flags.size}, batch {batch}; step and prefill of {PROMPT}:")
            print("  least processor ms (median wall ms); best other / this, by step")
            for row in new:
                step = f"{row['step_cpu_ms']:8.2f} ({row['step_wall_ms']:.2f})"
                whole = f"{row['prefill_cpu_ms']:8.1f} ({row['prefill_wall_ms']:.1f})"
                ratio = f"{best / row['step_cpu_ms']:6.2f}"
                print(f"  {row['contestant']:20}{step:>20}{whole:>22}{ratio}")
            rows += new
            if flags.json:
                flags.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
