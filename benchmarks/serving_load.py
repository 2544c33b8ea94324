"""A thousand requests of two hundred clients: who fails, who waits, what is left over?

    python benchmarks/serving_load.py
    python benchmarks/serving_load.py --size 40M --slots 8 --clients 50

A random Llama is served by `pcp serve`, a process of its own. After a first hundred
requests its resident memory is noted at every hundredth. Fails if a request does, or
if the memory grows by more than 5 MB from there on.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import decode
import numpy as np
from served_gateway import write_tokenizer

from pcp.errors import RuntimeFault
from pcp.serving.client import Client

WAIT, MOST = 300.0, 5e6


def start(folder: Path, slots: int, clients: int) -> tuple[subprocess.Popen[str], str]:
    """The server, ready, and where it is."""
    command = [sys.executable, "-m", "pcp.tools.cli", "serve", str(folder)]
    command += ["--port", "0", "--slots", str(slots), "--queue", str(clients)]
    command += ["--context", str(decode.CONTEXT), "--deadline", str(WAIT)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None, "a pipe"
    url = next(w.split()[2] for w in process.stdout if w.startswith("serving at "))
    threading.Thread(target=process.stdout.read, daemon=True).start()
    until = time.monotonic() + WAIT
    while time.monotonic() < until and process.poll() is None:
        try:
            if Client(url).get("/ready") == {"status": "ready"}:
                return process, url
        except RuntimeFault:
            time.sleep(0.1)
    raise SystemExit("the server did not get ready")


def resident(pid: int) -> int:
    """Bytes of memory that a process has in use."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(found) * 1024


class Load:
    """Clients that ask one after the other, until all requests were made."""

    def __init__(self, url: str, pid: int, count: int) -> None:
        self.url, self.pid = url, pid
        self.left, self.failed = count, list[str]()
        self.took, self.memory = list[float](), list[int]()
        self._lock = threading.Lock()

    def run(self, clients: int) -> None:
        """All of them."""
        threads = [threading.Thread(target=self._client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self) -> None:
        client = Client(self.url)
        while True:
            with self._lock:
                if not self.left:
                    return
                self.left -= 1
                number = self.left
            prompt = np.random.default_rng(number).integers(2, 1000, 24).tolist()
            asked = {"prompt": prompt, "max_tokens": 8, "seed": number}
            began = time.perf_counter()
            try:
                reply = client.post("/v1/completions", {**asked, "ignore_eos": True})
                made = reply["usage"]["completion_tokens"]
                why = "" if made == 8 else f"{made} tokens"
            except RuntimeFault as fault:
                why = str(fault)
            with self._lock:
                self.took.append(time.perf_counter() - began)
                self.failed += [why] if why else []
                if len(self.took) % 100 == 0:
                    self.memory.append(resident(self.pid))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where something failed or grew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=decode.SIZES, default="15M")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=1000)
    flags = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        decode.save(flags.size, folder)
        write_tokenizer(folder, decode.VOCABULARY)
        process, url = start(folder, flags.slots, flags.clients)
        load = Load(url, process.pid, flags.requests)
        began = time.perf_counter()
        try:
            load.run(flags.clients)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(WAIT)
    seconds = time.perf_counter() - began
    print(f"{len(load.took)} requests of {flags.clients} clients on", end=" ")
    print(f"{flags.slots} slots in {seconds:.1f} s; {len(load.failed)} failed")
    shares = np.percentile(load.took, [50, 90, 99, 100])
    named = zip(("median", "90 %", "99 %", "longest"), shares, strict=True)
    print("seconds: " + ", ".join(f"{name} {value:.2f}" for name, value in named))
    grown = load.memory[-1] - load.memory[0]
    print(f"memory from {load.memory[0] / 1e6:.0f} to {load.memory[-1] / 1e6:.0f} MB")
    for why in dict.fromkeys(load.failed):
        print(why, file=sys.stderr)
    return int(bool(load.failed) or grown > MOST)


if __name__ == "__main__":
    sys.exit(main())
