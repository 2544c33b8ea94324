"""Training over an emulated wide-area network: how much of the time is computed?

    python benchmarks/wan_training.py [--rate 50e6] [--rtt 0.1] [--loss 0.005]
                                      [--only ddp diloco ...] [--batches 4]

Four members in network namespaces of their own train a GPT of about 1 M parameters
with the shepherd and workers of any run, 30 inner steps a round (ddp 5). Prints, by
algorithm, the seconds of an inner step and of a round's inner steps (of the slowest
worker), what the network adds to them, what a worker sent, and the share of a round
that is computed; then that share for machines of other speeds. Rounds before the third
are not counted. Needs root.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emulated_run import Net, bundle, experiment, train
from wan import can_emulate

from pcp.training.storage.round_record import Round

WORKERS, STEPS = 4, 30
WIDTH, LAYERS, BLOCK, BATCH = 128, 5, 64, 8
SKIPPED = 2
"""Rounds in which connections are made and their windows opened."""


@dataclass(frozen=True)
class Contestant:
    """An algorithm, inner steps of its rounds, and how many rounds are made."""

    algorithm: str
    steps: int = STEPS
    rounds: int = 6


CONTESTANTS = {
    # It meets in every step, so that few steps say as much.
    "ddp": Contestant("ddp", steps=5),
    "diloco": Contestant("diloco{lr=0.7,momentum=0.9}"),
    "streaming, 4 bits": Contestant(
        "streaming_diloco{fragments=3,tau=5,alpha=0.5,wire=e3m0}"
    ),
    "muloco, 2 bits": Contestant("muloco{wire=2bit}"),
    "async_diloco": Contestant("async_diloco{lr=0.7}"),
}


def measured(contestant: Contestant, net: Net, batches: int) -> list[Round]:
    """The rounds of one run."""
    with tempfile.TemporaryDirectory(prefix="pcp-wan-training-") as name:
        code = bundle(WIDTH, LAYERS, BLOCK, BATCH, contestant.algorithm)
        values = experiment(
            Path(name),
            code,
            algorithm=contestant.algorithm,
            tau=contestant.steps,
            outer_loop_steps=contestant.rounds,
            effective_batch_size=batches * BATCH,
        )
        return train(values, WORKERS, net, limit=600)[SKIPPED:]


def line(name: str, steps: int, rounds: Sequence[Round]) -> str:
    """A row of the table: medians over rounds."""
    compute = statistics.median(r.compute_seconds for r in rounds)
    network = statistics.median(r.seconds - r.compute_seconds for r in rounds)
    busy = statistics.median(r.compute_seconds / r.seconds for r in rounds)
    sent = statistics.median(r.bytes_sent_per_worker for r in rounds)
    cells = [name, f"{steps}", f"{compute / steps:.2f} s", f"{compute:.1f} s"]
    cells += [f"{network:.2f} s", f"{sent / 1e6:.2f} MB", f"{busy:.0%}"]
    for step in STEP_SECONDS:
        # What is sent beside the inner steps costs no less than what was measured.
        cells.append(f"{step * steps / (step * steps + network):.0%}")
    return f"| {' | '.join(cells)} |"


STEP_SECONDS = (0.25, 0.5, 1.0)
"""Of other machines: what they would compute, with the network that was measured."""
HEAD = """\
| algorithm | steps a round | inner step | inner steps | network | sent by a worker \
| computes | at 0.25 s a step | at 0.5 s | at 1 s |
|---|---|---|---|---|---|---|---|---|---|"""


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--rate", type=float, default=50e6, help="bits a second of a member, each way")
    add("--rtt", type=float, default=0.1, help="seconds")
    add("--loss", type=float, default=0.005, help="probability of a packet's loss")
    add("--only", nargs="+", default=list(CONTESTANTS), choices=list(CONTESTANTS))
    add("--batches", type=int, default=4, help=f"of {BATCH} samples, in an inner step")
    options = parser.parse_args(arguments)
    if not can_emulate():
        print("skipped: needs root, ip(8) and /dev/net/tun")
        return 0
    net = Net(options.rate, options.rtt, options.loss)
    print(
        f"{WORKERS} workers, {net}, {options.batches * BATCH} x {BLOCK} tokens a step"
    )
    print(HEAD, flush=True)
    for name in options.only:
        contestant = CONTESTANTS[name]
        rounds = measured(contestant, net, options.batches)
        print(line(name, contestant.steps, rounds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
