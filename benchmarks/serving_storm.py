"""Ranks die while clients listen: how long a stream pauses, and whether it is right.

    python benchmarks/serving_storm.py DIR [--seconds 60] [--every 5] [--spares 1]
                                       [--swap 7]

DIR is a model's folder with its tokenizer. Its program is spread over --ranks
processes. Each of --streams clients asks for one answer undisturbed, then for the same
one again and again, while every --every seconds a rank is killed (SIGKILL), and with
--swap every so many seconds the same weights are read anew and exchanged for the old.
An answer under way at the end is waited for. Prints the answers, the deaths, and the
longest and the median of the longest time that a stream had no token around a death;
the exit code is 1 if an answer differs from the undisturbed one by a token, more or
less or other.
"""

import argparse
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from served_gateway import Served

from pcp.serving.client import Client
from pcp.serving.interface import Engine
from pcp.tools.serving.decoder_bundle import compile_folder
from pcp.tools.serving.decoder_engine import of_bundle, phases
from pcp.tools.support.cache_folder import cache_folder

CONTEXT, LENGTH = 512, 150
_PATIENCE = 300.0


@dataclass
class Storm:
    """What came of it; times are in seconds."""

    calm: float = 0.0
    """The longest time without a token while nobody died."""
    answers: int = 0
    deaths: int = 0
    swaps: int = 0
    pauses: list[float] = field(default_factory=list)
    """Of each death, the longest time without a token of a stream around it."""
    wrong: list[str] = field(default_factory=list)

    @property
    def longest(self) -> float:
        """The longest pause; 0 without a death."""
        return max(self.pauses, default=0.0)


def asked(number: int) -> dict[str, Any]:
    """A request: half of them greedy, half of them drawn."""
    prompt = [2 + (number * 31 + i * 7) % 300 for i in range(3 + 4 * number)]
    return {
        "prompt": prompt,
        "max_tokens": LENGTH,
        "temperature": 0.0 if number % 2 else 0.9,
        "seed": number,
        "logprobs": 0,
        "ignore_eos": True,
    }


Gap = tuple[float, float]
"""From when to when a stream had no token."""


def stream(url: str, number: int) -> tuple[list[str], list[Gap]]:
    """The tokens of an answer, and the times between them, the first one's too."""
    tokens: list[str] = []
    gaps: list[Gap] = []
    newest = time.monotonic()
    client = Client(url, seconds=_PATIENCE)
    for chunk in client.stream("/v1/completions", asked(number)):
        for choice in chunk["choices"]:
            tokens += (choice["logprobs"] or {}).get("tokens", ())
        now = time.monotonic()
        gaps.append((newest, now))
        newest = now
    return tokens, gaps


def storm(
    folder: Path,
    *,
    streams: int = 16,
    ranks: int = 2,
    spares: int = 1,
    seconds: float = 60.0,
    every: float = 5.0,
    swap: float = 0.0,
    log: Callable[[str], None] = print,
) -> Storm:
    """Serve the model of a folder, and kill its ranks."""
    wanted = phases(streams, CONTEXT)
    cache = cache_folder()
    how = {"mesh": {"tp": ranks}, "cache": cache, "sampler": True}
    bundle = compile_folder(folder, wanted, CONTEXT, **how)
    engine = of_bundle(bundle, folder, slots=streams, spares=spares, log=log)
    served = Served(folder, engine)
    with served as client:
        run = _Run(client.url, engine, streams)
        if swap:
            run.swap_every(swap, lambda: served.gateway.swap(str(folder)))
        return run.run(seconds, every)


class _Run:
    def __init__(self, url: str, engine: Engine, streams: int) -> None:
        self._url, self._engine, self._streams = url, engine, streams
        self._found = Storm()
        self._gaps: list[Gap] = []
        self._lock = threading.Lock()
        self._swap: tuple[float, Callable[[], object]] = (0.0, lambda: None)

    def swap_every(self, seconds: float, swap: Callable[[], object]) -> None:
        """Beside the deaths."""
        self._swap = seconds, swap

    def run(self, seconds: float, every: float) -> Storm:
        calm: dict[int, tuple[list[str], list[Gap]]] = {}
        self._each(lambda n: calm.update({n: stream(self._url, n)}))
        wanted = {n: tokens for n, (tokens, _) in calm.items()}
        short = [n for n in range(self._streams) if len(wanted.get(n, ())) != LENGTH]
        if short:
            raise RuntimeError(f"undisturbed, {short} had no whole answer")
        self._found.calm = max(b - a for _, gaps in calm.values() for a, b in gaps)
        until = time.monotonic() + seconds
        listening = threading.Thread(
            target=self._each, args=(lambda n: self._listen(n, wanted[n], until),)
        )
        listening.start()
        swapping = threading.Thread(target=self._exchange, args=(until,))
        swapping.start()
        deaths = []
        while time.monotonic() + every < until:
            time.sleep(every)
            deaths += [time.monotonic()] if self._kill(len(deaths)) else []
        listening.join()
        swapping.join()
        self._found.deaths = len(deaths)
        self._found.pauses = [self._pause(at, every) for at in deaths]
        return self._found

    def _listen(self, number: int, wanted: list[str], until: float) -> None:
        try:
            while time.monotonic() < until:
                tokens, gaps = stream(self._url, number)
                with self._lock:
                    self._gaps += gaps
                    self._found.answers += 1
                    if tokens != wanted:
                        self._found.wrong.append(f"request {number} has other tokens")
        except Exception as error:
            with self._lock:
                self._found.wrong.append(f"request {number}: {error!r}")

    def _exchange(self, until: float) -> None:
        every, swap = self._swap
        while every and time.monotonic() + every < until:
            time.sleep(every)
            try:
                swap()
                self._found.swaps += 1
            except Exception as error:
                with self._lock:
                    self._found.wrong.append(f"a swap: {error!r}")

    def _kill(self, number: int) -> bool:
        """Kill a rank of the world, each in its turn; whether one died."""
        others = [r for r in self._engine.describe()["ranks"] if "pid" in r]
        if not others:
            return False
        victim = others[number % len(others)]
        with suppress(ProcessLookupError):
            os.kill(victim["pid"], signal.SIGKILL)
            return bool(victim["alive"])
        return False

    def _pause(self, at: float, every: float) -> float:
        """The longest time without a token that began before the next death."""
        around = [b - a for a, b in self._gaps if b > at and a < at + every]
        return max(around, default=0.0)

    def _each(self, work: Callable[[int], object]) -> None:
        """Do it for all streams at once."""
        threads = [
            threading.Thread(target=work, args=(n,)) for n in range(self._streams)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def report(found: Storm) -> str:
    """The lines of a storm."""
    pauses = [*found.pauses, 0.0]
    return (
        f"{found.answers} answers, {len(found.wrong)} wrong, {found.deaths} deaths, "
        f"{found.swaps} swaps\n"
        f"without a token {max(pauses):.2f} s at most, "
        f"{statistics.median(found.pauses or pauses):.2f} s in the median of deaths, "
        f"{found.calm:.2f} s undisturbed"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print what came of it."""
    parser = argparse.ArgumentParser(description="Ranks die while clients listen.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--swap", type=float, default=0.0)
    flags = parser.parse_args(argv)
    found = storm(
        flags.folder,
        streams=flags.streams,
        ranks=flags.ranks,
        spares=flags.spares,
        seconds=flags.seconds,
        every=flags.every,
        swap=flags.swap,
    )
    print(report(found))
    for line in found.wrong:
        print(line)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
