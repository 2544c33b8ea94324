"""Packages, folders, links and the packaging map say the same."""

import tomllib
from pathlib import Path

from helpers.repository import ROOMS, ROOT

CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOOL = CONFIG["tool"]["setuptools"]


def packages_on_disk(root: Path) -> dict[str, str]:
    """Each folder with an `__init__.py` under a room, as package and path."""
    found = {"pcp": "pcp"}
    for room in ROOMS:
        for init in sorted((root / room).rglob("__init__.py")):
            path = init.parent.relative_to(root)
            found[".".join(["pcp", *path.parts])] = path.as_posix()
    return found


def test_the_packaging_map_lists_every_package():
    assert TOOL["package-dir"] == packages_on_disk(ROOT)
    assert sorted(TOOL["packages"]) == sorted(TOOL["package-dir"])


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


def test_a_missing_package_would_be_seen(tmp_path):
    for path in ("passes", "passes/new"):
        (tmp_path / path).mkdir()
        (tmp_path / path / "__init__.py").touch()
    assert "pcp.passes.new" in packages_on_disk(tmp_path)
    assert packages_on_disk(tmp_path) != TOOL["package-dir"]


def test_commands_exist():
    from importlib import import_module

    for target in CONFIG["project"]["scripts"].values():
        module, _, name = target.partition(":")
        assert callable(getattr(import_module(module), name)), target
