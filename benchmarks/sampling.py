"""What drawing a token costs beside the model's step: by the program, and by numpy.

    python benchmarks/sampling.py                       # 40 M parameters, 32,000 tokens
    python benchmarks/sampling.py --vocabulary 128256 --slots 1 8

A random Llama on one thread. Each way of sampling has ticks of all slots, by the
program's functions and by numpy from its logits, in turns; both must give the same
tokens. A figure is the least processor ms of a tick over all rounds; `step` is the
program's function alone. `--peak` is how steep the logits are: the largest of a random
model's are hardly more probable than others, and a trained one's are.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import decode
import numpy as np

from pcp.serving.cached_model import Call
from pcp.serving.frames import Order
from pcp.serving.interface import Chunk, Sampling, Step, Tick
from pcp.tools.serving.decoder_bundle import compile_folder
from pcp.tools.serving.decoder_engine import of_bundle
from pcp.tools.support.cache_folder import cache_folder

PROMPT, STEPS = 16, 12
WAYS = {
    "greedy": Sampling(),
    "temperature 0.8": Sampling(temperature=0.8, seed=5),
    "with top_p 0.9": Sampling(temperature=0.8, top_p=0.9, seed=5),
    "with top_k 20": Sampling(temperature=0.8, top_k=20, seed=5),
    "with both": Sampling(temperature=0.7, top_k=20, top_p=0.8, seed=5),
    "penalties": Sampling(
        temperature=0.8, seed=5, repetition_penalty=1.1, presence_penalty=0.5
    ),
    "a bias, greedy": Sampling(logit_bias={7: 2.0, 50: -100.0}),
    "20 logprobs": Sampling(temperature=0.8, seed=5, top_logprobs=20),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each number of slots."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=decode.SIZES, default="40M")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--slots", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peak", type=float, default=3.0)
    flags = parser.parse_args(argv)
    decode.VOCABULARY = flags.vocabulary
    with tempfile.TemporaryDirectory() as scratch:
        decode.save(flags.size, Path(scratch))
        _peaked(Path(scratch), flags.peak)
        for slots in flags.slots:
            print(f"{flags.size}, {flags.vocabulary} tokens, {slots} slots: ms a tick")
            _table(Path(scratch), slots, flags.rounds)


def _peaked(folder: Path, by: float) -> None:
    """Make the last norm's weights, and so the logits, so many times as large."""
    from safetensors.numpy import load_file, save_file

    values = load_file(folder / "model.safetensors")
    values["model.norm.weight"] = values["model.norm.weight"] * np.float32(by)
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})


def _table(folder: Path, slots: int, rounds: int) -> None:
    bundle = compile_folder(
        folder,
        [f"prefill:{PROMPT}", f"decode:{slots}"],
        PROMPT + STEPS,
        sampler=True,
        targets=["cpu:host"],
        cache=cache_folder(),
    )
    engine = of_bundle(bundle, folder, slots=slots, device="local-sync")
    shapes = {True: engine._slots._shapes}
    shapes[False] = replace(shapes[True], sampled=frozenset())
    step = min(_step(engine, slots) for _ in range(rounds * STEPS))
    print(f"  step {step:.2f}")
    for name, sampling in WAYS.items():
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            made = {}
            for own in (True, False):
                engine._slots._shapes = shapes[own]
                made[own], took = _ticks(engine, slots, sampling)
                times[own] += took
            if made[True] != made[False]:
                raise SystemExit(f"{name}: the program draws other tokens than numpy")
        ours, numpys = (min(times[own]) for own in (True, False))
        print(
            f"  {name:16} program {ours:7.2f}   numpy {numpys:7.2f}   "
            f"ratio {ours / numpys:.2f}   numpy beside the step "
            f"{(numpys - step) / step:.0%}"
        )
    engine.close()


def _step(engine: Any, slots: int) -> float:
    executor = engine._executor
    many = range(slots)
    call = Call(executor.shapes.decode[0], tuple(many), (1,) * slots, (PROMPT,) * slots)
    began = time.process_time()
    executor.carry_out(Order(calls=(replace(call, wanted=False),)))
    return 1e3 * (time.process_time() - began)


def _ticks(
    engine: Any, slots: int, sampling: Sampling
) -> tuple[list[list[int]], list[float]]:
    """The tokens of all slots, and the ms of each tick."""
    engine.recover()
    ways = [replace(sampling, seed=sampling.seed + slot) for slot in range(slots)]
    prompts = np.random.default_rng(0).integers(0, decode.VOCABULARY, (slots, PROMPT))
    made = [
        [engine.tick(Tick((Chunk(s, tuple(p), 0, True, s, ways[s]),)))[0].token]
        for s, p in enumerate(prompts.tolist())
    ]
    times = []
    for position in range(PROMPT, PROMPT + STEPS - 1):
        steps = [Step(s, made[s][-1], position, s, ways[s]) for s in range(slots)]
        began = time.process_time()
        found = engine.tick(Tick(steps=tuple(steps)))
        times.append(1e3 * (time.process_time() - began))
        for slot, sampled in enumerate(found):
            made[slot].append(sampled.token)
    return made, times


if __name__ == "__main__":
    main()
