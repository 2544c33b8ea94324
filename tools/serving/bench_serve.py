"""`pcp bench serve`: How fast a server of OpenAI's API answers, by concurrency.

Prompts are drawn tokens of an exact length, and an answer never ends early, so equal
flags are equal work. `first` is the time to the first token, `between` that between two
tokens of an answer; both are of the client. With --prefix all prompts of a sweep begin
with the same tokens, which a cache may keep.

pcp bench serve http://127.0.0.1:8000 --concurrency 1 4 16 --json serve.json
"""

import random
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pcp import strict_json
from pcp.errors import RuntimeFault, UsageError
from pcp.serving.client import Client
from pcp.tools.serving.served import add_client_flags, client_of
from pcp.tools.support.command import Parser

PROG = "pcp bench serve"
SHARES = (0.5, 0.9, 0.99)
NAN = float("nan")


def parser() -> Parser:
    """Its flags."""
    parser = Parser.documented(PROG, (__doc__ or "").partition(": ")[2])
    add_client_flags(parser)
    add = parser.add_argument
    add("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    add("--requests", type=int, default=0, metavar="N", help="default: 4 a client")
    add("--input", type=int, default=64, metavar="N", help="tokens of a prompt")
    add("--output", type=int, default=32, metavar="N", help="tokens of an answer")
    add("--prefix", type=int, default=0, metavar="N", help="of them the same for all")
    add("--vocabulary", type=int, default=256, metavar="N", help="tokens to draw from")
    add("--warmup", type=int, default=1, metavar="N", help="requests that do not count")
    add("--json", type=Path, metavar="FILE", help="the rows")
    return parser


def run_sweep(argv: Sequence[str]) -> int:
    """Print a row for each concurrency; 1 if no request of one was answered."""
    flags = parser().parse_args(argv)
    if min(flags.concurrency) < 1 or flags.input < 1 or flags.output < 1:
        raise UsageError("--concurrency, --input and --output are at least 1")
    if not 0 <= flags.prefix <= flags.input:
        raise UsageError("--prefix is at most --input")
    client = client_of(flags)
    for number in range(flags.warmup):
        _ask(client, _request(flags, -1 - number))
    rows = []
    print(_heading())
    for concurrency in flags.concurrency:
        rows.append(_sweep(client, flags, concurrency))
        print(_line(rows[-1]), flush=True)
    if flags.json:
        settings = {key: getattr(flags, key) for key in ("input", "output", "prefix")}
        text = strict_json.dumps(
            {**settings, "url": client.url, "rows": rows}, indent=1
        )
        flags.json.write_text(text + "\n")
    return 0 if all(row["answered"] for row in rows) else 1


@dataclass
class _Times:
    """Seconds of the answers of a sweep."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, came: Sequence[float]) -> None:
        """An answer: when it was asked for, then when each token came."""
        gaps = [b - a for a, b in pairwise(came)]
        with self.lock:
            self.first.append(gaps[0])
            self.between += gaps[1:]
            self.whole.append(came[-1] - came[0])


def _sweep(client: Client, flags: Namespace, concurrency: int) -> dict[str, Any]:
    """So many clients, each with one request at a time."""
    times = _Times()
    numbers = iter(range(flags.requests or 4 * concurrency))

    def work() -> None:
        while (number := _next(numbers, times.lock)) is not None:
            try:
                times.add(_ask(client, _request(flags, number)))
            except RuntimeFault as error:
                with times.lock:
                    times.failed.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    tokens = len(times.first) + len(times.between)
    row: dict[str, Any] = {
        "concurrency": concurrency,
        "answered": len(times.whole),
        "failed": len(times.failed),
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
    }
    if times.failed:
        row["failure"] = times.failed[0]
    for name in ("first", "between", "whole"):
        row[f"{name}_ms"] = percentiles(getattr(times, name))
    return row


def _next(numbers: Iterator[int], lock: threading.Lock) -> int | None:
    with lock:
        return next(numbers, None)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds that so many percent are not above; NaN of nothing."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        f"p{100 * share:g}": ordered[round(share * last)] * 1e3 if ordered else NAN
        for share in SHARES
    }


def _request(flags: Namespace, number: int) -> dict[str, Any]:
    """A request that follows from its number."""
    drawn = random.Random(number)
    same = random.Random(flags.input)
    prefix = [same.randrange(1, flags.vocabulary) for _ in range(flags.prefix)]
    rest = range(flags.input - flags.prefix)
    prompt = prefix + [drawn.randrange(1, flags.vocabulary) for _ in rest]
    return {
        "model": flags.model,
        "prompt": prompt,
        "max_tokens": flags.output,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 0,  # a chunk for every token, also one that is no text yet
    }


def _ask(client: Client, request: Mapping[str, Any]) -> list[float]:
    """When a request was sent, then when each token came."""
    came = [time.perf_counter()]
    for chunk in client.stream("/v1/completions", request):
        for choice in chunk["choices"]:
            tokens = (choice.get("logprobs") or {}).get("tokens", ())
            came += [time.perf_counter()] * len(tokens)
    if len(came) == 1:
        raise RuntimeFault("an answer without tokens")
    return came


def _heading() -> str:
    names = ("clients", "answered", "failed", "tokens/s")
    shares = [f"{n} p{100 * s:g}" for n in ("first", "between") for s in SHARES]
    return "".join(f"{name:>13}" for name in (*names, *shares)) + "  ms"


def _line(row: Mapping[str, Any]) -> str:
    values = [row["concurrency"], row["answered"], row["failed"]]
    times = [*row["first_ms"].values(), *row["between_ms"].values()]
    text = "".join(f"{value:>13}" for value in values)
    return text + "".join(f"{v:>13.1f}" for v in (row["tokens_per_second"], *times))
