"""Runs of compiled bundles that are stopped, killed, resumed, and compared.

As a program: a shepherd and its workers in one process, which kills itself when the
checkpoint of a round is on disk, while the next round is under way.
"""

import json
import os
import signal
import sys
from functools import cache
from pathlib import Path

from helpers.models import closed_form
from helpers.worlds.training_cluster import Crew
from helpers.worlds.training_runs import experiment

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse

ROWS, COLUMNS = 20, 15


def text() -> str:
    """The quadratic model of `outer_models`, with a matrix for its first vector."""
    flat, matrix = f"tensor<{ROWS * COLUMNS}xf32>", f"tensor<{ROWS}x{COLUMNS}xf32>"
    reshape = f"  %w = stablehlo.reshape %m : ({matrix}) -> {flat}\n"
    model = closed_form.text("quadratic")
    model = model.replace(f"%w: {flat}", f"%m: {matrix}")
    return model.replace("  %zero =", f"{reshape}  %zero =", 1)


@cache
def bundle(algorithm: str, optimizer: str) -> bytes:
    """A training bundle for this machine, made once in a process."""
    options = CompileOptions(
        targets=("cpu",), mode="train", optimizer=optimizer, algorithm=algorithm
    )
    return driver.compile(parse(text()), options).to_bytes()


def keys(**changed) -> dict:
    """Of an experiment on it, whose data last for two epochs and a half.

    Its bits depend on who takes part in each round: nobody is lost for being slow.
    """
    return {
        "vocabulary_size": 128,
        "tau": 2,
        "checkpoint_every": 2,
        "outer_loop_steps": 5,
        "effective_batch_size": 2 * closed_form.BATCH,
        "heartbeat_limit_seconds": 6.0,
        "seed": 7,
    } | changed


def main(folder: str, content: str, workers: str, at: str, given: str) -> None:
    """Run in `folder`/run until the checkpoint of round `at` is on disk."""

    def log(line: str) -> None:
        print(line, flush=True)
        if line.startswith(f"checkpoint of round {at} in"):
            os.kill(os.getpid(), signal.SIGKILL)

    exp = experiment(Path(folder), **json.loads(given))
    code = Path(content).read_bytes()
    Crew(exp, Path(folder) / "run", code, int(workers), log=log).run.join(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
