"""The launcher: subcommands, the older flag forms, what it says to nonsense."""

import importlib.util

import pytest

from pcp.tools.cli import COMMANDS, main, translate


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
