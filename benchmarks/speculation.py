"""Speculative decoding beside plain decoding: the same tokens, in less time?

    python benchmarks/speculation.py --size 110M --drafted 4

The model is a random Llama of `benchmarks/decode.py`. The one that drafts for it is its
first layers, with the same embeddings; what the layers behind them add is scaled down
until both agree about as often as a trained pair does (`--scale`). Both engines are on
one thread, take turns, and make the same answer, which is compared token by token.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import decode
import numpy as np

from pcp.serving.drafting import DraftModel
from pcp.serving.engine import SlotEngine
from pcp.serving.interface import Chunk, Sampling, Step, Tick

PROMPT = 16


def save_pair(size: str, folder: Path, layers: int, scale: float) -> tuple[Path, Path]:
    """Folders of the model and of the one that drafts."""
    from safetensors.torch import load_file, save_file

    model, draft = folder / "model", folder / "draft"
    decode.save(size, model)
    weights = load_file(model / "model.safetensors")
    first = dict[str, Any]()
    for name, value in weights.items():
        parts = name.split(".")
        behind = parts[1] == "layers" and int(parts[2]) >= layers
        if not behind:
            first[name] = value
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            value *= scale
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    draft.mkdir()
    for file in model.glob("*.json"):
        shutil.copy(file, draft)
    config = json.loads((model / "config.json").read_text())
    config["num_hidden_layers"] = layers
    (draft / "config.json").write_text(json.dumps(config))
    save_file(first, draft / "model.safetensors", {"format": "pt"})
    return model, draft


def engine(
    folder: Path, phases: Sequence[str], kind: str, draft: DraftModel | None = None
) -> SlotEngine:
    """One thread's, with a single slot."""
    from pcp.tools.serving import decoder_bundle, decoder_engine

    bundle = decoder_bundle.compile_folder(
        folder, phases, decode.CONTEXT, weights=kind, targets=["cpu:host"]
    )
    return decoder_engine.of_bundle(
        bundle, folder, slots=1, device="local-sync", drafter=draft
    )


def answer(engine: SlotEngine, prompt: Sequence[int], count: int) -> list[int]:
    """So many greedy tokens behind a prompt."""
    tokens, greedy = list(prompt), Sampling()
    chunk = Chunk(0, tuple(prompt), 0, True, 0, greedy)
    found = engine.tick(Tick((chunk,)))
    while True:
        tokens += [each.token for each in found]
        if len(tokens) >= len(prompt) + count:
            return tokens[len(prompt) : len(prompt) + count]
        step = Step(0, tokens[-1], len(tokens) - 1, 0, greedy)
        found = engine.tick(Tick(steps=(step,)))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where the tokens differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--size", choices=decode.SIZES, default="40M")
    add("--layers", type=int, default=1, help="of the model that drafts")
    add("--scale", type=float, default=0.01, help="of what the other layers add")
    kinds = ("f32", "bf16", "f16", "int8", "int4")
    add(
        "--draft-weights", default="int8", choices=kinds, help="as `pcp serve` has them"
    )
    add("--drafted", type=int, default=4, help="tokens for one pass of the model")
    add("--weights", default="f32", choices=kinds)
    add("--tokens", type=int, default=200)
    add("--rounds", type=int, default=3)
    flags = parser.parse_args(argv)
    prompt = np.random.default_rng(0).integers(0, decode.VOCABULARY, PROMPT).tolist()
    with tempfile.TemporaryDirectory() as scratch:
        folders = save_pair(flags.size, Path(scratch), flags.layers, flags.scale)
        own = engine(folders[1], ["prefill:2,32", "decode:1"], flags.draft_weights)
        phases = ["prefill:32", f"decode:1,1x{1 + flags.drafted}"]
        fast = engine(folders[0], phases, flags.weights, DraftModel(own))
        plain = engine(folders[0], ["prefill:32", "decode:1"], flags.weights)
        people = {"plain": plain, "drafted": fast}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in people}
        for _ in range(flags.rounds):
            answers = []
            for name, each in people.items():
                cpu, wall = time.process_time(), time.perf_counter()
                answers.append(answer(each, prompt, flags.tokens))
                spent = time.process_time() - cpu, time.perf_counter() - wall
                times[name].append(spent)
            if answers[0] != answers[1]:
                print("the answers differ", file=sys.stderr)
                return 1
        said = fast.describe()["drafts"]
        for each in people.values():
            each.close()
    drafted, right = said["drafted"], said["right"]
    print(f"{flags.size} {flags.weights}, {flags.tokens} tokens alike; drafts of")
    print(f"{flags.drafted} tokens, {right} of {drafted} taken ({right / drafted:.0%})")
    cpu = {name: min(c for c, _ in took) for name, took in times.items()}
    wall = {n: statistics.median(w for _, w in took) for n, took in times.items()}
    for name in people:
        each = 1e3 / flags.tokens
        print(
            f"{name:10}{cpu[name] * each:8.2f} processor ms a token "
            f"({wall[name] * each:.2f} by the clock), "
            f"{cpu['plain'] / cpu[name]:.2f} x plain"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
