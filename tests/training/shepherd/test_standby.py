"""Shepherds that stand by: a leader dies with its folder, and the run goes on."""

import pytest
from helpers.servers.processes import Processes
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
