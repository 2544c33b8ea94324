"""Folders, links and the packaging's settings say the same."""

import tomllib

from helpers.repository.installation import packages
from helpers.repository.sources import ROOMS, ROOT

CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOOL = CONFIG["tool"]["setuptools"]


def test_an_editable_install_puts_pcp_and_nothing_else_on_the_path():
    """By a path, not by a finder of setuptools': `tests/test_install.py` says why."""
    assert TOOL["package-dir"] == {"": "src"}
    assert TOOL["packages"] == {"find": {"where": ["src"], "namespaces": False}}
    visible = [p for p in (ROOT / "src").iterdir() if p.suffix != ".egg-info"]
    assert [(p.name, p.readlink().as_posix()) for p in visible] == [("pcp", "../pcp")]


def test_each_room_has_its_link():
    links = {
        p.name: p.readlink().as_posix()
        for p in (ROOT / "pcp").iterdir()
        if p.is_symlink()
    }
    assert links == {room: f"../{room}" for room in ROOMS}


def test_every_folder_with_code_is_a_package():
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), file


def test_the_packages_of_all_rooms_are_found():
    found = {
        ".".join(["pcp", *init.parent.relative_to(ROOT).parts])
        for room in ROOMS
        for init in (ROOT / room).rglob("__init__.py")
    }
    assert "pcp.passes.training.optimizers" in found
    assert packages() == {"pcp"} | found


def test_commands_exist():
    from importlib import import_module

    for target in CONFIG["project"]["scripts"].values():
        module, _, name = target.partition(":")
        assert callable(getattr(import_module(module), name)), target
