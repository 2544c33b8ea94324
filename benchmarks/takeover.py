"""How long a run has no leader when the one it has dies, with its folder.

    python benchmarks/takeover.py --kills 20

Three shepherds and two workers on this machine; a leader is killed, its folder removed,
and the time taken until another commits a round. Then a shepherd with nothing
comes in its place. Without a peer to compare with: no other trainer here has several
coordinators. The rounds of the run take about 50 ms.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.servers.processes import Processes
from helpers.worlds.standby import Standby

from pcp.training.storage.ledger import check


def main() -> None:
    """Print the seconds of each take-over, and of all together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    kills = parser.parse_args().kills
    with tempfile.TemporaryDirectory() as folder, Processes() as children:
        run = Standby(Path(folder), children, 10**6)
        took = []
        for number in range(kills):
            took.append(run.strike())
            print(f"{number + 1:>3}  {took[-1]:.2f} s", flush=True)
        whole = max(range(3), key=lambda number: len(run.records(number)))
        records = run.records(whole)
        report = check(run.ledger(whole))
    commits = [r["round"] for r in records if r["kind"] == "commit"]
    assert commits == list(range(1, len(commits) + 1)), "a round is lost"
    assert not any(r["kind"] == "rewind" for r in records), "the run went back"
    took.sort()
    high = took[max(0, -(-95 * len(took) // 100) - 1)]
    print(f"rounds {report.rounds}, none lost; rewinds 0; leaders killed {kills}")
    print(
        f"take-over: median {statistics.median(took):.2f} s, p95 {high:.2f} s, "
        f"longest {took[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()
