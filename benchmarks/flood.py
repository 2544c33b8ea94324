"""How a run goes on while strangers flood its shepherd.

    python benchmarks/flood.py --seconds 20

A shepherd, a process of its own, and two workers, whose steps take 20 ms of waiting, so
that on a machine with few processors the strangers take time from the shepherd alone.
Rounds are counted for so long in peace, then while three strangers send status queries
as fast as they can, over as many connections as the shepherd lets them have, and 2,000
connections are open, of which each says nothing or one word. What is printed: the
rounds' pace beside that in peace, and by how much the shepherd's memory grew. Without
a peer: PCCL's and c10d's servers take no strangers into account.
"""

import argparse
import multiprocessing
import resource
import socket
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.servers.processes import Process, free_port
from helpers.worlds.training_runs import start_worker

from pcp.errors import PcpError
from pcp.training.observe import metrics
from pcp.training.wire.channel import connect
from pcp.training.wire.operator_messages import StatusQuery

STRANGERS = 3
STEP_SECONDS = 0.02


def main() -> None:
    """Print the pace and the memory, in peace and under the flood."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--connections", type=int, default=2000)
    flags = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        port = free_port()
        keys = '{"outer_loop_steps": 100000, "max_epochs": 1000000}'
        module = "helpers.worlds.shepherd_process"
        shepherd = Process(module, folder, port, 2, keys)
        stack.callback(shepherd.kill)
        for name in "ab":
            start_worker(port, name, STEP_SECONDS)
        run = Path(folder) / "run" / "metrics.jsonl"
        while rounds(run) < 5:
            time.sleep(0.1)
        shown = psutil.Process(shepherd.popen.pid)
        quiet, before = pace(run, flags.seconds), shown.memory_info().rss
        context = multiprocessing.get_context("spawn")
        sent = [context.Value("Q", 0) for _ in range(STRANGERS)]
        for count in sent:
            stranger = context.Process(target=flood, args=(port, count), daemon=True)
            stranger.start()
            stack.callback(stranger.kill)
        idle = context.Process(
            target=crowd, args=(port, flags.connections), daemon=True
        )
        idle.start()
        stack.callback(idle.kill)
        time.sleep(3.0)
        began = sum(count.value for count in sent)
        flooded, peak = pace(run, flags.seconds, shown), _peak
        queries = sum(count.value for count in sent) - began
    print(f"in peace      {quiet:.2f} rounds/s, shepherd {before >> 20} MiB")
    grown = (peak - before) / (1 << 20)
    print(
        f"under flood   {flooded:.2f} rounds/s ({flooded / quiet:.0%}), shepherd "
        f"{grown:+.1f} MiB; {queries / flags.seconds:,.0f} queries/s were taken, "
        f"{flags.connections} connections tried"
    )


_peak = 0


def rounds(path: Path) -> int:
    """Rounds that are committed."""
    return len(metrics.read(path)[0]) if path.exists() else 0


def pace(path: Path, seconds: float, shown: psutil.Process | None = None) -> float:
    """Rounds a second; meanwhile the most memory of a process is noted."""
    global _peak
    began, first = time.monotonic(), rounds(path)
    while time.monotonic() - began < seconds:
        if shown is not None:
            _peak = max(_peak, shown.memory_info().rss)
        time.sleep(0.2)
    return (rounds(path) - first) / (time.monotonic() - began)


def flood(port: int, sent) -> None:
    """Ask for the status as fast as the shepherd takes questions; dial again if cut."""
    while True:
        try:
            line = connect("127.0.0.1", port, 5)
            while True:
                line.send(StatusQuery())
                sent.value += 1
        except (PcpError, OSError):
            time.sleep(0.01)


def crowd(port: int, count: int) -> None:
    """Keep so many connections open: every other one says a word."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    held: list[socket.socket] = []
    while True:
        while len(held) < count:
            with suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), 5))
                if len(held) % 2:
                    held[-1].sendall(b"GET / HTTP/1.0\r\n\r\n")
        kept = []
        for sock in held:
            sock.setblocking(False)
            try:
                over = not sock.recv(1)
            except BlockingIOError:
                over = False
            except OSError:
                over = True
            if over:
                sock.close()
            else:
                kept.append(sock)
        held = kept
        time.sleep(0.1)


if __name__ == "__main__":
    main()
