"""A process that is one of a run's shepherds, whose workers train a small bigram.

standby_shepherd FOLDER ADDRESS,ADDRESS,ADDRESS NUMBER PORT ROUNDS
standby_shepherd FOLDER http://ETCD/NAME NUMBER PORT ROUNDS
"""

import sys
from pathlib import Path

from helpers.models.bigram_numpy import bundle
from helpers.worlds.training_runs import Watcher, experiment

from pcp.training.shepherd.etcd import place
from pcp.training.shepherd.etcd_elector import EtcdElector
from pcp.training.shepherd.leading import led
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.shepherd.voters import Voters
from pcp.training.storage.run_folder import RunFolder
from pcp.training.wire.channel import OPEN


def main(folder: str, where: str, number: str, port: str, rounds: str) -> None:
    """Stand by and lead, until the run is over."""
    own = Path(folder)
    own.mkdir(parents=True, exist_ok=True)
    keys = {"outer_loop_steps": int(rounds), "max_epochs": 100}  # enough data for all
    exp = experiment(own.parent, checkpoint_every=10**6, **keys)
    run = RunFolder.at(own / "run", exp)

    def log(text: str) -> None:
        print(text, flush=True)

    def make(compile_for, elector) -> Shepherd:
        watcher = Watcher(log)
        return Shepherd(
            exp, run, compile_for, watcher, port=int(port), workers=2, elector=elector
        )

    elector = (
        EtcdElector(place(where), number, run.ledger, log)
        if where.startswith("http")
        else Voters(where.split(","), int(number), OPEN, run.ledger, log)
    )
    ended = led(make, elector, lambda target: bundle(), log, Shepherd.run)
    print("complete" if ended else "over", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
