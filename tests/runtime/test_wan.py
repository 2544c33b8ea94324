"""Over an emulated wide network, which needs root: connections, losses, a slow edge.

`benchmarks/wan.py` lays it and checks every sum. What is compared shares the
weather of one run; the network is slow enough for any machine to fill it.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers.repository.sources import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0
        or not os.path.exists("/dev/net/tun")
        or not all(map(shutil.which, ("ip", "setpriv"))),
        reason="network namespaces need root, ip, setpriv and /dev/net/tun",
    ),
]
_LINE = re.compile(r"MiB\s+(\S+)\s+\S+ s\s+\(best (\S+)\)")
_DROPPED = re.compile(r"'loss': (\d+)")


def wan(*options: str) -> tuple[dict[str, float], str]:
    """Each contestant's best seconds, and all that was printed."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "wan.py", "--undisturbed", *options],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {n: float(s) for n, s in _LINE.findall(done.stdout)}, done.stdout


def test_several_connections_carry_what_one_has_no_window_for() -> None:
    """32 MiB over 400 Mbit/s are 0.7 s; with 4 MiB a round trip they are 1.6 s."""
    best, _ = wan(
        *("--without-root", "--rate", "4e8", "--rtt", "0.2", "--sizes", "32"),
        *("--rounds", "2", "--only", "pcp", "pcp/1"),
    )
    assert best["pcp"] < 0.8 * best["pcp/1"]


def test_losses_hardly_slow_it() -> None:
    """8 MiB over 200 Mbit/s are 0.34 s, and the agreement takes 0.15 s."""
    line = ("--rate", "2e8", "--rtt", "0.1", "--sizes", "8", "--rounds", "3")
    found = {}
    # What could be lost, if hardly ever, goes through the network in single packets.
    for chance in ("1e-12", "0.0005"):
        best, said = wan(*line, "--only", "pcp", "--loss", chance)
        lost = _DROPPED.search(said)
        assert lost is not None
        assert (int(lost[1]) > 0) == (chance == "0.0005")
        found[chance] = best["pcp"]
    assert found["0.0005"] < 2 * found["1e-12"]


def test_the_ring_leaves_a_slow_edge() -> None:
    """1.4 MB over the slow edge are 1.1 s; the other way round nobody uses it."""
    best, said = wan(
        *("--world", "3", "--rate", "2e8", "--rtt", "0.02", "--slow", "0:1:20"),
        *("--sizes", "1", "--rounds", "2", "--only", "pcp", "ring"),
    )
    assert "ring 0 > 2 > 1" in said
    assert best["ring"] < best["pcp"] / 2
