"""The launcher: subcommands, the older flag forms, what it says to nonsense."""

import importlib.util

import pytest
from helpers.repository.commands import check

from pcp.tools.cli import COMMANDS, main, translate

OLDER = (
    "--supervise -- --shepherd --config X.json --host 0.0.0.0 --port 8080 --workers 8",
    "--supervise -- --shepherd --config X.json --workers 2 --resume",
    "--node-manager --host H --port 8080 --backend cuda --target sm_80",
    "--node-manager --scale 8 --host H --port 8080 --backend cuda --target sm_90a",
    "--node-manager --scale 2 --host H --port 8080 --backend rocm --target gfx942",
    "--worker --device-id 0 --connect H:8080 --backend cuda",
    "--shepherd --config X.json --workers 11",
    "--shepherd --config X.json --terminate",
)
"""Commands of the predecessor, as its own page has them."""


@pytest.mark.parametrize("line", OLDER)
def test_the_older_commands_are_taken(line: str) -> None:
    words = translate(line.split())
    check(["pcp", *words])
    if words[0] == "supervise":
        check(["pcp", *words[2:]])


def test_an_older_export_is_taken() -> None:
    sizes = ["--batch-size", "64", "--block-size", "64", "--out", "m.mlir"]
    check(["pcp", "export", "--model-file", "my_gpt.py", "--class-name", "M", *sizes])


def test_an_older_flag_without_a_meaning_says_what_to_take(capsys) -> None:
    assert main("--shepherd --config X.json --streaming".split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--algorithm streaming_diloco" in line


@pytest.mark.parametrize(
    ("line", "same_as"),
    [
        (
            "--shepherd --config X.json --workers 8",
            "shepherd --config X.json --workers 8",
        ),
        ("--config X.json --shepherd", "shepherd --config X.json"),
        ("--config X.json", "shepherd --config X.json"),
        (
            "--worker --connect H:1 --backend cuda --device-id 0",
            "worker --connect H:1 --backend cuda --device-id 0",
        ),
        ("--device-id 0 --connect=H:1", "worker --device-id 0 --connect=H:1"),
        (
            "--node-manager --host H --port 1 --scale 8",
            "node --host H --port 1 --scale 8",
        ),
        (
            "--supervise -- --shepherd --config X.json",
            "supervise -- shepherd --config X.json",
        ),
        ("--supervise --worker --connect H:1", "supervise -- worker --connect H:1"),
        ("--supervise -- worker --connect H:1", "supervise -- worker --connect H:1"),
        ("train X.json --workers 2", "train X.json --workers 2"),
        ("--version", "--version"),
    ],
)
def test_the_older_flags_are_subcommands(line, same_as):
    assert translate(line.split()) == same_as.split()


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("trian X.json", "no command 'trian'. Did you mean 'train'?"),
        ("--shepard --workers 2", "no flag '--shepard'. Did you mean '--shepherd'?"),
    ],
)
def test_an_unknown_word_names_the_nearest(capsys, line, hint):
    assert main(line.split()) == 2
    assert hint in capsys.readouterr().err


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_no_command_is_a_usage_error(capsys):
    assert main([]) == 2
    assert "usage: pcp" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_module(name):
    assert importlib.util.find_spec(COMMANDS[name][0]) is not None
