"""Shepherds that stand by: a leader dies with its folder, and the run goes on."""

import shutil

import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.servers.processes import Processes, free_port
from helpers.worlds.communicators import eventually
from helpers.worlds.standby import Standby

from pcp.errors import ConfigError
from pcp.training.shepherd.voters import Voters
from pcp.training.storage.ledger import check
from pcp.training.wire.channel import OPEN


def goes_through(folder, kills: int, rounds: int) -> list[float]:
    """A run whose leaders are killed so often; no round is lost, or made twice."""
    with Processes() as children:
        run = Standby(folder, children, rounds)
        took = [run.strike() for _ in range(kills)]
        run.wait(lambda: all(not worker.is_alive() for worker in run.crew), 240)
        assert [worker.finish() for worker in run.crew] == ["the run is complete"] * 2
        run.wait(lambda: all(child.popen.poll() is not None for child in run.shepherds))
        whole = max(range(3), key=lambda number: len(run.records(number)))
        check(run.ledger(whole))
        records = run.records(whole)
        commits = [r["round"] for r in records if r["kind"] == "commit"]
        assert commits == list(range(1, rounds + 1))
        assert not any(record["kind"] == "rewind" for record in records)
        terms = [record["term"] for record in records if record["kind"] == "leader"]
        assert terms == sorted(set(terms))
        assert len(terms) > kills
        return took


def test_a_leader_dies_with_its_folder_and_another_goes_on(tmp_path) -> None:
    assert len(goes_through(tmp_path, 1, 60)) == 1


@pytest.mark.slow
def test_twenty_leaders_die_with_their_folders_in_one_run(tmp_path) -> None:
    """Some minutes: after each, a new shepherd must have the whole ledger."""
    assert len(goes_through(tmp_path, 20, 2000)) == 20


@pytest.mark.parametrize(
    ("addresses", "me", "why"),
    [
        (["h:1", "h:2"], 0, "an odd number of them votes"),
        (["h:1"], 0, "an odd number of them votes"),
        (["h:1", "h:2", "h:1"], 0, "two shepherds have one address"),
        (["h:1", "h:2", "h:3"], 3, "--voters has 0 to 2"),
    ],
)
def test_voters_of_whom_no_majority_could_be_are_refused(
    tmp_path, addresses, me, why
) -> None:
    with pytest.raises(ConfigError, match=why):
        Voters(tmp_path / "ledger.jsonl", addresses, me, OPEN, print)


@pytest.mark.slow
def test_the_commands_do_the_same(tmp_path, monkeypatch) -> None:
    """Three compilers and a worker as processes: half a minute."""
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, outer_loop_steps=300)
    ports = [free_port() for _ in range(6)]
    meeting = ",".join(f"127.0.0.1:{port}" for port in ports[:3])
    with Processes() as children:
        shepherds = [
            children.start(
                *("pcp.tools.cli", "shepherd", "--config", "x.json", "--web", "off"),
                *("--workers", 1, "--no-dashboard", "--port", ports[3 + number]),
                *("--run", f"s{number}/run", "--voters", meeting, "--voter", number),
            )
            for number in range(3)
        ]
        dialled = ",".join(f"127.0.0.1:{port}" for port in ports[3:])
        worker = children.start("pcp.tools.cli", "worker", "--connect", dialled)
        eventually(lambda: any("round 3/" in child.text for child in shepherds), 120)
        leader = next(n for n in range(3) if "round 3/" in shepherds[n].text)
        shepherds[leader].kill()
        shutil.rmtree(tmp_path / f"s{leader}")
        assert worker.wait(200) == 0, worker.text
        assert "leaving: the run is complete" in worker.text
        rest = [child for n, child in enumerate(shepherds) if n != leader]
        assert [child.wait(30) for child in rest] == [0, 0]
        assert any("rounds          300" in child.text for child in rest)
