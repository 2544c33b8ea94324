"""Shepherds that stand by: a leader dies with its folder, and the run goes on."""

import shutil
from contextlib import closing

import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.servers import etcd_store
from helpers.servers.processes import Processes, free_port
from helpers.worlds.communicators import eventually
from helpers.worlds.standby import Standby

from pcp.errors import ConfigError, StateMismatch
from pcp.training.shepherd.etcd import Etcd, Unavailable, found, more, place
from pcp.training.shepherd.etcd_elector import EtcdElector
from pcp.training.shepherd.voters import Voters
from pcp.training.storage.ledger import Ledger, check
from pcp.training.storage.ledger_copy import LedgerCopy
from pcp.training.wire.channel import OPEN


def goes_through(
    folder, kills: int, rounds: int, etcd: str | None = None
) -> list[float]:
    """A run whose leaders are killed so often; no round is lost, or made twice."""
    with Processes() as children:
        run = Standby(folder, children, rounds, etcd)
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


@pytest.mark.slow  # twelve processor seconds; the term is drawn in test_leader_lease
def test_the_same_with_a_lease_in_etcd(tmp_path) -> None:
    with etcd_store.served() as etcd:
        assert len(goes_through(tmp_path, 1, 60, f"{etcd}/demo")) == 1


@pytest.mark.skipif(etcd_store.PROGRAM is None, reason="needs the program etcd")
@pytest.mark.slow
def test_the_same_with_etcd_itself(tmp_path) -> None:
    """Five take-overs, each after a lease of two seconds."""
    with etcd_store.real() as etcd:
        assert len(goes_through(tmp_path, 5, 400, f"{etcd}/demo")) == 5


@pytest.mark.skipif(etcd_store.PROGRAM is None, reason="needs the program etcd")
def test_the_store_of_these_tests_answers_as_etcd_does() -> None:
    said = []
    for served in (etcd_store.real, etcd_store.served):
        with served() as address, closing(Etcd(place(f"{address}/demo"))) as etcd:
            said.append(conversation(etcd))
    assert said[0] == said[1]


def conversation(etcd: Etcd) -> list[object]:
    """What etcd says to every kind of question, but for its own numbers."""
    lease, seconds = etcd.grant(1)
    leader, line = etcd.key("leader"), etcd.line
    free = [etcd.made_at(leader, 0)]
    took, first, _ = etcd.transact(free, [etcd.put(leader, "a", lease)])
    again = etcd.transact(free, [etcd.put(leader, "b", lease)], [etcd.get(leader)])
    lines = [etcd.put(line(number), f"{number}\n") for number in range(3)]
    wrote = etcd.transact([etcd.made_at(leader, first)], lines)
    known = etcd.transact([etcd.holds(line(2), "2\n")], [etcd.get(leader)])
    other = etcd.transact([etcd.holds(line(2), "3\n")], [etcd.get(leader)])
    behind = etcd.get(line(1), etcd.key("line0"), 1)
    nothing = etcd.get(line(9), etcd.key("line0"), 5)
    ranges = etcd.transact([], [behind, nothing])[2]
    with pytest.raises(Unavailable, match="lease not found"):
        etcd.transact([], [etcd.put(leader, "c", "77")])
    said = [
        *(seconds, took, again[0], wrote[0], known[0], other),
        *(etcd.keep_alive(lease), etcd.keep_alive("77"), more(ranges[0])),
    ]
    said += [(key, value, made - first) for key, value, made in found(ranges[0])]
    said += [found(ranges[1]), more(ranges[1]), again[1] - first, wrote[1] - first]
    eventually(lambda: not found(etcd.transact([], [etcd.get(leader)])[2][0]), 30)
    return [*said, etcd.keep_alive(lease)]


@pytest.mark.parametrize(
    "text",
    ["http://h:1", "h:1/x", "ftp://h/x", "http://h:x/x", "http://a/x,http://b/y"],
)
def test_what_names_no_run_in_etcd_is_refused(text) -> None:
    with pytest.raises(ConfigError, match="--etcd"):
        place(text)


def test_lines_that_counted_are_cut_off_by_nobody(tmp_path) -> None:
    """The folder of another run, or an etcd that lost what it had."""
    path = tmp_path / "ledger.jsonl"
    with closing(Ledger(path)) as ledger:
        for number in range(4):
            fields = {"round": number} if number else {"term": 1}
            ledger.write("commit" if number else "leader", fields)
    copy = LedgerCopy(path)
    copy.cut(3)
    assert copy.count == 3
    with pytest.raises(StateMismatch, match="2 rounds were committed behind line 1"):
        copy.cut(1)
    assert copy.count == 3
    copy.release()
    with etcd_store.served() as etcd:
        elector = EtcdElector(place(f"{etcd}/new"), "me", path, print)
        with closing(elector), pytest.raises(StateMismatch, match="another run's"):
            elector.stand_by()


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
        Voters(addresses, me, OPEN, tmp_path / "ledger.jsonl", print)


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
