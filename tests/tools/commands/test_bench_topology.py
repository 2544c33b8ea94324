"""`pcp bench topology`, as a user calls it, and its picture."""

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest

from pcp.runtime.topology.topology import Profile, Topology
from pcp.tools.commands.bench import main
from pcp.tools.pages.svg import svg
from pcp.tools.pages.topology_plot import OTHER, RING, network


@pytest.mark.slow  # four processes
def test_a_slow_edge_among_processes_is_avoided(tmp_path, capfd) -> None:
    picture, whole = tmp_path / "network.svg", tmp_path / "network.json"
    argv = ["topology", "--world", "3", "--sizes", "1", "--rounds", "2"]
    argv += ["--slow", "0:1:2", "--plot", str(picture), "--json", str(whole)]
    assert main(argv) == 0
    topology = Topology.from_json(whole.read_text())
    assert topology.order == (0, 2, 1)
    assert topology.bandwidth[0, 1] < 4e6
    assert topology.gain > 1.1
    shown = capfd.readouterr().out
    assert "ring 0 > 2 > 1 > 0" in shown
    assert "along this ring" in shown
    assert "late ms" in shown
    ElementTree.fromstring(picture.read_text())


@pytest.mark.parametrize("slow", ["0:1", "0:9:5", "a:b:c", "0:1:0"])
def test_wrong_edges_are_refused(slow: str) -> None:
    assert main(["topology", "--slow", slow]) == 2


@pytest.mark.parametrize("size", [2, 5, 20])
def test_the_picture_shows_members_and_ring(size: int) -> None:
    random = np.random.default_rng(size)
    bandwidth = random.uniform(1e6, 1e9, (size, size))
    order = (0, *(random.permutation(size - 1) + 1).tolist())
    profiles = tuple(Profile(f"a<{rank}>") for rank in range(size))
    topology = Topology(1, profiles, np.zeros((size, size)), bandwidth, order)
    from matplotlib.figure import Figure  # each process collects, and few draw

    axes = Figure().add_subplot()
    network(axes, topology)
    named = [text.get_gid() for text in axes.texts]
    assert named.count(RING) == size
    assert named.count(OTHER) == (size * (size - 1) - size if size <= 16 else 0)
    texts = [text.get_text() for text in axes.texts]
    assert all(f"a<{rank}>" in texts for rank in range(size))
    rates = {f"{bandwidth[a, b] / 1e6:.0f}" for a, b in itertools.pairwise(order)}
    assert rates <= set(texts)
    drawn = svg(lambda axes: network(axes, topology), "test")
    assert drawn == svg(lambda axes: network(axes, topology), "test")
    ElementTree.fromstring(drawn)
