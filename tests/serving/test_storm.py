"""Ranks that die while clients listen: the same tokens, later."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.present import present
from helpers.serving.small_llama import save

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("tokenizers", reason="the extra serve is not installed")

from helpers.serving.live import Live, live

from pcp.serving.client import Client
from pcp.serving.interface import Engine
from pcp.tools.serving.decoder_bundle import compile_folder
from pcp.tools.serving.decoder_engine import of_bundle, phases
from pcp.tools.support.cache_folder import cache_folder

STREAMS = 16
SECONDS, EVERY, PATIENCE = 60.0, 5.0, 300.0
CONTEXT, LENGTH = 512, 150


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


def stream(server: Live, number: int, gaps: list[float]) -> list[str]:
    """The tokens of an answer; the longest time without one goes to `gaps`."""
    tokens: list[str] = []
    newest, longest = time.monotonic(), 0.0
    client = Client(server.url, seconds=PATIENCE)
    for chunk in client.stream("/v1/completions", asked(number)):
        for choice in chunk["choices"]:
            tokens += (choice["logprobs"] or {}).get("tokens", ())
        longest = max(longest, time.monotonic() - newest)
        newest = time.monotonic()
    gaps.append(longest)
    return tokens


def each(work: Callable[[int], object]) -> None:
    """Do it for all streams at once."""
    threads = [threading.Thread(target=work, args=(n,)) for n in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)


def recovered(server: Live) -> int:
    """How often the engine was made ready again."""
    return present(server.gateway.driver.scheduler).recoveries


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_storm(tmp_path: Path) -> None:
    """Sixteen streams, and a rank killed every five seconds for a minute."""
    save(tmp_path, positions=CONTEXT)
    made: list[Engine] = []

    def spread() -> Engine:
        wanted = phases(STREAMS, CONTEXT)
        cache = cache_folder()
        bundle = compile_folder(tmp_path, wanted, CONTEXT, ranks=2, cache=cache)
        made.append(of_bundle(bundle, tmp_path, slots=STREAMS, log=print))
        return made[0]

    with live(tmp_path, spread, wait=False) as server:
        server.wait_until(lambda: server.gateway.ready, 600.0)
        # Undisturbed, side by side.
        calm: list[float] = []
        wanted: dict[int, list[str]] = {}
        each(lambda n: wanted.update({n: stream(server, n, calm)}))
        assert {len(tokens) for tokens in wanted.values()} == {LENGTH}
        print("now the storm")
        until, deaths = time.monotonic() + SECONDS, 0
        gaps: list[float] = []
        wrong: list[str] = []
        answers = [0] * STREAMS

        def listen(number: int) -> None:
            try:
                while time.monotonic() < until:
                    if stream(server, number, gaps) != wanted[number]:
                        wrong.append(f"request {number} has other tokens")
                    answers[number] += 1
            except Exception as error:
                wrong.append(f"request {number}: {error}")

        storm = threading.Thread(target=each, args=(listen,))
        storm.start()
        while time.monotonic() < until:
            time.sleep(EVERY)
            with suppress(ProcessLookupError):
                os.kill(made[0].describe()["ranks"][1]["pid"], signal.SIGKILL)
                deaths += 1
            # A busy machine takes its time to start a process.
            server.wait_until(lambda n=deaths: recovered(server) >= n, PATIENCE)
        storm.join(PATIENCE)
        print(f"{sum(answers)} answers, {deaths} deaths")
        print(f"longest pause {max(gaps):.2f} s; calm {max(calm):.2f} s")
        assert not wrong
        assert min(answers) >= 1
        assert deaths >= 3
