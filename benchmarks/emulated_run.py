"""A training run whose workers live in network namespaces, far from one another.

What `simulation` and `wan_training` share: the model, its bundle, and a run of
`pcp shepherd` and `pcp worker` processes over the emulated network of `wan`. Needs
root, ip(8) and /dev/net/tun.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "models"))

from wan import Network, address, before_others, end, namespace

from pcp.bundle import Bundle
from pcp.tools.support.cache_folder import cache_folder
from pcp.training.observe import metrics

PORT = 8080


@dataclass(frozen=True)
class Net:
    """Bits a second of each member each way, seconds, a probability."""

    rate: float
    rtt: float
    loss: float = 0.0


def program(width: int, layers: int, block: int, batch: int) -> Any:
    """The loss of a GPT of bytes, with its first parameters."""
    import torch
    from nanogpt_small import GPT

    import pcp

    torch.manual_seed(0)
    model = GPT(block, 256, width, 4, layers)
    ids = torch.zeros((batch, block), dtype=torch.int64)
    return pcp.from_torch(model, ids, ids)


def bundle(width: int, layers: int, block: int, batch: int, algorithm: str) -> Bundle:
    """A GPT of bytes for this processor, with AdamW and an outer algorithm."""
    import pcp

    return pcp.compile(
        program(width, layers, block, batch),
        ["cpu:host"],
        mode="train",
        optimizer="adamw{lr=1e-3}",
        algorithm=algorithm,
        cache=cache_folder(),
    )


def experiment(folder: Path, code: Bundle, **keys: Any) -> dict[str, Any]:
    """An experiment on this bundle, without validation and checkpoints on the way."""
    path = folder / "model.pcp"
    code.write(path)
    return {
        "model_path": str(path),
        "data_path": "builtin:python-docs",
        "tokenizer": "byte",
        "learning_rate": 1e-3,
        "max_epochs": 1000,
        "validation_fraction": 0.0,
        "checkpoint_every": 1_000_000,
        "checkpoint_dir": str(folder),
        "round_timeout_seconds": 120.0,
        "heartbeat_limit_seconds": 60.0,
        **keys,
    }


def train(
    values: dict[str, Any], workers: int, net: Net, limit: float
) -> list[metrics.Round]:
    """Train in `workers` namespaces; the committed rounds.

    The shepherd lives with the first worker. `RuntimeError` after `limit` seconds,
    or when a process failed.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spaces = [
            stack.enter_context(namespace(rank, False)) for rank in range(workers)
        ]
        names = [name for name, _ in spaces]
        network = Network([tun for _, tun in spaces], net.rate, net.rtt, net.loss)
        config, run = folder / "x.json", folder / "run"
        config.write_text(json.dumps(values))
        log = stack.enter_context(open(folder / "log", "ab"))

        def start(space: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = ["ip", "netns", "exec", space, sys.executable]
            command += ["-m", "pcp.tools.cli", *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(end, process)
            return process

        shepherd = ["shepherd", "--config", str(config), "--host", address(0)]
        shepherd += ["--port", str(PORT), "--run", str(run), "--web", "off"]
        shepherd += ["--workers", str(workers), "--no-dashboard"]
        processes = [start(names[0], *shepherd)]
        for rank, name in enumerate(names):
            worker = ["worker", "--connect", f"{address(0)}:{PORT}", "--target"]
            worker += ["cpu:host", "--device", "local-sync", "--name", f"w{rank}"]
            processes.append(start(name, *worker))
        until = time.monotonic() + limit
        with hurried():
            network.run(
                lambda: (
                    time.monotonic() > until
                    or processes[0].poll() is not None
                    or any(process.poll() for process in processes)
                )
            )
        if processes[0].poll() != 0:
            lines = (folder / "log").read_text().splitlines()[-15:]
            raise RuntimeError("\n".join(["the run did not end well:", *lines]))
        return metrics.read(run / "metrics.jsonl")[0]


@contextmanager
def hurried() -> Iterator[None]:
    """In this block the scheduler prefers this process, which is the network."""
    before_others(5)
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
