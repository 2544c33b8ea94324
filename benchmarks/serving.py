"""What the server costs over its bare engine: tokens a second of one request.

    python benchmarks/serving.py [DIR] [--tokens 200] [--rounds 5] [--ranks 1]

DIR is a model's folder with its tokenizer; left out, a random Llama's. One engine is
used by both, in turns: a loop of ticks, then a client of the HTTP server over loopback,
which streams. Prints the best and the median of each, and server over engine.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import decode
from served_gateway import Served, write_tokenizer

from pcp.serving.client import Client
from pcp.serving.interface import Chunk, Engine, Sampling, Step, Tick
from pcp.tools.serving.decoder_bundle import compile_folder
from pcp.tools.serving.decoder_engine import of_bundle, phases
from pcp.tools.support.cache_folder import cache_folder

PROMPT = tuple(range(2, 18))
GREEDY = Sampling()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print two lines and a ratio."""
    parser = argparse.ArgumentParser(description="The server beside its engine.")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--size", choices=decode.SIZES, default="40M")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    flags = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        if flags.folder is None:
            flags.folder = Path(scratch)
            decode.save(flags.size, flags.folder)
            write_tokenizer(flags.folder, decode.VOCABULARY)
        compared(flags)


def compared(flags: argparse.Namespace) -> None:
    """The server and its engine, of a folder."""
    context = len(PROMPT) + flags.tokens
    bundle = compile_folder(
        flags.folder,
        phases(1, context),
        context,
        mesh={"tp": flags.ranks},
        sampler=True,
        cache=cache_folder(),
    )
    engine = of_bundle(bundle, flags.folder, slots=1)
    with Served(flags.folder, engine) as client:
        rates = measured(engine, client, flags.tokens, flags.rounds)
    for name, found in rates.items():
        best, middle = max(found), statistics.median(found)
        print(f"{name:8}{best:10.1f} best{middle:10.1f} median  tokens/s")
    ratio = max(rates["server"]) / max(rates["engine"])
    print(f"server over engine {ratio:.3f}")


def measured(
    engine: Engine, client: Client, tokens: int, rounds: int
) -> dict[str, list[float]]:
    """Tokens a second behind the first one, by round."""
    rates: dict[str, list[float]] = {"engine": [], "server": []}
    bare(engine, tokens)  # neither first time counts
    served(client, tokens)
    for _ in range(rounds):
        rates["engine"].append(_rate(bare(engine, tokens)))
        rates["server"].append(_rate(served(client, tokens)))
    return rates


def bare(engine: Engine, tokens: int) -> list[float]:
    """When each token came from the engine; no scheduler, no text."""
    (found,) = engine.tick(Tick((Chunk(0, PROMPT, 0, True, 1 << 40, GREEDY),)))
    came = [time.perf_counter()]
    for position in range(len(PROMPT), len(PROMPT) + tokens - 1):
        step = Step(0, found.token, position, 1 << 40, GREEDY)
        (found,) = engine.tick(Tick(steps=(step,)))
        came.append(time.perf_counter())
    return came


def served(client: Client, tokens: int) -> list[float]:
    """When each token came to a client that streams."""
    asked: dict[str, Any] = {"prompt": list(PROMPT), "max_tokens": tokens}
    asked |= {"temperature": 0, "ignore_eos": True, "logprobs": 0}
    came: list[float] = []
    for chunk in client.stream("/v1/completions", asked):
        for choice in chunk["choices"]:
            count = len((choice["logprobs"] or {}).get("tokens", ()))
            came += [time.perf_counter()] * count
    assert len(came) == tokens, f"{len(came)} tokens, not {tokens}"
    return came


def _rate(came: Sequence[float]) -> float:
    return (len(came) - 1) / (came[-1] - came[0])


if __name__ == "__main__":
    main()
