"""A shepherd of `helpers.models.bigram_numpy` workers, as a process to be killed."""

import json
import sys
from pathlib import Path

from helpers.models.bigram_numpy import bundle
from helpers.worlds.training_runs import experiment

from pcp.training.observe.dashboard import PlainLog
from pcp.training.observe.metrics import MetricsFile, ObserverFanout
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.run_folder import RunFolder


def main(folder: str, port: str, workers: str, keys: str) -> None:
    """Run (or continue) the run in `folder`/run on `port`."""
    exp = experiment(Path(folder), **json.loads(keys))
    run = RunFolder.at(Path(folder) / "run", exp)
    lines = PlainLog(exp.outer_loop_steps, lambda line: print(line, flush=True))
    observer = ObserverFanout([MetricsFile(run.metrics), lines])
    shepherd = Shepherd(
        exp,
        run,
        lambda target: bundle(),
        observer,
        port=int(port),
        workers=int(workers),
    )
    try:
        outcome = shepherd.run()
    finally:
        observer.close()
    print(f"outcome {outcome.rounds}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
