"""Workers that hang, and that lie, when a signal says so; started as `pcp node` does.

python faulty_node.py node --port 8080 --scale 6
kill -USR1 WORKER     its own thread hangs for ever; heartbeats go on
kill -USR2 WORKER     the next state that it prepares is not what it computed
"""

import argparse
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcp.tools.cli import main as pcp
from pcp.tools.commands.supervise import child_command
from pcp.tools.support.lines import stamped
from pcp.tools.support.signals import stop_on_signals
from pcp.training.process.node_manager import NodeManager
from pcp.training.process.supervisor import spawner
from pcp.training.trainer.bundle_trainer import BundleTrainer

LIES = ("zeros", "no numbers", "one bit")
_told = False


def main(words: Sequence[str]) -> int:
    """A node of such workers, or one of them."""
    if words[0] == "worker":
        return worker(words)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", required=True)
    parser.add_argument("--scale", type=int, required=True)
    flags, more = parser.parse_known_args(words[1:])
    here = str(Path(__file__).absolute())

    def command(slot: int) -> list[str]:
        place = ["--connect", f"127.0.0.1:{flags.port}"]
        own = ["--supervisor-id", f"slot-{slot}"]
        python = child_command([])[0]
        return [python, here, "worker", *place, *own, *more]

    manager = NodeManager(flags.scale, command, log=stamped("node"), spawn=spawner())
    stop_on_signals(manager.stop)
    manager.start()
    manager.wait()
    manager.result()
    return 0


def worker(words: Sequence[str]) -> int:
    """`pcp worker`, with two more signals."""
    signal.signal(signal.SIGUSR1, hang)
    signal.signal(signal.SIGUSR2, tell_lies)
    honest: Any = BundleTrainer.outer

    def outer(self: BundleTrainer, weight: float, communicator: Any):
        global _told
        new = honest(self, weight, communicator)
        if not _told:
            return new
        _told = False
        return spoilt(new, random.choice(LIES))

    BundleTrainer.outer = outer
    return pcp(list(words))


def hang(number: int, frame: object) -> None:
    """The thread that computes is this one."""
    while True:
        time.sleep(3600)


def tell_lies(number: int, frame: object) -> None:
    """From the next result on, once."""
    global _told
    _told = True


def spoilt(new: dict[str, np.ndarray], lie: str) -> dict[str, np.ndarray]:
    """Another state than the one that was computed."""
    made = {name: np.array(value) for name, value in new.items()}
    name = max(made, key=lambda name: made[name].nbytes)
    array = made[name]
    if lie == "zeros":
        array[...] = 0
    elif lie == "no numbers":
        array[...] = np.nan
    else:
        # Of a number in the middle, one that rounding does not explain.
        array.view(np.uint32).reshape(-1)[array.size // 2] ^= 1 << 22
    print(f"a lie is told: {lie}", flush=True)
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
