"""`pcp simulate`: what it prints, and what it refuses before it compiles."""

import json

import pytest
from helpers.models.bigram_numpy import island_bundle
from helpers.models.bigram_stablehlo import write_experiment

from pcp.tools.cli import main

FLAGS = "--step-seconds 0.1 --workers 2,60 --bandwidth 10 --round-trip 50 --rounds 3"


@pytest.mark.parametrize(
    "flags",
    [
        ["--step-seconds", "-1"],
        ["--step-seconds", "inf"],
        ["--step-seconds", "1", "--rounds", "0"],
        ["--step-seconds", "1", "--lifetime", "-2"],
        ["--step-seconds", "1", "--workers", "ten"],
        ["--step-seconds", "1", "--round-trip", "-1"],
        ["--step-seconds", "1", "--restart", "-1"],
        ["--step-seconds", "1", "--spread", "-0.1"],
        ["--step-seconds", "1", "--overhead", "nan"],
        ["--step-seconds", "1", "--payload", "-1"],
        ["--step-seconds", "1", "--silent", "1.5"],
        ["--step-seconds", "1", "--silent", "-1"],
        ["--step-seconds", "1", "--inside-bandwidth", "0"],
        ["--step-seconds", "1", "--inside-round-trip", "inf"],
        ["--step-seconds", "1", "--islands", "two"],
        ["--step-seconds", "1", "--islands", "0"],
    ],
)
def test_what_no_world_is_like_is_refused_before_compiling(flags, capsys):
    assert main(["simulate", "no.json", *flags]) == 2
    assert f"{flags[-2]}" in capsys.readouterr().err


def test_the_command_prints_a_table_or_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path)
    assert main(["simulate", "x.json", *FLAGS.split()]) == 0
    head, few, many = capsys.readouterr().out.splitlines()
    assert "s a round" in head
    assert [line.split()[0] for line in (few, many)] == ["2", "60"]
    assert main(["simulate", "x.json", *FLAGS.split(), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [f["workers"] for f in figures] == [2, 60]
    assert all(0 < f["goodput"] <= 1 for f in figures)


@pytest.mark.slow  # a program more
def test_the_bundle_says_what_is_sent(tmp_path, capsys, monkeypatch):
    """A direction's number and a slope to each of the others, in every step."""
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, algorithm="mezo")
    flags = "--step-seconds 0.1 --workers 2,8 --rounds 1 --json"
    assert main(["simulate", "x.json", *flags.split()]) == 0
    sent = [f["sent_bytes"] for f in json.loads(capsys.readouterr().out)]
    steps, gathered, count = 5, 12, 4
    assert sent == [
        steps * (workers - 1) * round(gathered + 2 * count / workers)
        for workers in (2, 8)
    ]


ISLANDS = "--step-seconds 0.1 --islands 2,6 --bandwidth 10 --round-trip 50 --rounds 3"


@pytest.mark.parametrize(
    "bundled", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["pcp", "mlir"]
)
def test_islands_are_named_as_pcp_train_names_them(
    bundled, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, **({"model_path": "m.pcp"} if bundled else {}))
    (tmp_path / "m.pcp").write_bytes(island_bundle())
    command = ["simulate", "x.json", *ISLANDS.split(), "--mesh", "tp=2"]
    assert main(command) == 0
    head, few, many = capsys.readouterr().out.splitlines()
    columns = "islands of rounds s a round MB sent goodput deaths cpu s MB held"
    assert head.split() == columns.split()
    assert [line.split()[:3] for line in (few, many)] == [
        ["2", "2", "3"],
        ["6", "2", "3"],
    ]
    assert main([*command, "--json"]) == 0
    for figures in json.loads(capsys.readouterr().out):
        assert figures["ranks"] == 2
        assert 0 < figures["goodput"] <= 1
        assert figures["coordinator_seconds"] > 0
        assert figures["coordinator_bytes"] > 10_000


def test_a_round_of_islands_is_by_the_bundle_or_by_the_flags(
    tmp_path, capsys, monkeypatch
):
    """Closed forms: five steps, sums inside in each of them, and a ring of two."""
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, model_path="m.pcp")
    (tmp_path / "m.pcp").write_bytes(island_bundle())
    flags = "--step-seconds 0.1 --islands 2 --mesh tp=2 --rounds 2 --spread 0 --json"
    links = "--bandwidth 8 --round-trip 0 --inside-bandwidth 8 --inside-round-trip 100"

    def seconds(*more: str) -> tuple[float, int]:
        flagged = ["simulate", "x.json", *flags.split(), *links.split(), *more]
        assert main(flagged) == 0
        (figures,) = json.loads(capsys.readouterr().out)
        return figures["round_seconds"], figures["sent_bytes"]

    half, inside = 4 * 128 * 64, 4 * 3 * 128
    told = ["--inside-payload", "100000", "--payload", "1000000"]
    for more, sent, step in (
        ([], half, 0.1 + inside / 1e6 + 2 * 0.1),
        (told, 500_000, 0.1 + 0.1 + 2 * 0.1),
    ):
        found, moved = seconds(*more)
        assert moved == sent
        # Rounds of ranks vary by 2 %, which is no flag.
        assert found == pytest.approx(5 * step + sent / 1e6, abs=5 * 0.1 * 0.08)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--islands", "2"], "--islands: say what an island is"),
        (["--set", 'islands=[{"mesh": "tp=2"}, {"mesh": "tp=1"}]'], "unlike shape"),
        (["--inside-payload", "4"], "--inside-payload: a worker is one device"),
        (["--islands", "2", "--workers", "2"], "not allowed with"),
    ],
)
def test_islands_that_are_none_are_refused(flags, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path)
    assert main(["simulate", "x.json", "--step-seconds", "1", *flags]) == 2
    assert said in capsys.readouterr().err
