"""`pcp simulate`: what it prints, and what it refuses before it compiles."""

import json

import pytest
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
