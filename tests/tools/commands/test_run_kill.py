"""A process of `pcp run` is killed: all others end, soon, and say who is gone."""

import json
import random
import signal
import time
from pathlib import Path

import pytest
from helpers.servers.processes import Process

from pcp.tools import compile

#: What a member may need to start, and to end, on a busy machine.
START, END = 60.0, 40.0
#: Longer than to end: who hears of a death by this alone is too late.
TIMEOUT = START + END
#: For the test that waits until it is over.
SHORT = 4.0

MODEL = """
func.func @main(%x: tensor<8x4xf32> {pcp.name = "x", pcp.role = "data"},
    %w: tensor<4x6xf32> {pcp.name = "w", pcp.role = "param"},
    %v: tensor<6x4xf32> {pcp.name = "v", pcp.role = "param"}) -> tensor<f32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %1 = stablehlo.tanh %0 : tensor<8x6xf32>
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0]
    : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
  %3 = stablehlo.multiply %2, %2 : tensor<8x4xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %4 = stablehlo.reduce(%3 init: %z) applies stablehlo.add across dimensions = [0, 1]
    : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %4 : tensor<f32>
}
"""
RULES = {"tensors": {"x": [["dp"]], "w": [[], ["tp"]], "v": [["tp"]]}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A training bundle over 2x2 members: each has a group of two along each axis."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "m.mlir").write_text(MODEL)
    (folder / "rules.json").write_text(json.dumps(RULES))
    flags = ["--target", "cpu", "--mesh", "dp=2,tp=2", "-q", "--cache", "off"]
    flags += ["--sharding", str(folder / "rules.json"), "-o", str(folder / "m.pcp")]
    assert compile.main([str(folder / "m.mlir"), *flags]) == 0
    return folder / "m.pcp"


class World:
    """Four members of `pcp run`, one of which may be doomed."""

    def __init__(self, bundle: Path, folder: Path, steps: int, timeout: float) -> None:
        self.members: dict[int, Process] = {}
        self._bundle, self._folder, self._steps = bundle, folder, steps
        self._timeout = timeout

    def start(self, rank: int, doom: tuple[str, int] | None = None) -> None:
        """A member; rank 0 comes first, the others meet it where it says."""
        address = "127.0.0.1:0"
        if rank:
            address = self.members[0].wait_for("meeting at", START).split()[-1]
        given = ["run", self._bundle, "--inputs", "random:0", "--rank", rank]
        given += [
            "--steps",
            self._steps,
            "--timeout",
            self._timeout,
            "--connect",
            address,
        ]
        given += ["--out", self._folder / f"{rank}.npz"]
        if doom is None:
            self.members[rank] = Process("pcp.tools.cli", *given)
        else:
            self.members[rank] = Process(
                "helpers.faults.killed_run_member", *doom, *given
            )

    def close(self) -> None:
        """End whoever is left."""
        for member in self.members.values():
            member.kill()


@pytest.fixture
def world(trained: Path, tmp_path: Path):
    made: list[World] = []

    def make(steps: int, timeout: float = TIMEOUT) -> World:
        made.append(World(trained, tmp_path, steps, timeout))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _others_name(world: World, victim: int) -> None:
    """The victim was killed; the others failed in time and named it."""
    assert world.members[victim].wait(START) == -signal.SIGKILL
    for rank, member in world.members.items():
        if rank == victim:
            continue
        assert member.wait(END) == 1, member.text
        assert "Traceback" not in member.text
        assert f"rank {victim} " in member.text, f"rank {rank} said: {member.text}"


@pytest.mark.parametrize(
    ("moment", "count", "victim"),
    [
        pytest.param("launch", 1, 3, marks=pytest.mark.slow),
        pytest.param("launch", 4, 0, marks=pytest.mark.slow),
        pytest.param("sent", 3, 1, marks=pytest.mark.slow),
        pytest.param("sent", 1, 2, marks=pytest.mark.slow),
        pytest.param("call", 1, 1, marks=pytest.mark.slow),
        pytest.param("call", 4, 2, marks=pytest.mark.slow),
        pytest.param("call", 5, 0, marks=pytest.mark.slow),
    ],
)
def test_the_others_name_who_died(moment: str, count: int, victim: int, world) -> None:
    """In a collective, before one, between steps; a group's rank is not the world's."""
    running = world(1000)
    for rank in range(4):
        running.start(rank, (moment, count) if rank == victim else None)
    _others_name(running, victim)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment(seed: int, world) -> None:
    random_ = random.Random(seed)
    running = world(100_000)
    for rank in range(4):
        running.start(rank)
    victim = random_.randrange(4)
    time.sleep(random_.uniform(0.1, 4))
    running.members[victim].signal(signal.SIGKILL)
    assert running.members[victim].wait(30) == -signal.SIGKILL
    for rank, member in running.members.items():
        if rank != victim:
            assert member.wait(END) == 1, member.text
            assert "Traceback" not in member.text
            # Rank 0's own end, before the world is there, leaves nobody to ask.
            named = f"rank {victim} " in member.text or not victim
            assert named, f"rank {rank} said: {member.text}"


@pytest.mark.slow  # test_run_resume.py kills one that runs
def test_killed_before_it_came(world) -> None:
    """Whoever is missing when time is up is named to all who came."""
    running = world(1, SHORT)
    for rank in (0, 1, 3):
        running.start(rank)
    running.start(2)
    running.members[2].signal(signal.SIGKILL)
    _others_name(running, 2)
    said = [running.members[rank].text for rank in (0, 1, 3)]
    assert all("the world of 4 did not come together" in text for text in said)
    assert all("rank 2 did not come" in text for text in said)
